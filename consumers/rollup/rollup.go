// Package rollup keeps the summaries of chunks and the sums above them, and recounts them.
package rollup

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Rollup renews the stored counts of chunks about which something new is
// known, at most once per Renewal for each, and then the sums above them.
//
// Marks are kept in memory. What a crash loses is found again: a dispatch by the
// batch's agenda entry, events by their post, which is marked as worked off
// only after the summary was stored.
type Rollup struct {
	Cfg      Config
	Log      *slog.Logger
	store    Store
	dispatch *dispatch.Dispatcher
	onRound  func(*Round) // written of each round over the newest sums

	mu      sync.Mutex
	marked  map[models.ID]*mark
	running int // chunks being renewed
	one     sync.Mutex
}

type mark struct {
	user  string
	then  []func() // Run when the summary is stored
	empty int      // Recipients of a chunk of which nothing was recorded when it was looked at; 0: to be counted
}

// recountAtOnce is how many chunks are counted at once where that is mostly
// waiting for the store: everything that is known of a chunk takes megabytes. To
// read the embedded store is to compute, which leaves a processor to others.
const recountAtOnce = 4

func (s *Rollup) atOnce() int {
	if s.Cfg.Sole {
		return priority.Parallelism()
	}
	return max(recountAtOnce, runtime.GOMAXPROCS(0))
}

// rollUpAtOnce is how many sums are renewed at once.
const rollUpAtOnce = 16

// maxRenewal is how long a summary may stay marked under load.
const maxRenewal = 10 * time.Second

// Config has the times of the rollup.
type Config struct {
	Worker      string
	Renewal     time.Duration // how often summaries are renewed
	SumsPoll    time.Duration // how often the newest sums are recounted
	KeepContent time.Duration // how long recipients are kept after acceptance
	Sole        bool          // no other process works on the store
	Logger      *slog.Logger
}

// Store is the part of models.Store that the rollup needs.
type Store interface {
	models.SummaryStore
	Users(ctx context.Context) ([]models.User, error)
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error)
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// New returns summaries of which none is marked. onRound is told of each round
// over the newest sums.
func New(cfg Config, store Store, d *dispatch.Dispatcher, onRound func(*Round)) *Rollup {
	return &Rollup{Cfg: cfg, Log: cfg.Logger, store: store, dispatch: d, onRound: onRound, marked: map[models.ID]*mark{}}
}

// Mark asks for a new summary of a chunk; then, if given, runs after it was
// stored.
func (s *Rollup) Mark(user string, chunk models.ID, then ...func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.marked[chunk]
	if m == nil {
		m = &mark{user: user}
		s.marked[chunk] = m
	}
	m.empty = 0
	m.then = append(m.then, then...)
}

// MarkChunk asks for a new summary of a chunk that was looked at. One of which
// nothing is recorded needs not be read again to be counted: whatever was
// recorded since is marked by whom it is from, and has a higher rank.
func (s *Rollup) MarkChunk(c *dispatch.Chunk) {
	if c.View.Version > 0 {
		s.Mark(c.Batch.User, c.ID)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked[c.ID] == nil {
		s.marked[c.ID] = &mark{user: c.Batch.User, empty: c.Size}
	}
}

// Pending returns how many chunks are marked for a new summary.
func (s *Rollup) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.marked) + s.running
}

// Run renews what is marked, again and again, until ctx ends, and once more then.
func (s *Rollup) Run(ctx context.Context) {
	t := time.NewTimer(s.Cfg.Renewal)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			began := time.Now()
			if err := s.Flush(ctx); err != nil && ctx.Err() == nil {
				s.Log.Warn("summaries could not be renewed; they stay marked", "err", err)
			}
			// Counting may not take more than a third of the time from the mail.
			t.Reset(max(s.Cfg.Renewal, min(2*time.Since(began), maxRenewal)))
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if err := s.Flush(last); err != nil {
				s.Log.Warn("summaries could not be renewed before the stop; the agenda does it later", "err", err)
			}
			return
		}
	}
}

// Flush renews everything that is marked when it begins.
func (s *Rollup) Flush(ctx context.Context) error {
	s.one.Lock()
	defer s.one.Unlock()
	s.mu.Lock()
	work := s.marked
	s.marked = map[models.ID]*mark{}
	s.running = len(work)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running = 0
		s.mu.Unlock()
	}()
	if len(work) == 0 {
		return nil
	}
	fresh, err := s.count(ctx, work)
	if err == nil {
		err = s.write(ctx, fresh)
	}
	if err != nil {
		for id, m := range work { // Nothing is forgotten
			s.Mark(m.user, id, m.then...)
		}
		return err
	}
	for _, m := range work {
		for _, f := range m.then {
			f()
		}
	}
	return nil
}

func (s *Rollup) count(ctx context.Context, work map[models.ID]*mark) ([]models.ChunkSummary, error) {
	var mu sync.Mutex
	out := make([]models.ChunkSummary, 0, len(work))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.atOnce())
	add := func(user string, chunk models.ID, sum models.Summary) {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, models.ChunkSummary{User: user, Chunk: chunk, Summary: sum})
	}
	for id, m := range work {
		if m.empty > 0 {
			add(m.user, id, models.Resolve(m.empty, nil, nil).Summary())
			continue
		}
		g.Go(func() error {
			c, err := s.dispatch.Load(ctx, id)
			if err != nil {
				_, err = s.dispatch.SkipCorrupt(id, err)
				return err
			}
			add(m.user, id, c.View.Summary())
			return nil
		})
	}
	return out, g.Wait()
}

// write stores chunk summaries and renews the sums above them, from the leaves
// up.
func (s *Rollup) write(ctx context.Context, fresh []models.ChunkSummary) error {
	const atOnce = 500
	for from := 0; from < len(fresh); from += atOnce {
		if err := s.store.PutSummaries(ctx, fresh[from:min(from+atOnce, len(fresh))]...); err != nil {
			return err
		}
	}
	for _, level := range models.Levels {
		spans := map[models.Span]bool{}
		for i := range fresh {
			spans[models.SpanOf(fresh[i].User, level, fresh[i].Chunk.Time())] = true
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(rollUpAtOnce)
		for span := range spans {
			g.Go(func() error {
				_, err := s.store.RollUp(ctx, span)
				if err != nil {
					_, err = s.dispatch.SkipCorrupt(models.MinID(span.Start), err)
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}
