package demo

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDemoLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := Run(t.Context(), Options{
		Recipients: 3000,
		Exit:       true,
		JSON:       true,
		Dir:        t.TempDir(),
		Listen:     "127.0.0.1:0",
		Out:        &out,
		Err:        io.Discard,
	})
	require.NoError(t, err, out.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var s Summary
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &s))
	require.EqualValues(t, 3000, s.Accepted)
	require.Zero(t, s.Lost)
	require.Zero(t, s.Doubled)
	require.Zero(t, s.Queued)
	require.Positive(t, s.Rerouted)
	require.Positive(t, s.FailoverMS)
	require.EqualValues(t, 31, s.Failed)
	require.EqualValues(t, 1, s.Suppressed)
	require.GreaterOrEqual(t, s.Updates, int64(3000))
	require.Equal(t, s.Updates, s.Posted)
	require.Positive(t, s.Posts)
}

func TestRecipientsOutOfRange(t *testing.T) {
	t.Parallel()
	for _, n := range []int{MinRecipients - 1, MaxRecipients + 1} {
		require.Error(t, Run(t.Context(), Options{Recipients: n}))
	}
}
