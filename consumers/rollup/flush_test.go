package rollup

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
)

// largest is a store that notes how many summaries it got at once, and may fail.
type largest struct {
	models.Store
	most   int
	stored int  // since the last sum
	fails  bool // after flushAtOnce
}

func (s *largest) PutSummaries(ctx context.Context, sums ...models.ChunkSummary) error {
	if s.fails && s.most == flushAtOnce {
		return models.ErrUnavailable
	}
	s.stored += len(sums)
	return s.Store.PutSummaries(ctx, sums...)
}

func (s *largest) RollUp(ctx context.Context, span models.Span) error {
	if span.Level == models.Levels[len(models.Levels)-1] {
		s.most, s.stored = max(s.most, s.stored), 0
	}
	return s.Store.RollUp(ctx, span)
}

// TestFlushIsBounded: a flush renews so many chunks together and no more. If one part fails, the parts before it are
// done, and all others stay marked.
func TestFlushIsBounded(t *testing.T) {
	t.Parallel()
	var store *largest
	f := newFixture(t, func(s models.Store) models.Store { store = &largest{Store: s}; return store })
	const all = 2*flushAtOnce + 500
	done := 0
	mark := func() {
		id := models.NewBatchID(time.Now())
		for n := range all {
			f.MarkChunk(&dispatch.Chunk{ID: id.Chunk(n), Size: 1, View: models.Resolve(1, nil, nil), Batch: &models.Batch{ID: id, User: f.user}})
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, m := range f.marked {
			m.then = append(m.then, func() { done++ })
		}
	}
	mark()
	require.NoError(t, f.Flush(t.Context()))
	require.Equal(t, flushAtOnce, store.most)
	require.Equal(t, all, done)
	require.Zero(t, f.Pending())

	mark()
	done, store.most, store.fails = 0, 0, true
	require.ErrorIs(t, f.Flush(t.Context()), models.ErrUnavailable)
	require.Equal(t, flushAtOnce, done)
	require.Equal(t, all-flushAtOnce, f.Pending())
	store.fails = false
	require.NoError(t, f.Flush(t.Context()))
	require.Equal(t, all, done)
	require.Zero(t, f.Pending())
}
