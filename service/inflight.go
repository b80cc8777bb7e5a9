package service

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// countInFlight completes the answer to an order with the calls in flight: of the
// batch, or, where the order is about a log, of its chunk; or with a warning where they
// cannot be counted.
func (s *Service) countInFlight(ctx context.Context, b *models.Batch, out *Steered) {
	var n int
	var err error
	if out.LogID.IsZero() {
		n, err = s.inFlight(ctx, b)
	} else {
		n, err = s.chunkInFlight(ctx, out.LogID.ChunkID())
	}
	if err != nil {
		s.log.Warn("calls in flight not counted", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n
}

// inFlight counts the recipients of calls that may be running: of attempts with
// no outcome whose call cannot have ended yet. It looks at the ledger of every
// chunk: a stored summary that says that nothing is queued may be older than a
// release, or than an event, that let mail go out again.
func (s *Service) inFlight(ctx context.Context, b *models.Batch) (int, error) {
	counts := make([]int, b.Chunks)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n := range b.Chunks {
		g.Go(func() (err error) {
			counts[n], err = s.chunkInFlight(ctx, b.ID.Chunk(n))
			return err
		})
	}
	err := g.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum, err
}

func (s *Service) chunkInFlight(ctx context.Context, chunk models.ID) (int, error) {
	entries, err := s.store.Ledger(ctx, chunk) // most have nothing running, and more need not be read
	if err != nil {
		return 0, err
	}
	now, running := time.Now(), map[int]int{}
	for i := range entries {
		if e := &entries[i]; e.Kind == models.Attempt && e.CallEnds.After(now) {
			running[e.Number] = e.Recipients.Len()
		}
	}
	if len(running) == 0 {
		return 0, nil
	}
	_, facts, err := s.store.Record(ctx, chunk)
	if err != nil {
		return 0, err
	}
	for i := range facts {
		if o := facts[i].Outcome; o != nil {
			delete(running, o.Attempt)
		}
	}
	sum := 0
	for _, n := range running {
		sum += n
	}
	return sum, nil
}
