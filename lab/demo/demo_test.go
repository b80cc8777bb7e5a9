package demo

import (
	"encoding/json"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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

	// The line about the copies explains why the providers accepted more messages than there are.
	line := regexp.MustCompile(`accepted (\d+) \+ (\d+) = (\d+) messages:\s+(\d+) of them were blocked by the receiver`)
	found := line.FindStringSubmatch(out.String())
	require.NotNil(t, found, out.String())
	n := make([]int64, 4)
	for i := range n {
		n[i], err = strconv.ParseInt(found[i+1], 10, 64)
		require.NoError(t, err)
	}
	require.Equal(t, n[0]+n[1], n[2])
	require.Equal(t, s.Delivered+s.Failed-s.Suppressed+n[3], n[2])
	require.Positive(t, n[3])
}

// TestWatchedBatchLasts: a batch that may be watched lasts long enough to open its page, because its calls are many and
// slow, and so does the outage.
func TestWatchedBatchLasts(t *testing.T) {
	t.Parallel()
	for n, least := range map[int]time.Duration{MinRecipients: 0, 3000: 9 * time.Second, 10_000: 9 * time.Second} {
		d := &demo{o: Options{Recipients: n}}
		perProvider := (d.calls() + 1) / 2
		takes := time.Duration((perProvider+atOnce-1)/atOnce) * d.latency()
		require.GreaterOrEqual(t, takes, least, "%d recipients", n)
		require.Less(t, takes, 45*time.Second, "%d recipients", n)
		require.Equal(t, 8*time.Second, d.breakTime())
		require.False(t, (&demo{o: Options{Recipients: n, Exit: true}}).watched())
	}
}

func TestRecipientsOutOfRange(t *testing.T) {
	t.Parallel()
	for _, n := range []int{MinRecipients - 1, MaxRecipients + 1} {
		require.Error(t, Run(t.Context(), Options{Recipients: n}))
	}
}
