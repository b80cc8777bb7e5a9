package consumers

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// summaries renews the stored counts of chunks about which something new is
// known, at most once per Renewal for each, and then the sums above them.
//
// Marks are kept in memory. What a crash loses is found again: a dispatch by the
// batch's agenda entry, events by their post, which is marked as worked off
// only after the summary was stored.
type summaries struct {
	e *Engine

	mu      sync.Mutex
	marked  map[models.ID]*mark
	running int // chunks being renewed
	one     sync.Mutex
}

type mark struct {
	user  string
	then  []func() // run when the summary is stored
	empty int      // Recipients of a chunk of which nothing was recorded when it was looked at; 0: to be counted
}

// recountAtOnce is how many chunks are counted at once where that is mostly
// waiting for the store: everything that is known of a chunk takes megabytes. To
// read the embedded store is to compute, which leaves a processor to others.
const recountAtOnce = 4

func (s *summaries) atOnce() int {
	if s.e.cfg.Sole {
		return models.Background
	}
	return max(recountAtOnce, runtime.GOMAXPROCS(0))
}

// maxRenewal is how long a summary may stay marked under load.
const maxRenewal = 10 * time.Second

func newSummaries(e *Engine) *summaries {
	return &summaries{e: e, marked: map[models.ID]*mark{}}
}

// mark asks for a new summary of a chunk; then, if given, runs after it was
// stored.
func (s *summaries) mark(user string, chunk models.ID, then ...func()) {
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

// looked asks for a new summary of a chunk that was looked at. One of which
// nothing is recorded needs not be read again to be counted: whatever was
// recorded since is marked by whom it is from, and has a higher version.
func (s *summaries) looked(c *chunk) {
	if c.view.Version > 0 {
		s.mark(c.batch.User, c.id)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked[c.id] == nil {
		s.marked[c.id] = &mark{user: c.batch.User, empty: c.size}
	}
}

func (s *summaries) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.marked) + s.running
}

func (s *summaries) run(ctx context.Context) {
	t := time.NewTimer(s.e.cfg.Renewal)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			began := time.Now()
			if err := s.flush(ctx); err != nil && ctx.Err() == nil {
				s.e.log.Warn("summaries could not be renewed; they stay marked", "err", err)
			}
			// Counting may not take more than a third of the time from the mail.
			t.Reset(max(s.e.cfg.Renewal, min(2*time.Since(began), maxRenewal)))
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			if err := s.flush(last); err != nil {
				s.e.log.Warn("summaries could not be renewed before the stop; the agenda does it later", "err", err)
			}
			return
		}
	}
}

// flush renews everything that is marked when it begins.
func (s *summaries) flush(ctx context.Context) error {
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
	fresh, err := s.recount(ctx, work)
	if err == nil {
		err = s.store(ctx, fresh)
	}
	if err != nil {
		for id, m := range work { // Nothing is forgotten
			s.mark(m.user, id, m.then...)
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

func (s *summaries) recount(ctx context.Context, work map[models.ID]*mark) ([]models.ChunkSummary, error) {
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
			c, err := s.e.look(ctx, id)
			if err != nil {
				_, err = s.e.spared(id, err)
				return err
			}
			add(m.user, id, c.view.Summary())
			return nil
		})
	}
	return out, g.Wait()
}

// store writes chunk summaries and renews the sums above them, from the leaves
// up.
func (s *summaries) store(ctx context.Context, fresh []models.ChunkSummary) error {
	const atOnce = 500
	for from := 0; from < len(fresh); from += atOnce {
		if err := s.e.store.PutSummaries(ctx, fresh[from:min(from+atOnce, len(fresh))]...); err != nil {
			return err
		}
	}
	for _, level := range models.Levels {
		spans := map[models.Span]bool{}
		for i := range fresh {
			spans[models.SpanOf(fresh[i].User, level, fresh[i].Chunk.Time())] = true
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(storeAtOnce)
		for span := range spans {
			g.Go(func() error {
				_, err := s.e.store.RollUp(ctx, span)
				if err != nil {
					_, err = s.e.spared(models.MinID(span.Start), err)
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
