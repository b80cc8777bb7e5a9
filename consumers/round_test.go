package consumers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestSumsAreWatched: the check that runs beside the work finds what is wrong in a
// chunk, and in the sums above it, new or old; tells of it when it lasts; remembers
// it over a change of workers; and forgets it when it is mended.
func TestSumsAreWatched(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.SumsPoll = time.Hour // the rounds are made here
	sg, mg := newScripted("sg", always(models.Unavailable)), newScripted("mg", always(models.Accepted))
	r := newRig(t, cfg, nil, sg, mg)
	r.known()
	ctx := t.Context()
	var batches []*models.Batch
	for n := range 5 {
		batches = append(batches, r.batch(10+n, true, nil))
	}
	for _, b := range batches {
		r.done(b)
	}
	require.Eventually(t, func() bool {
		out, err := r.engine.Check(ctx, rollup.CheckOptions{Settle: 200 * time.Millisecond})
		return err == nil && out.Differences == 0
	}, patience, 50*time.Millisecond)
	r.stop() // Nothing mends sums by itself any more

	now := time.Now().Add(40 * time.Minute)
	e := r.engine
	round := func() rollup.Round {
		require.NoError(t, e.rollup.CheckSums(ctx, now))
		w, err := e.rollup.LastRound(ctx)
		require.NoError(t, err)
		now = now.Add(2 * rollup.LateSums)
		return w
	}
	what := func(w rollup.Round) (out []string) {
		for i := range w.Suspects {
			if w.Suspects[i].Told {
				out = append(out, w.Suspects[i].What)
			}
		}
		return out
	}
	w := round()
	require.Empty(t, w.Suspects)
	require.Equal(t, 5, w.Batches, "accepted lately")
	w = round()
	require.Empty(t, w.Suspects)
	require.Equal(t, 5, w.Batches, "older: the walk begins again")

	lie := func(b *models.Batch) (truth models.Summary) {
		truth = stored(t, r, b)
		wrong := truth
		wrong.Success, wrong.Failed = 0, truth.Success
		require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: b.ID, Summary: wrong}))
		return truth
	}
	rollUp := func(b *models.Batch, levels ...models.Level) {
		for _, level := range levels {
			_, err := r.store.RollUp(ctx, models.SpanOf(r.user, level, b.Created()))
			require.NoError(t, err)
		}
	}
	truth := lie(batches[1])
	w = round()
	require.NotEmpty(t, w.Suspects)
	require.Zero(t, w.Differences, "it may be on its way")
	require.Contains(t, what(round()), "chunk", "it is not")
	var err error
	e, err = New(
		r.store,
		r.broker,
		[]provider.Spec{
			{Adapter: sg, Provider: models.Provider{Name: "sg"}},
			{Adapter: mg, Provider: models.Provider{Name: "mg"}},
		},
		cfg,
	)
	require.NoError(t, err)
	t.Cleanup(e.dispatch.Stop)
	w = round()
	require.Equal(t, 1, w.Differences, "another worker goes on from there")
	require.Equal(t, batches[1].ID.String(), w.Suspects[0].ID)
	require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: batches[1].ID, Summary: truth}))
	require.Empty(t, round().Suspects, "mended")

	// The chunk is right, and the sums above it are not, up to some level.
	truth = lie(batches[2])
	rollUp(batches[2], models.Levels[:]...)
	require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: batches[2].ID, Summary: truth}))
	for i, level := range models.Levels {
		round()
		require.Equal(t, []string{string(level)}, what(round()))
		rollUp(batches[2], models.Levels[i])
	}
	require.Empty(t, round().Suspects)

	// What is wrong at one level alone, with all others right, a check finds and mends.
	for i, level := range models.Levels {
		truth = lie(batches[3])
		rollUp(batches[3], models.Levels[:i+1]...)
		require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: batches[3].ID, Summary: truth}))
		rollUp(batches[3], models.Levels[:i]...)
		var found []string
		out, err := e.Check(
			ctx,
			rollup.CheckOptions{
				Repair: true,
				Settle: 100 * time.Millisecond,
				Found:  func(d rollup.Difference) { found = append(found, d.What) },
			},
		)
		require.NoError(t, err)
		require.Contains(t, found, string(level))
		require.Equal(t, 1, out.Repaired)
		out, err = e.Check(ctx, rollup.CheckOptions{Settle: 100 * time.Millisecond})
		require.NoError(t, err)
		require.Zero(t, out.Differences, level)
	}

	r.engine.metrics.watched(&rollup.Round{Recount: telemetry.Recount{Differences: 3}})
	e.metrics.watched(&w)
}

// unreadable is a store whose sums of a level cannot be read, nor, if it is said,
// its batches.
type unreadable struct {
	models.Store
	level models.Level
	lists bool
}

func (s *unreadable) Nodes(
	ctx context.Context,
	user string,
	level models.Level,
	from, to time.Time,
) ([]models.Node, error) {
	if level == s.level {
		return nil, models.ErrDamaged
	}
	return s.Store.Nodes(ctx, user, level, from, to)
}

func (s *unreadable) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	bs, err := s.Store.Batches(ctx, user, before, limit)
	for i := range bs {
		if s.lists {
			bs[i] = models.Batch{ID: bs[i].ID, User: user, Damaged: true}
		}
	}
	return bs, err
}

// A sum, or a batch, that cannot be read is named, and stops neither the check nor
// the rounds beside the work.
func TestDamagedSumsAreNamed(t *testing.T) {
	t.Parallel()
	s := &unreadable{}
	p := newScripted("sg", always(models.Accepted))
	r := newRig(t, fast(), func(store models.Store) models.Store {
		s.Store = store
		return s
	}, p)
	r.known()
	r.done(r.batch(3, true, nil))
	require.Eventually(t, func() bool { return r.engine.Pending() == 0 }, patience, time.Millisecond)
	r.stop()
	for i, c := range []unreadable{{level: models.Second}, {level: models.Minute}, {level: models.Hour}, {level: models.Day}, {lists: true}} {
		s.level, s.lists = c.level, c.lists
		damaged := 0
		_, err := r.engine.Check(
			t.Context(),
			rollup.CheckOptions{Settle: 50 * time.Millisecond, Found: func(d rollup.Difference) {
				if d.Damaged != "" {
					damaged++
				}
			}},
		)
		require.NoError(t, err, c.level)
		require.NotZero(t, damaged, c.level)
		now := time.Now().Add(time.Duration(i+1) * 10 * time.Minute)
		require.NoError(t, r.engine.rollup.CheckSums(t.Context(), now), c.level)
		w, err := r.engine.rollup.LastRound(t.Context())
		require.NoError(t, err)
		require.True(t, w.At.Equal(now), "the round is told of")
		require.NotZero(t, w.Differences, c.level)
	}
}

// While mail flows, sums lag behind what they are made of, and a check beside it
// takes that for no difference.
func TestCheckWhileMailFlows(t *testing.T) {
	t.Parallel()
	r := newRig(t, fast(), nil, newScripted("sg", always(models.Accepted)))
	r.known()
	flows, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-flows:
				return
			case <-time.After(2 * time.Millisecond):
				r.batch(1, true, nil)
			}
		}
	}()
	out, err := r.engine.Check(
		t.Context(),
		rollup.CheckOptions{Settle: 300 * time.Millisecond, Found: func(d rollup.Difference) { t.Error(d) }},
	)
	close(flows)
	<-over
	require.NoError(t, err)
	require.Zero(t, out.Differences)
}

// Nothing is told of while it moves: only what differs although nothing happens.
func TestSumsThatMoveAreNotTold(t *testing.T) {
	t.Parallel()
	cfg := fast()
	sums, now := &rollup.Rollup{Log: cfg.withDefaults().Logger}, time.Now()
	var w rollup.Round
	late := func(version int64) []rollup.Difference {
		return []rollup.Difference{
			{What: "chunk", ID: "a", Shown: models.Summary{Version: 1}, Counted: models.Summary{Version: version}},
		}
	}
	for version := range int64(5) {
		sums.Judge(&w, late(2+version), now)
		require.Zero(t, w.Lasting())
		now = now.Add(rollup.LateSums)
	}
	sums.Judge(&w, late(6), now)
	require.Equal(t, 1, w.Lasting())
	sums.Judge(&w, nil, now)
	require.Zero(t, w.Lasting())
	sums.Judge(&w, []rollup.Difference{{What: "chunk", ID: "b", Damaged: "torn"}}, now)
	require.Equal(t, 1, w.Lasting(), "what cannot be read is told of at once")
	var many []rollup.Difference
	for range 2 * rollup.MaxSuspects {
		many = append(many, rollup.Difference{What: "chunk", ID: models.NewBatchID(now).String()})
	}
	sums.Judge(&w, many, now)
	require.Len(t, w.Suspects, rollup.MaxSuspects)
}
