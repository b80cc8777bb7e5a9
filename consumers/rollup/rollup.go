// Package rollup publishes changes in the feeds of updates. It keeps the summaries of chunks and
// the sums above them, and checks them by recounts.
package rollup

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// Rollup renews the summaries of marked chunks, each at most once per Renewal, and then
// the sums above them. Its methods may be called concurrently.
//
// Marks are kept in memory. After a crash, chunks are marked again. The agenda entry of a batch marks those of a
// dispatch. A post marks those of its events, because it is marked as processed only after the summary was stored. The
// rounds of RunChecks renew what is out of date anyway.
type Rollup struct {
	cfg       Config
	log       *slog.Logger
	store     Store
	chunks    *dispatch.Chunks
	feed      *feed.Writer
	onRound   func(*Round)
	counted   func(context.Context, []models.ChunkSummary)
	published func(users []string)

	mu     sync.Mutex
	marked map[models.ID]*mark
	work   map[models.ID]*mark // chunks that are being renewed
	one    chan struct{}       // holds a value while Flush works
}

// mark says that the summary of a chunk has to be renewed.
type mark struct {
	user  string
	since time.Time // when the chunk was marked first
	then  []func()  // called after the summary was stored
	known *counted  // nil: the chunk has to be read
}

// counted is a chunk that was counted.
type counted struct {
	models.ChunkSummary
	view models.FeedView
	of   int // number of chunks of the batch

	again bool // it has to be read once more: its caller may count it without what is stored during the call
}

// countedFrom counts a chunk.
func countedFrom(c *dispatch.Chunk) *counted {
	return &counted{
		ChunkSummary: models.ChunkSummary{User: c.Batch.User, Chunk: c.ID, Summary: c.Summary()},
		view:         c.View.ForFeed(),
		of:           c.Batch.Chunks,
	}
}

// countAtOnce is how many chunks are counted at once. The record of a chunk takes
// megabytes.
const countAtOnce = 4

// atOnce returns how many chunks are counted at once. Counting from an embedded store
// mostly computes, so it leaves one CPU to other work.
func (s *Rollup) atOnce() int {
	if s.cfg.Sole {
		return priority.Parallelism()
	}
	return max(countAtOnce, runtime.GOMAXPROCS(0))
}

// putAtOnce is how many summaries are stored at once.
const putAtOnce = 500

// rollUpAtOnce is how many sums are renewed at once.
const rollUpAtOnce = 16

// maxRenewal is the longest pause between renewals under load.
const maxRenewal = 10 * time.Second

// Config configures a Rollup.
type Config = dispatch.Config

// Store is the part of models.Store that a Rollup needs.
type Store interface {
	models.SummaryStore
	models.FeedStore
	Users(ctx context.Context) ([]models.User, error)
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error)
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// New returns a Rollup. RunChecks calls onRound with the result of the newest round.
func New(cfg Config, store Store, chunks *dispatch.Chunks, onRound func(*Round)) *Rollup {
	return &Rollup{
		cfg:     cfg,
		log:     cfg.Logger,
		store:   store,
		chunks:  chunks,
		feed:    feed.NewWriter(store),
		onRound: onRound,
		marked:  map[models.ID]*mark{},
		one:     make(chan struct{}, 1),
	}
}

// OnCounted has f called with the summaries that were stored, before Run.
func (s *Rollup) OnCounted(f func(context.Context, []models.ChunkSummary)) { s.counted = f }

// OnPublished has f called, before Run, with the users to whose feeds a renewal has appended or may have appended.
// It must not wait.
func (s *Rollup) OnPublished(f func(users []string)) { s.published = f }

// Mark implements dispatch.SummaryMarks.
func (s *Rollup) Mark(user string, chunk models.ID, then ...func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.marked[chunk]
	if m == nil {
		m = &mark{user: user, since: time.Now()}
		s.marked[chunk] = m
	}
	m.known = nil
	m.then = append(m.then, then...)
}

// MarkChunk implements dispatch.SummaryMarks. Some chunks are not read again to be counted: those without entries and
// facts, and those that this process accepted and sent. A process that adds an entry or a fact marks the chunk, too, and
// that summary has a higher version.
func (s *Rollup) MarkChunk(c *dispatch.Chunk) {
	if c.View.Version > 0 && !c.Counted() {
		s.Mark(c.Batch.User, c.ID)
		return
	}
	known := countedFrom(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := s.marked[c.ID]; {
	case m == nil:
		s.marked[c.ID] = &mark{user: c.Batch.User, since: time.Now(), known: known}
	case m.known != nil && m.known.Summary.Version < known.Summary.Version:
		m.known = known
	}
}

// Pending returns how many chunks are marked for a new summary.
func (s *Rollup) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.marked) + len(s.work)
}

// Run renews marked summaries until ctx ends, and once more then.
func (s *Rollup) Run(ctx context.Context) {
	t := time.NewTimer(s.cfg.Renewal)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			began := time.Now()
			if err := s.Flush(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("cannot renew summaries; will retry", "err", err)
			}
			// Counting takes a third of the time at most.
			t.Reset(max(s.cfg.Renewal, min(2*time.Since(began), maxRenewal)))
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err := s.Flush(last)
			if err == nil && s.Pending() > 0 { // they are read again: see AwaitsOutcome
				models.Pause(last, dispatch.LateOutcome)
				err = s.Flush(last)
			}
			if err != nil {
				s.log.Warn("cannot renew summaries before the stop; the agenda will do so later", "err", err)
			}
			return
		}
	}
}

// flushAtOnce is how many chunks are renewed together. It bounds the memory of a flush.
const flushAtOnce = 2000

// Flush renews the summaries that are marked when it begins, after another Flush that runs.
func (s *Rollup) Flush(ctx context.Context) error {
	select {
	case s.one <- struct{}{}:
		defer func() { <-s.one }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	work := s.marked
	s.marked, s.work = map[models.ID]*mark{}, work
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.work = nil
		s.mu.Unlock()
	}()
	// Chunks of the same time share sums.
	ids := slices.SortedFunc(maps.Keys(work), models.ID.Compare)
	for some := range slices.Chunk(ids, flushAtOnce) {
		if err := s.renewMarked(ctx, work, some); err != nil {
			s.remark(work)
			return err
		}
	}
	return nil
}

// renewMarked renews the summaries of some of the marked chunks, and takes them from work. Chunks that have to wait are
// marked again.
func (s *Rollup) renewMarked(ctx context.Context, work map[models.ID]*mark, ids []models.ID) error {
	chunks, err := s.count(ctx, work, ids)
	if err != nil {
		return err
	}
	held, err := s.publish(ctx, chunks)
	if err != nil {
		return err
	}
	chunks = slices.DeleteFunc(chunks, func(c counted) bool { return held[c.User] })
	if err := s.write(ctx, chunks); err != nil {
		return err
	}
	left, then := map[models.ID]*mark{}, []func(){}
	s.mu.Lock()
	for _, id := range ids {
		m := work[id]
		if held[m.user] {
			left[id] = m
		} else {
			then = append(then, m.then...)
		}
		delete(work, id)
	}
	s.mu.Unlock()
	s.remark(left)
	for i := range chunks {
		if c := &chunks[i]; c.again {
			s.Mark(c.User, c.Chunk)
		}
	}
	for _, f := range then {
		f()
	}
	return nil
}

// remark marks chunks again that could not be renewed.
func (s *Rollup) remark(work map[models.ID]*mark) {
	for id, m := range work {
		s.Mark(m.user, id, m.then...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, m := range work {
		s.marked[id].since = m.since
	}
}

// Lag returns how long the chunk that was marked first waits for its updates to be published.
func (s *Rollup) Lag(now time.Time) (lag time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, work := range []map[models.ID]*mark{s.marked, s.work} {
		for _, m := range work {
			lag = max(lag, now.Sub(m.since))
		}
	}
	return lag
}

// count returns the new summaries of some of the marked chunks.
func (s *Rollup) count(ctx context.Context, work map[models.ID]*mark, ids []models.ID) ([]counted, error) {
	var mu sync.Mutex
	out := make([]counted, 0, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.atOnce())
	for _, id := range ids {
		if known := work[id].known; known != nil {
			mu.Lock()
			out = append(out, *known)
			mu.Unlock()
			continue
		}
		g.Go(func() error {
			c, err := s.chunks.Load(ctx, id)
			if err != nil {
				_, err = s.chunks.SkipCorrupt(id, err)
				return err
			}
			one := countedFrom(c)
			one.again = c.AwaitsOutcome(time.Now(), s.cfg.Recheck)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, *one)
			return nil
		})
	}
	return out, g.Wait()
}

// publishAtOnce is how many feeds are appended to at once.
const publishAtOnce = 16

// publish appends the changes of chunks to the feeds of their users. That is done before the
// summaries are stored: a chunk whose summary is up to date is not marked after a crash. It
// returns the users whose feed this process cannot write now: their summaries have to wait. A
// damaged feed is logged, and does not hold up the summaries.
func (s *Rollup) publish(ctx context.Context, chunks []counted) (held map[string]bool, err error) {
	users := map[string][]feed.Chunk{}
	for i := range chunks {
		c := &chunks[i]
		if c.view.Version > 0 {
			users[c.User] = append(users[c.User], feed.Chunk{ID: c.Chunk, View: c.view, Of: c.of})
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(publishAtOnce)
	var mu sync.Mutex
	var done []string
	held = map[string]bool{}
	for user, chunks := range users {
		g.Go(func() error {
			err := s.feed.Publish(ctx, user, chunks)
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				done = append(done, user)
				return nil
			case errors.Is(err, models.ErrDamaged):
				s.log.Error("the feed of updates of a user is damaged; its updates are missing", "user_id", user, "err", err)
				return nil
			case errors.Is(err, models.ErrNewer), errors.Is(err, models.ErrInvalid):
				s.log.Warn("cannot write the feed of updates of a user; will retry", "user_id", user, "err", err)
				mu.Lock()
				defer mu.Unlock()
				held[user] = true
				return nil
			}
			return err
		})
	}
	err = g.Wait()
	if s.published != nil && len(done) > 0 {
		s.published(done)
	}
	return held, err
}

// write stores chunk summaries and renews the sums above them, from the lowest level up.
func (s *Rollup) write(ctx context.Context, chunks []counted) error {
	sums := make([]models.ChunkSummary, len(chunks))
	for i := range chunks {
		sums[i] = chunks[i].ChunkSummary
	}
	for some := range slices.Chunk(sums, putAtOnce) {
		if err := s.store.PutSummaries(ctx, some...); err != nil {
			return err
		}
	}
	if s.counted != nil {
		s.counted(ctx, sums)
	}
	for _, level := range models.Levels {
		spans := map[models.Span]bool{}
		for i := range sums {
			spans[models.SpanOf(sums[i].User, level, sums[i].Chunk.Time())] = true
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(rollUpAtOnce)
		for span := range spans {
			g.Go(func() error {
				err := s.store.RollUp(ctx, span)
				if err != nil {
					_, err = s.chunks.SkipCorrupt(models.MinID(span.Start), err)
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
