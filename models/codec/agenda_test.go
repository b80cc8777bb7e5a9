package codec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestStoredAgendaEntry: the stored form of an entry keeps everything that its key does not have.
func TestStoredAgendaEntry(t *testing.T) {
	t.Parallel()
	for _, want := range []models.AgendaEntry{
		{User: "u"},
		{User: "u", Chunks: 17, Round: 3, Lane: models.Urgent, Missed: true, Unsent: true},
		{User: "u", Lane: models.Bulk, Unsent: true},
		{User: "u", Lane: models.Bulk, Missed: true},
	} {
		var got models.AgendaEntry
		require.NoError(t, DecodeAgendaEntry(EncodeAgendaEntry(&want), &got))
		require.Equal(t, want, got)
	}
	var e models.AgendaEntry
	require.ErrorIs(t, DecodeAgendaEntry(append([]byte{0, 0, 0x80}, "u"...), &e), models.ErrNewer)
	require.ErrorIs(t, DecodeAgendaEntry([]byte{0, 0}, &e), models.ErrInvalid)
}
