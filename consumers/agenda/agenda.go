package agenda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// The agenda finds all unfinished work: unannounced batches, messages that the broker lost, attempts of dead workers,
// expired evidence windows and deadlines, and unprocessed posts.

// The sizes and times of the agenda.
const (
	overlap          = 3 * time.Second // read again each time, because writes take a moment to become visible
	reconcileAtOnce  = 16              // chunks or batches reconciled at once
	firstRead        = 24 * time.Hour
	firstBacklog     = time.Hour // how much of that is announced without a reconcile
	maxRecheckFactor = 10        // in rechecks: the longest pause between two reconciles of a waiting entry
	pollParts        = 20        // the shortest pause between two reads is this part of a poll
)

// shard is this process's state of one shard of the agenda.
type shard struct {
	n    int
	held atomic.Bool

	lease   sync.Mutex // held while the lease is acquired, renewed or released
	renewed time.Time

	marked    time.Time    // when the mark was last saved
	upTo      time.Time    // entries due before it were handled
	next      time.Time    // when the first entry after upTo is due; zero: not within a poll
	reread    [2]time.Time // entries due before it were read again, each with a lag of its own
	handled   handled
	inboxFrom time.Time // posts before it are processed
	swept     time.Time
	ahead     time.Time // when the broker last reported whether messages wait
	idle      bool      // whether none did

	recovered [2]atomic.Int64 // by lane, unix ns: the newest recovery of a provider after which unsent mail was requeued

	oldestPost, readTo atomic.Int64 // unix ms, for the metrics; 0: none, or not held
	mark               atomic.Int64 // unix ms: up to where it was read when it was acquired
}

// Run works on the shards that this worker holds, up to its share of all, until ctx ends.
func (a *Agenda) Run(ctx context.Context) {
	var read time.Time // when all shards were last read
	for {
		changed := a.Follower.Changed()
		now := time.Now()
		all := now.Sub(read) >= a.cfg.AgendaPoll
		if all {
			read = now
			a.acquireShards(ctx)
		}
		for _, s := range a.shards {
			a.releaseSurplus(ctx) // the work on each shard may take long
			if ctx.Err() != nil {
				break
			}
			if !all && (s.next.IsZero() || s.next.After(now)) {
				continue
			}
			if err := a.workShard(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("agenda not read completely; will retry", "shard", s.n, "err", err)
			}
		}
		select {
		case <-time.After(a.pause(read)):
		case <-changed:
			read = time.Time{}
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			for _, s := range a.shards {
				a.releaseShard(ctx, s)
			}
			return
		}
	}
}

// pause returns how long to wait after all shards were read at a time: until the next poll, or until an entry is due
// before that.
func (a *Agenda) pause(read time.Time) time.Duration {
	next := read.Add(a.cfg.AgendaPoll)
	for _, s := range a.shards {
		if s.held.Load() && !s.next.IsZero() {
			next = models.EarlierOf(next, s.next)
		}
	}
	return max(time.Until(next), a.cfg.AgendaPoll/pollParts)
}

// workShard reads a shard once: entries that are due, entries that slow clocks wrote
// late, and posts that were not processed.
func (a *Agenda) workShard(ctx context.Context, s *shard) error {
	if !s.held.Load() {
		return nil // another worker holds it
	}
	now := time.Now()
	if now.Sub(s.marked) >= a.cfg.Lease/3 {
		if err := a.saveMark(ctx, s); err != nil {
			return err
		}
		s.marked = now
	}
	err := a.reconcileDue(ctx, s, s.upTo.Add(-overlap), now)
	next := s.next
	defer func() { s.next = next }() // a second reading looks at the past
	switch {
	case err == nil:
		s.upTo = now
		s.readTo.Store(now.UnixMilli())
	case !errors.Is(err, errInPart):
		return err
	}
	if late := a.reread(ctx, s, now); late != nil {
		if !errors.Is(late, errInPart) {
			return late
		}
		err = late
	}
	// Entries that are read again are kept in mind, even if a part of the store is down.
	oldest := models.EarlierOf(s.upTo, now.Add(-models.LateWriters))
	oldest = models.EarlierOf(oldest, models.EarlierOf(s.reread[0], s.reread[1]))
	s.handled.forget(oldest.Add(-2 * time.Minute))
	if err := a.requeueLost(ctx, s, now); err != nil {
		return err
	}
	if err := a.sweepInbox(ctx, s, now); err != nil {
		return err
	}
	return err
}

// reread reconciles entries of a shard that were written late. It returns an errInPart only
// after it has read everything.
func (a *Agenda) reread(ctx context.Context, s *shard, now time.Time) (err error) {
	for i, lag := range rereadLags {
		upTo := now.Add(-lag)
		if upTo.Sub(s.reread[i]) <= lag/10 {
			continue
		}
		switch late := a.reconcileDue(ctx, s, s.reread[i], upTo); {
		case late == nil:
			s.reread[i] = upTo
		case !errors.Is(late, errInPart):
			return late
		default:
			err = late
		}
	}
	return err
}

// requeueLost requeues entries early if the queues have become empty. An entry whose message
// waits in a long queue is reconciled rarely, and its message may be lost.
func (a *Agenda) requeueLost(ctx context.Context, s *shard, now time.Time) error {
	if now.Sub(s.ahead) < a.cfg.Recheck/2 {
		return nil
	}
	s.ahead = now
	idle := a.Idle(ctx)
	if idle && !s.idle {
		// Entries of the first rounds are due soon anyway.
		rare := func(e *models.AgendaEntry) bool { return e.Round >= 2 }
		if err := a.reconcileEntries(ctx, s, now, now.Add(maxRecheckFactor*a.cfg.Recheck), rare); err != nil {
			return err
		}
	}
	s.idle = idle
	return nil
}

// sweepInbox announces posts of a shard again that were not processed in time.
func (a *Agenda) sweepInbox(ctx context.Context, s *shard, now time.Time) error {
	if now.Sub(s.swept) < a.cfg.InboxAge/2 {
		return nil
	}
	next, oldest, err := a.Inbox.Sweep(ctx, s.n, s.inboxFrom, now)
	if err != nil {
		return err
	}
	s.inboxFrom = next
	s.oldestPost.Store(0)
	if !oldest.IsZero() {
		s.oldestPost.Store(oldest.UnixMilli())
	}
	s.swept = now
	return nil
}

// errInPart reports that some entries were not reconciled, for example because a part of
// the store is down. They are found again, and other work need not wait for them.
var errInPart = errors.New("some entries were not reconciled")

// rereadLags are the lags with which everything is read again, for writes that arrived
// late or have the time of a slow clock.
var rereadLags = [2]time.Duration{30 * time.Second, models.LateWriters}

// reconcileDue reconciles the entries of a shard that are due in [from, to) and were not
// handled before.
func (a *Agenda) reconcileDue(ctx context.Context, s *shard, from, to time.Time) error {
	return a.reconcileEntries(ctx, s, from, to, nil)
}

// RunResumed requeues entries early whenever a command resumes mail, until ctx ends. It
// runs beside the agenda's other work, because very much mail may have waited.
func (a *Agenda) RunResumed(ctx context.Context) {
	resumptions := a.Follower.Rules().Resumptions()
	for {
		changed := a.Follower.Changed()
		if n := a.Follower.Rules().Resumptions(); n != resumptions {
			before := resumptions
			resumptions = n
			a.probe()
			if err := a.requeueEarly(ctx, before); err != nil && ctx.Err() == nil {
				a.log.Warn("resumed mail is delayed by minutes", "err", err)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// requeueEarly reconciles entries that a command after a number resumed. Their next reconcile
// is due within two rechecks, or within maxRecheckFactor if a long queue held them.
func (a *Agenda) requeueEarly(ctx context.Context, after int) error {
	now, rules := time.Now(), a.Follower.Rules()
	resumed := func(e *models.AgendaEntry) bool { return rules.ResumedAfter(after, e.User) }
	for _, s := range a.shards {
		if !s.held.Load() {
			continue
		}
		if err := a.reconcileEntries(ctx, s, now, now.Add((maxRecheckFactor+1)*a.cfg.Recheck), resumed); err != nil {
			return err
		}
	}
	return nil
}

// Idle reports whether the broker holds no messages about mail.
func (a *Agenda) Idle(ctx context.Context) bool {
	depths, err := a.Broker.Depths(ctx)
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

// reconcileEntries reconciles the entries that are due in [from, to). With early it reconciles
// those it reports true for before they are due, and does not mark them as handled: they are
// reconciled again when they are. Without early it also notes when the next entry is due, if that is within a poll.
func (a *Agenda) reconcileEntries(
	ctx context.Context, s *shard, from, to time.Time, early func(*models.AgendaEntry) bool,
) error {
	due := early == nil
	var g errgroup.Group
	g.SetLimit(reconcileAtOnce)
	var failed tally
	once := map[models.ID]bool{}
	upTo := to
	if due {
		s.next, upTo = time.Time{}, to.Add(a.cfg.AgendaPoll)
	}
	for entry, err := range a.Store.Agenda(ctx, s.n, from, upTo) {
		if err != nil {
			_ = g.Wait()
			return err
		}
		if ctx.Err() != nil || !s.held.Load() || failed.all() {
			break
		}
		if due && !entry.Due.Before(to) {
			s.next = entry.Due
			break
		}
		if s.handled.has(&entry) {
			continue
		}
		if !due {
			if once[entry.ID] || !early(&entry) {
				continue
			}
			once[entry.ID] = true
		}
		if a.urgentFirst.pass(ctx); ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := a.reconcile(ctx, entry)
			if err == nil && due {
				s.handled.add(&entry)
				a.ended.forget(entry.ID)
			}
			failed.end(err)
			return nil
		})
	}
	_ = g.Wait() // the tally has the errors
	if err := failed.err(); err != nil {
		return err
	}
	return ctx.Err()
}

// tally counts the results of reconciling entries.
type tally struct {
	mu           sync.Mutex
	good, failed int
	first        error
}

func (l *tally) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.good++
		return
	}
	if l.failed++; l.first == nil {
		l.first = err
	}
}

// all reports whether so many entries failed that the whole store must be down.
func (l *tally) all() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed >= reconcileAtOnce+l.good
}

func (l *tally) err() error {
	all := l.all()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil || all {
		return l.first
	}
	return fmt.Errorf("%w: %w", errInPart, l.first)
}
