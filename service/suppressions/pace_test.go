package suppressions

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/service/caller"
)

// TestImportsGiveWay checks that a long import takes the turn of its user to compute, and gives it back.
func TestImportsGiveWay(t *testing.T) {
	t.Parallel()
	lists := New(Deps{Priority: priority.New()})
	pace := lists.pace(t.Context(), caller.Caller{User: "u"})
	_, err := io.CopyN(io.Discard, pace.Body(strings.NewReader(strings.Repeat("x", 100_000))), 99_000)
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = lists.Priority.Work("u").Enter(gone)
	require.ErrorIs(t, err, context.Canceled)
	pace.Pause()
	leave, err := lists.Priority.Work("u").Enter(t.Context())
	require.NoError(t, err)
	leave()
}
