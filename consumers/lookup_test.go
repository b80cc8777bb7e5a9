package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/evidence"
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
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictUnknown },
			patience,
			time.Millisecond,
		)
	}
	r.stop()
	now := time.Now()
	p.tell(loud.ID.Log(1), r.view(loud).Entries[0].Number, models.Processed, now)
	l := evidence.New(r.engine.cfg.evidence(), evidence.Deps{
		Store:     r.store,
		Policy:    r.engine.dispatch.Policy,
		Providers: r.engine.providers,
		Dispatch:  r.engine.dispatch,
	})
	for _, b := range []*models.Batch{quiet, loud} {
		l.Request("mg", b.ID, now.Add(-time.Minute), now.Add(time.Minute))
	}
	groups := evidence.GroupByTime(l.Due("mg", now.Add(time.Hour)))
	require.Len(t, groups, 1)
	l.Query(t.Context(), "mg", groups[0])
	require.False(t, l.Open[evidence.Query{Provider: "mg", Chunk: quiet.ID}].Answered.IsZero())
	require.True(
		t,
		l.Open[evidence.Query{Provider: "mg", Chunk: loud.ID}].Answered.IsZero(),
		"what was found has yet to be worked off",
	)
}

// A question is answered when what was found is worked off, however much news there
// is each time.
func TestAnsweredWhileNewsCome(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	var in evidence.Lookup
	in.Record(at(1), evidence.Finding{News: 3})
	require.True(t, in.Answered.IsZero())
	in.Record(at(2), evidence.Finding{News: 1, Waiting: 2})
	require.True(t, in.Answered.IsZero())
	in.Record(at(3), evidence.Finding{News: 5})
	require.Equal(t, at(1), in.Answered)
	in.Record(at(4), evidence.Finding{News: 5})
	require.Equal(t, at(3), in.Answered)
	in.Record(at(5), evidence.Finding{})
	require.Equal(t, at(5), in.Answered)
}

// Questions are asked together as long as their time is not too long to look
// through.
func TestClusters(t *testing.T) {
	t.Parallel()
	from := time.Now()
	var qs []evidence.DueQuery
	for k := range 60 { // each five minutes after the one before
		begin := from.Add(time.Duration(k) * evidence.Nearby / 2)
		qs = append(
			qs,
			evidence.DueQuery{
				Query:  evidence.Query{Provider: "mg", Chunk: models.NewBatchID(begin)},
				Lookup: evidence.Lookup{From: begin, To: begin.Add(time.Minute)},
			},
		)
	}
	groups := evidence.GroupByTime(qs)
	n := 0
	for _, g := range groups {
		n += len(g)
		require.LessOrEqual(t, g[len(g)-1].To.Sub(g[0].From), evidence.LongSpan)
	}
	require.Equal(t, len(qs), n)
	require.Len(t, groups, 3)
}

// The same domain may be two providers here: what the other one reported is no news
// of this one.
func TestLookUpOfAnotherProvider(t *testing.T) {
	t.Parallel()
	r, b := unsettled(t, 1)
	c, err := r.engine.dispatch.Load(t.Context(), b.ID)
	require.NoError(t, err)
	require.True(t, c.MayHave("sg", 1, c.Entries[0].Number))
	require.True(t, c.MayHave("sg", 1, 0))
	require.False(t, c.MayHave("sg", 1, c.Entries[0].Number+1))
	require.False(t, c.MayHave("mg", 1, 0))
}
