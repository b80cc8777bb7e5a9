package consumers

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// The agenda finds everything unfinished again: batches that were never
// announced, messages that the broker lost, attempts of workers that died,
// evidence windows and deadlines that ended, posts that nobody worked off.

const (
	leaseTime    = 15 * time.Second
	overlap      = 3 * time.Second // read again at every look: writes take a moment to be seen
	agendaAtOnce = 16              // chunks or batches looked at together
	firstLook    = 24 * time.Hour
	mostPatience = 10 // in rechecks: how rarely something that waits is looked at
)

// shard is what this process remembers of one shard of the agenda.
type shard struct {
	n         int
	held      bool
	renewed   time.Time
	upTo      time.Time    // entries due before it were handled
	again     [2]time.Time // entries due before it were read again, each with a lag of its own
	handled   handled
	inboxFrom time.Time // posts before it are worked off
	swept     time.Time
	ahead     time.Time // when it was asked last whether messages wait
	idle      bool      // and none did

	oldestPost, readTo atomic.Int64 // unix ms, for the metrics; 0: none, or not held
}

// agenda works all shards that no other worker holds, until ctx ends.
func (e *Engine) agenda(ctx context.Context) {
	t := time.NewTicker(e.cfg.AgendaPoll)
	defer t.Stop()
	for {
		for _, s := range e.shards {
			if ctx.Err() != nil {
				break
			}
			if err := e.workShard(ctx, s); err != nil && ctx.Err() == nil {
				e.log.Warn("agenda will be read again", "shard", s.n, "err", err)
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			e.giveUpLeases()
			return
		}
	}
}

func (s *shard) lease() string { return "agenda." + strconv.Itoa(s.n) }

func (e *Engine) giveUpLeases() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, s := range e.shards {
		if s.held {
			_, _ = e.store.Lease(ctx, s.lease(), e.cfg.Worker, 0) // it ends by itself otherwise
			s.held = false
		}
	}
}

// workShard reads a shard once: what is due, what slow clocks wrote late, and
// the posts that were not worked off.
func (e *Engine) workShard(ctx context.Context, s *shard) error {
	if err := e.hold(ctx, s); err != nil || !s.held {
		return err
	}
	now := time.Now()
	if err := e.handleDue(ctx, s, s.upTo.Add(-overlap), now); err != nil {
		return err
	}
	s.upTo = now
	s.readTo.Store(now.UnixMilli())
	for i, lag := range againAfter {
		if late := now.Add(-lag); late.Sub(s.again[i]) > lag/10 {
			if err := e.handleDue(ctx, s, s.again[i], late); err != nil {
				return err
			}
			s.again[i] = late
		}
	}
	s.handled.forget(now.Add(-models.LateWriters - 2*time.Minute))
	// What waits in a long queue is looked at rarely. When the queues have become
	// empty it may have been lost with them, and is looked at before its time.
	if now.Sub(s.ahead) >= e.cfg.Recheck/2 {
		s.ahead = now
		idle := e.idle(ctx)
		was := s.idle
		if s.idle = idle; idle && !was {
			if err := e.handle(ctx, s, now, now.Add(mostPatience*e.cfg.Recheck), false); err != nil {
				return err
			}
		}
	}
	if now.Sub(s.swept) >= e.cfg.InboxAge/2 {
		if err := e.sweepInbox(ctx, s, now); err != nil {
			return err
		}
		s.swept = now
	}
	return nil
}

// hold takes or renews the lease of a shard. Two workers that both believe they
// hold it do double work and no harm.
func (e *Engine) hold(ctx context.Context, s *shard) error {
	now := time.Now()
	if s.held && now.Sub(s.renewed) < leaseTime/3 {
		return nil
	}
	had := s.held
	held, err := e.store.Lease(ctx, s.lease(), e.cfg.Worker, leaseTime)
	if err != nil {
		s.held = false
		return err
	}
	s.held, s.renewed = held, now
	if !held {
		s.readTo.Store(0)
		s.oldestPost.Store(0)
		return nil
	}
	if had {
		// The mark waits for posts that are still to be worked off.
		return e.store.SetAgendaMark(ctx, s.n, minTime(s.upTo, s.inboxFrom))
	}
	mark, err := e.store.AgendaMark(ctx, s.n)
	if err != nil {
		s.held = false
		return err
	}
	e.takenOver.Store(now.UnixMilli())
	from := mark.Add(-models.LateWriters)
	if mark.IsZero() {
		from = now.Add(-firstLook)
	}
	s.upTo, s.again, s.inboxFrom, s.swept = from, [2]time.Time{from, from}, from, time.Time{}
	s.handled.forget(now.Add(time.Hour))
	return nil
}

// againAfter are the lags with which everything is read again, for writers whose
// write came late or whose clock is slow.
var againAfter = [2]time.Duration{30 * time.Second, models.LateWriters}

// handleDue looks at the entries of a shard that are due in [from, to) and were
// not handled before.
func (e *Engine) handleDue(ctx context.Context, s *shard, from, to time.Time) error {
	return e.handle(ctx, s, from, to, true)
}

// idle reports whether no message about mail waits in the broker.
func (e *Engine) idle(ctx context.Context) bool {
	depths, err := e.broker.Depths(ctx)
	if err != nil {
		return false
	}
	for _, d := range depths {
		if d.Queue.Kind != models.EventMessage && d.Ready > 0 {
			return false
		}
	}
	return true
}

// handle looks at entries. Those that are looked at before their time are not
// remembered: at their time they are looked at again.
func (e *Engine) handle(ctx context.Context, s *shard, from, to time.Time, remember bool) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(agendaAtOnce)
	once := map[models.ID]bool{}
	for entry, err := range e.store.Agenda(ctx, s.n, from, to) {
		if err != nil {
			_ = g.Wait()
			return err
		}
		if gctx.Err() != nil {
			break
		}
		if s.handled.has(&entry) {
			continue
		}
		if !remember {
			if entry.Round < 2 || once[entry.ID] { // a young one is due soon anyway
				continue
			}
			once[entry.ID] = true
		}
		g.Go(func() error {
			err := e.lookAt(gctx, entry)
			if err == nil && remember {
				s.handled.add(&entry)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// handled remembers entries, by the minute they were due. It only spares work:
// an entry that it forgot is handled again.
type handled struct {
	mu      sync.Mutex
	minutes map[int64]map[uint64]struct{}
}

// maxHandled bounds what is remembered of a minute.
const maxHandled = 100_000

func (h *handled) key(entry *models.AgendaEntry) (minute int64, key uint64) {
	f := fnv.New64a()
	_, _ = f.Write(entry.ID[:])
	_, _ = f.Write([]byte(entry.Kind))
	return entry.Due.Unix() / 60, f.Sum64() ^ uint64(entry.Due.UnixMilli())
}

func (h *handled) has(entry *models.AgendaEntry) bool {
	minute, key := h.key(entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.minutes[minute][key]
	return ok
}

func (h *handled) add(entry *models.AgendaEntry) {
	minute, key := h.key(entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.minutes == nil {
		h.minutes = map[int64]map[uint64]struct{}{}
	}
	m := h.minutes[minute]
	if m == nil {
		m = map[uint64]struct{}{}
		h.minutes[minute] = m
	}
	if len(m) < maxHandled {
		m[key] = struct{}{}
	}
}

func (h *handled) forget(before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for minute := range h.minutes {
		if minute < before.Unix()/60 {
			delete(h.minutes, minute)
		}
	}
}

// lookAt handles one agenda entry, and writes it again for later as long as
// something is unfinished. When it is written for is derived from the batch's
// own time, so that an entry handled twice is written again once.
func (e *Engine) lookAt(ctx context.Context, entry models.AgendaEntry) error {
	b, err := e.batch(ctx, entry.ID.Batch())
	if isNotFound(err) {
		return e.lookAtIntake(ctx, entry)
	}
	if err != nil {
		return err
	}
	var found outlook
	if entry.Kind == models.LookAtChunk {
		found, err = e.advance(ctx, entry.ID)
	} else {
		found, err = e.lookAtChunks(ctx, b, entry)
	}
	// Something that waits in a long queue is announced ever more rarely.
	patience := min(time.Duration(entry.Round+1), mostPatience) * e.cfg.Recheck
	next := found.next(time.Now().Add(patience))
	if err != nil || next.IsZero() {
		return err
	}
	entry.Round++
	entry.Due = e.grid(b.Created(), next)
	return e.store.Schedule(ctx, entry)
}

// grid is the first multiple of Recheck after created that is not before t.
func (e *Engine) grid(created, t time.Time) time.Time {
	steps := (t.Sub(created) + e.cfg.Recheck - 1) / e.cfg.Recheck
	return created.Add(max(steps, 1) * e.cfg.Recheck)
}

// lookAtIntake handles a batch that does not exist: it is being stored, or its
// client or our process went away in the middle.
func (e *Engine) lookAtIntake(ctx context.Context, entry models.AgendaEntry) error {
	created := entry.ID.Batch().Time()
	if time.Since(created) < e.cfg.IntakeGrace {
		entry.Due = e.grid(created, time.Now().Add(e.cfg.Recheck))
		return e.store.Schedule(ctx, entry)
	}
	gone, err := e.store.AbandonBatch(ctx, entry.ID.Batch(), entry.Chunks)
	if err != nil {
		return err
	}
	if gone {
		e.cleared.Add(1)
		e.log.Info("incomplete batch cleared away", "batch_id", entry.ID.Batch().String(), "chunks", entry.Chunks)
		return nil
	}
	return e.lookAt(ctx, entry)
}

// outlook is what is still open about a chunk or a batch.
type outlook struct {
	announced bool      // something is to be sent, and was announced
	until     time.Time // the first wait that ends; zero: none
}

func (o outlook) or(p outlook) outlook {
	o.announced = o.announced || p.announced
	if o.until.IsZero() || !p.until.IsZero() && p.until.Before(o.until) {
		o.until = p.until
	}
	return o
}

// next is when to look again, given when to check on an announcement; zero:
// never.
func (o outlook) next(check time.Time) time.Time {
	if o.announced && (o.until.IsZero() || check.Before(o.until)) {
		return check
	}
	return o.until
}

// lookAtChunks looks at every chunk of a batch that is not finished.
func (e *Engine) lookAtChunks(ctx context.Context, b *models.Batch, entry models.AgendaEntry) (outlook, error) {
	finished := make([]bool, b.Chunks)
	for s, err := range e.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			return outlook{}, err
		}
		if n := s.Chunk.ChunkNumber(); n < len(finished) && s.Summary.Queued == 0 {
			finished[n] = true
		}
	}
	rule := e.journal.Rules().Batch(b)
	if rule.Waits != "" && rule.Cancel == nil && time.Now().Add(e.cfg.Recheck).Before(b.Deadline) {
		return outlook{until: time.Now().Add(e.cfg.Recheck)}, nil // as a whole, whatever its chunks wait for
	}
	if len(rule.Releases) > 0 {
		clear(finished) // what has ended may be let go again
	}
	if entry.Round == 0 && finished[0] && e.mayHaveCrashed() {
		e.summaries.mark(b.User, b.ID) // the sums above may not have been renewed
	}
	var mu sync.Mutex
	var all outlook
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n, ok := range finished {
		if ok {
			continue
		}
		g.Go(func() error {
			o, err := e.advance(ctx, b.ID.Chunk(n))
			mu.Lock()
			all = all.or(o)
			mu.Unlock()
			return err
		})
	}
	return all, g.Wait()
}

// mayHaveCrashed reports whether a worker, this one or the one that held a shard
// before, stopped so recently that sums of finished batches may be stale.
func (e *Engine) mayHaveCrashed() bool {
	return time.Since(time.UnixMilli(e.takenOver.Load())) < 2*e.cfg.Recheck+time.Minute
}

// advance does for a chunk what needs no worker slot: it appends the endings
// that are due, announces what is to be sent, marks the summary, and says what
// is still open.
func (e *Engine) advance(ctx context.Context, id models.ID) (outlook, error) {
	for {
		c, err := e.look(ctx, id)
		if err != nil {
			return outlook{}, err
		}
		now := time.Now()
		steps, err := e.plan(ctx, c, now)
		if err != nil {
			return outlook{}, err
		}
		changed, err := e.close(ctx, c, steps)
		if err != nil {
			return outlook{}, err
		}
		if changed {
			continue // the endings may have changed what follows
		}
		e.summaries.mark(c.batch.User, id)
		return e.announce(c, steps, now), nil
	}
}

// announce passes on every step of a chunk that is due before the agenda looks
// again.
func (e *Engine) announce(c *chunk, steps []step, now time.Time) outlook {
	var out outlook
	for i := range steps {
		st := &steps[i]
		switch st.do {
		case wait:
			out = out.or(outlook{until: st.until, announced: e.askAbout(c, st)})
		case call:
			if at := st.earliest(); at.After(now.Add(e.cfg.Recheck)) {
				out = out.or(outlook{until: at})
				continue
			}
			if st.retry == 0 && st.split == 0 {
				e.wake(e.hard, c.message(models.Message{Kind: models.BatchMessage}))
			} else {
				e.passOn(c, st, now, "")
			}
			out.announced = true
		case end: // not yet: evidence is being looked up
			out.announced = true
		case nothing:
		}
	}
	return out
}

// sweepInbox announces posts again that were not worked off in time.
func (e *Engine) sweepInbox(ctx context.Context, s *shard, now time.Time) error {
	oldest := now.Add(-e.cfg.InboxAge)
	if e.eventsWaiting(ctx) {
		return nil // they were announced, and are being worked off
	}
	var due []models.Message
	pending := false
	for in, err := range e.store.Pending(ctx, s.n, s.inboxFrom, oldest) {
		if err != nil {
			return err
		}
		if !pending {
			pending, s.inboxFrom = true, in.Received()
			s.oldestPost.Store(in.Received().UnixMilli())
		}
		if e.byName[in.Account] == nil {
			continue
		}
		due = append(due, models.Message{Kind: models.EventMessage, Account: in.Account, ID: in.ID})
		if len(due) >= 5000 {
			break
		}
	}
	if !pending {
		s.oldestPost.Store(0)
		s.inboxFrom = maxTime(s.inboxFrom, oldest.Add(-models.LateWriters))
		return nil
	}
	for from := 0; from < len(due); from += 500 {
		e.wake(ctx, due[from:min(from+500, len(due))]...)
	}
	return nil
}

// eventsWaiting reports whether announced posts wait for a worker: announcing
// more would only make the queue longer.
func (e *Engine) eventsWaiting(ctx context.Context) bool {
	depths, err := e.broker.Depths(ctx)
	if err != nil {
		return true // nothing can be announced anyway
	}
	for _, d := range depths {
		if d.Queue.Kind == models.EventMessage {
			return d.Ready > eventRunners*eventsAtOnce
		}
	}
	return false
}

func isNotFound(err error) bool { return errors.Is(err, models.ErrNotFound) }

// newCountdown returns a function that runs f at its n-th call.
func newCountdown(n int, f func()) func() {
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			f()
		}
	}
}
