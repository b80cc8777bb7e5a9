package consumers

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

// The agenda finds everything unfinished again: batches that were never
// announced, messages that the broker lost, attempts of workers that died,
// evidence windows and deadlines that ended, posts that nobody worked off.

const (
	overlap          = 3 * time.Second // read again at every look: writes take a moment to be seen
	agendaAtOnce     = 16              // chunks or batches looked at together
	firstRead        = 24 * time.Hour
	firstBacklog     = time.Hour // how much of that is announced without a look
	maxRecheckFactor = 10        // in rechecks: how rarely something that waits is looked at
)

// shard is what this process remembers of one shard of the agenda.
type shard struct {
	n    int
	held atomic.Bool

	lease   sync.Mutex // for who takes, renews or gives up the lease
	renewed time.Time

	marked    time.Time    // when it was written down how far this worker is
	upTo      time.Time    // entries due before it were handled
	reread    [2]time.Time // entries due before it were read again, each with a lag of its own
	handled   handled
	inboxFrom time.Time // posts before it are worked off
	swept     time.Time
	ahead     time.Time // when it was asked last whether messages wait
	idle      bool      // and none did

	oldestPost, readTo atomic.Int64 // unix ms, for the metrics; 0: none, or not held
	mark               atomic.Int64 // unix ms: up to where it was read when it was taken over
}

// Run works the shards that no other worker holds, its part of all, until ctx
// ends.
func (a *agenda) Run(ctx context.Context) {
	t := time.NewTicker(a.cfg.Poll)
	defer t.Stop()
	for {
		moved := a.follower.Changed()
		a.acquireShards(ctx)
		for _, s := range a.shards {
			a.releaseSurplus(ctx) // the work on each may take long
			if ctx.Err() != nil {
				break
			}
			if err := a.workShard(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("agenda will be read again", "shard", s.n, "err", err)
			}
		}
		select {
		case <-t.C:
		case <-moved:
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

// workShard reads a shard once: what is due, what slow clocks wrote late, and
// the posts that were not worked off.
func (a *agenda) workShard(ctx context.Context, s *shard) error {
	if !s.held.Load() {
		return nil // somebody else's; it was just asked for
	}
	now := time.Now()
	if now.Sub(s.marked) >= a.cfg.Lease/3 {
		if err := a.saveMark(ctx, s); err != nil {
			return err
		}
		s.marked = now
	}
	err := a.reconcileDue(ctx, s, s.upTo.Add(-overlap), now)
	switch {
	case err == nil:
		s.upTo = now
		s.readTo.Store(now.UnixMilli())
	case !errors.Is(err, errInPart):
		return err
	}
	for i, lag := range rereadLags {
		if late := now.Add(-lag); late.Sub(s.reread[i]) > lag/10 {
			switch late := a.reconcileDue(ctx, s, s.reread[i], late); {
			case late == nil:
				s.reread[i] = now.Add(-lag)
			case !errors.Is(late, errInPart):
				return late
			default:
				err = late
			}
		}
	}
	// What is read again is remembered, however long a part of the store is away.
	s.handled.forget(models.EarlierOf(models.EarlierOf(s.upTo, now.Add(-models.LateWriters)), models.EarlierOf(s.reread[0], s.reread[1])).Add(-2 * time.Minute))
	// What waits in a long queue is looked at rarely. When the queues have become
	// empty it may have been lost with them, and is looked at before its time.
	if now.Sub(s.ahead) >= a.cfg.Recheck/2 {
		s.ahead = now
		idle := a.idle(ctx)
		if idle && !s.idle {
			if err := a.reconcileEntries(ctx, s, now, now.Add(maxRecheckFactor*a.cfg.Recheck), 2); err != nil { // a young one is due soon anyway
				return err
			}
		}
		s.idle = idle
	}
	if now.Sub(s.swept) >= a.cfg.InboxAge/2 {
		next, oldest, err := a.inbox.Sweep(ctx, s.n, s.inboxFrom, now)
		if err != nil {
			return err
		}
		s.inboxFrom = next
		s.oldestPost.Store(0)
		if !oldest.IsZero() {
			s.oldestPost.Store(oldest.UnixMilli())
		}
		s.swept = now
	}
	return err
}

// errInPart: some entries could not be looked at, as where a part of the store is
// away. They are found again; what else is there to do need not wait for them.
var errInPart = errors.New("some entries could not be looked at")

// rereadLags are the lags with which everything is read again, for writers whose
// write came late or whose clock is slow.
var rereadLags = [2]time.Duration{30 * time.Second, models.LateWriters}

// reconcileDue looks at the entries of a shard that are due in [from, to) and were
// not handled before.
func (a *agenda) reconcileDue(ctx context.Context, s *shard, from, to time.Time) error {
	return a.reconcileEntries(ctx, s, from, to, anyRound)
}

// runResumed looks ahead whenever an order lets something go on, until ctx ends: beside
// the agenda's other work, for very much may have waited.
func (a *agenda) runResumed(ctx context.Context) {
	lifted := a.follower.Rules().Resumptions()
	for {
		moved := a.follower.Changed()
		if n := a.follower.Rules().Resumptions(); n != lifted {
			lifted = n
			a.probe()
			if err := a.requeueEarly(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("what was let go on is found within minutes", "err", err)
			}
			continue
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// requeueEarly looks before its time at what an order may have kept waiting: that is
// looked at again within two rechecks, or, where it was in a long queue, at the
// most after maxRecheckFactor.
func (a *agenda) requeueEarly(ctx context.Context) error {
	now := time.Now()
	for _, s := range a.shards {
		if !s.held.Load() {
			continue
		}
		if err := a.reconcileEntries(ctx, s, now, now.Add((maxRecheckFactor+1)*a.cfg.Recheck), 0); err != nil {
			return err
		}
	}
	return nil
}

// Idle reports whether no message about mail waits in the broker.
func (a *agenda) idle(ctx context.Context) bool {
	depths, err := a.broker.Depths(ctx)
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

// anyRound is for entries that are due.
const anyRound = -1

// reconcileEntries looks at entries that were looked at so often before, at least. Those that
// are looked at before their time are not remembered: at their time they are looked
// at again.
func (a *agenda) reconcileEntries(ctx context.Context, s *shard, from, to time.Time, rounds int) error {
	remember := rounds == anyRound
	var g errgroup.Group
	g.SetLimit(agendaAtOnce)
	var failed tally
	once := map[models.ID]bool{}
	for entry, err := range a.store.Agenda(ctx, s.n, from, to) {
		if err != nil {
			_ = g.Wait()
			return err
		}
		if ctx.Err() != nil || !s.held.Load() || failed.all() {
			break
		}
		if s.handled.has(&entry) {
			continue
		}
		if !remember {
			if entry.Round < rounds || once[entry.ID] {
				continue
			}
			once[entry.ID] = true
		}
		if a.urgentFirst.pass(ctx); ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := a.reconcile(ctx, entry)
			if err == nil && remember {
				s.handled.add(&entry)
			}
			failed.end(err)
			return nil
		})
	}
	_ = g.Wait() // failed has the errors
	if err := failed.err(); err != nil {
		return err
	}
	return ctx.Err()
}

// tally counts what became of looking at entries.
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

// all reports whether so much failed that the store is away, and not a part of it.
func (l *tally) all() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed >= agendaAtOnce+l.good
}

func (l *tally) err() error {
	whole := l.all()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil || whole {
		return l.first
	}
	return fmt.Errorf("%w: %w", errInPart, l.first)
}
