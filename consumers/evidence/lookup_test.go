package evidence

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestLookupIsAnswered: a look-up is answered once the events of a query are processed,
// even if each query finds more.
func TestLookupIsAnswered(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	var l lookup
	l.record(at(1), finding{filed: 3})
	require.True(t, l.answered.IsZero())
	l.record(at(2), finding{filed: 1, waiting: 2})
	require.True(t, l.answered.IsZero())
	l.record(at(3), finding{filed: 5})
	require.Equal(t, at(1), l.answered)
	l.record(at(4), finding{filed: 5})
	require.Equal(t, at(3), l.answered)
	l.record(at(5), finding{})
	require.Equal(t, at(5), l.answered)
}

// TestQueryDelays: queries without a result follow the table of delays, and then ever more
// rarely. A query that failed or found events is repeated after a pause.
func TestQueryDelays(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	const pause = 30 * time.Second
	l := lookup{to: end}
	for _, want := range []time.Duration{
		2 * time.Minute, 5 * time.Minute, 15 * time.Minute, 32 * time.Minute, 64 * time.Minute, 128 * time.Minute,
	} {
		l.schedule(end, pause, false)
		require.Equal(t, want, l.next.Sub(end))
	}
	l.schedule(end.Add(time.Hour), pause, true)
	require.Equal(t, time.Hour+pause, l.next.Sub(end))
}

// TestGroupsAreNotTooLong: look-ups share a query as long as it does not cover too much
// time.
func TestGroupsAreNotTooLong(t *testing.T) {
	t.Parallel()
	from := time.Now()
	var due []dueLookup
	for k := range 60 { // each five minutes after the one before
		begin := from.Add(time.Duration(k) * nearby / 2)
		due = append(due, dueLookup{
			lookupKey{provider: "mg", chunk: models.NewBatchID(begin)},
			lookup{from: begin, to: begin.Add(time.Minute)},
		})
	}
	groups := groupByTime(due)
	n := 0
	for _, g := range groups {
		n += len(g)
		require.LessOrEqual(t, g[len(g)-1].to.Sub(g[0].from), longSpan)
	}
	require.Equal(t, len(due), n)
	require.Len(t, groups, 3)
}
