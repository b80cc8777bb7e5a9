package codec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestNewerForms: a value that a newer version stored is an error that says so, and never read
// in part or called damaged.
func TestNewerForms(t *testing.T) {
	t.Parallel()
	newer := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, models.ErrNewer)
		require.NotErrorIs(t, err, models.ErrInvalid)
		require.ErrorContains(t, err, "stored by a newer version")
	}
	another := []byte("q and what is not known yet")
	_, err := DecodeRecipients(another)
	newer(err)
	_, err = DecodePosts("", another)
	newer(err)
	_, err = DecodeEntry(another)
	newer(err)
	_, err = DecodeFact("k", another)
	newer(err)
	for _, raw := range [][]byte{another, Pack([]byte(`{"n": 7, "not_yet_known": true}`))} {
		_, err = DecodeBatch(raw)
		newer(err)
		_, err = DecodeSummary(raw)
		newer(err)
		_, err = DecodeCommand(raw)
		newer(err)
	}
	e := attempt(1, "sg", 1)
	e.Kind = "not yet known"
	_, err = DecodeEntry(EncodeEntry(&e))
	newer(err)
	f := answer(1, "not_yet_known", 1)
	_, err = DecodeFact("k", EncodeFact(&f))
	newer(err)
	f = event(1, "sg", "not_yet_known", "", 1)
	_, err = DecodeFact("k", EncodeFact(&f))
	newer(err)
	newer(models.DecodeStored([]byte(`{"not_yet_known": ["x"]}`), new(models.KeyOptions)))
	_, err = DecodeBatch(Pack([]byte(`{} {}`)))
	require.ErrorIs(t, err, models.ErrInvalid)
	_, err = DecodeRecipients([]byte{0, 1, 2})
	require.ErrorIs(t, err, models.ErrInvalid, "no form begins so")
}
