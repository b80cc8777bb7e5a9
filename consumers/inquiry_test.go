package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Chunks that are asked about together have answers of their own: news of one do
// not keep the other waiting.
func TestNewsOfAnotherChunk(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Unknown))}
	r := lookUpRig(t, fast(), p)
	quiet, loud := r.batch(1, true, nil), r.batch(1, true, nil)
	for _, b := range []*models.Batch{quiet, loud} {
		require.Eventually(t, func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictUnknown }, patience, time.Millisecond)
	}
	r.stop()
	now := time.Now()
	p.tell(loud.ID.Log(1), r.view(loud).Entries[0].Number, models.Processed, now)
	l := newLookups(r.engine.cfg.evidence(), evidenceDeps{
		Store:     r.store,
		Policy:    r.engine.dispatch.policy,
		Providers: r.engine.providers,
		Dispatch:  r.engine.dispatch,
	})
	for _, b := range []*models.Batch{quiet, loud} {
		l.request("mg", b.ID, now.Add(-time.Minute), now.Add(time.Minute))
	}
	groups := groupByTime(l.due("mg", now.Add(time.Hour)))
	require.Len(t, groups, 1)
	l.query(t.Context(), "mg", groups[0])
	require.False(t, l.open[query{"mg", quiet.ID}].answered.IsZero())
	require.True(t, l.open[query{"mg", loud.ID}].answered.IsZero(), "what was found has yet to be worked off")
}

// A question is answered when what was found is worked off, however much news there
// is each time.
func TestAnsweredWhileNewsCome(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	var in lookup
	in.record(at(1), finding{news: 3})
	require.True(t, in.answered.IsZero())
	in.record(at(2), finding{news: 1, waiting: 2})
	require.True(t, in.answered.IsZero())
	in.record(at(3), finding{news: 5})
	require.Equal(t, at(1), in.answered)
	in.record(at(4), finding{news: 5})
	require.Equal(t, at(3), in.answered)
	in.record(at(5), finding{})
	require.Equal(t, at(5), in.answered)
}

// Questions are asked together as long as their time is not too long to look
// through.
func TestClusters(t *testing.T) {
	t.Parallel()
	from := time.Now()
	var qs []dueQuery
	for k := range 60 { // each five minutes after the one before
		begin := from.Add(time.Duration(k) * nearby / 2)
		qs = append(qs, dueQuery{query{"mg", models.NewBatchID(begin)}, lookup{from: begin, to: begin.Add(time.Minute)}})
	}
	groups := groupByTime(qs)
	n := 0
	for _, g := range groups {
		n += len(g)
		require.LessOrEqual(t, g[len(g)-1].to.Sub(g[0].from), longSpan)
	}
	require.Equal(t, len(qs), n)
	require.Len(t, groups, 3)
}

// The same domain may be two providers here: what the other one reported is no news
// of this one.
func TestLookUpOfAnotherProvider(t *testing.T) {
	t.Parallel()
	r, b := unsettled(t, 1)
	c, err := r.engine.dispatch.load(t.Context(), b.ID)
	require.NoError(t, err)
	require.True(t, c.mayHave("sg", 1, c.entries[0].Number))
	require.True(t, c.mayHave("sg", 1, 0))
	require.False(t, c.mayHave("sg", 1, c.entries[0].Number+1))
	require.False(t, c.mayHave("mg", 1, 0))
}
