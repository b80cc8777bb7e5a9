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

// The agenda finds everything unfinished again: batches that were never
// announced, messages that the broker lost, attempts of workers that died,
// evidence windows and deadlines that ended, posts that nobody worked off.

const (
	overlap          = 3 * time.Second // read again at every look: writes take a moment to be seen
	AgendaAtOnce     = 16              // chunks or batches looked at together
	firstRead        = 24 * time.Hour
	firstBacklog     = time.Hour // how much of that is announced without a look
	MaxRecheckFactor = 10        // in rechecks: how rarely something that waits is looked at
)

// shard is what this process remembers of one shard of the agenda.
type shard struct {
	N    int
	Held atomic.Bool

	lease   sync.Mutex // for who takes, renews or gives up the lease
	renewed time.Time

	marked    time.Time    // when it was written down how far this worker is
	upTo      time.Time    // entries due before it were handled
	reread    [2]time.Time // entries due before it were read again, each with a lag of its own
	Handled   handled
	InboxFrom time.Time // posts before it are worked off
	swept     time.Time
	ahead     time.Time // when it was asked last whether messages wait
	idle      bool      // and none did

	OldestPost, readTo atomic.Int64 // unix ms, for the metrics; 0: none, or not held
	mark               atomic.Int64 // unix ms: up to where it was read when it was taken over
}

// Run works the shards that no other worker holds, its part of all, until ctx
// ends.
func (a *Agenda) Run(ctx context.Context) {
	t := time.NewTicker(a.Cfg.Poll)
	defer t.Stop()
	for {
		moved := a.follower.Changed()
		a.AcquireShards(ctx)
		for _, s := range a.Shards {
			a.ReleaseSurplus(ctx) // the work on each may take long
			if ctx.Err() != nil {
				break
			}
			if err := a.WorkShard(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("agenda will be read again", "shard", s.N, "err", err)
			}
		}
		select {
		case <-t.C:
		case <-moved:
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			for _, s := range a.Shards {
				a.releaseShard(ctx, s)
			}
			return
		}
	}
}

// WorkShard reads a shard once: what is due, what slow clocks wrote late, and
// the posts that were not worked off.
func (a *Agenda) WorkShard(ctx context.Context, s *shard) error {
	if !s.Held.Load() {
		return nil // somebody else's; it was just asked for
	}
	now := time.Now()
	if now.Sub(s.marked) >= a.Cfg.Lease/3 {
		if err := a.saveMark(ctx, s); err != nil {
			return err
		}
		s.marked = now
	}
	err := a.ReconcileDue(ctx, s, s.upTo.Add(-overlap), now)
	switch {
	case err == nil:
		s.upTo = now
		s.readTo.Store(now.UnixMilli())
	case !errors.Is(err, errInPart):
		return err
	}
	for i, lag := range rereadLags {
		if late := now.Add(-lag); late.Sub(s.reread[i]) > lag/10 {
			switch late := a.ReconcileDue(ctx, s, s.reread[i], late); {
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
	s.Handled.Forget(
		models.EarlierOf(
			models.EarlierOf(s.upTo, now.Add(-models.LateWriters)),
			models.EarlierOf(s.reread[0], s.reread[1]),
		).Add(
			-2 * time.Minute,
		),
	)
	// What waits in a long queue is looked at rarely. When the queues have become
	// empty it may have been lost with them, and is looked at before its time.
	if now.Sub(s.ahead) >= a.Cfg.Recheck/2 {
		s.ahead = now
		idle := a.Idle(ctx)
		if idle && !s.idle {
			if err := a.reconcileEntries(ctx, s, now, now.Add(MaxRecheckFactor*a.Cfg.Recheck), 2); err != nil { // a young one is due soon anyway
				return err
			}
		}
		s.idle = idle
	}
	if now.Sub(s.swept) >= a.Cfg.InboxAge/2 {
		next, oldest, err := a.inbox.Sweep(ctx, s.N, s.InboxFrom, now)
		if err != nil {
			return err
		}
		s.InboxFrom = next
		s.OldestPost.Store(0)
		if !oldest.IsZero() {
			s.OldestPost.Store(oldest.UnixMilli())
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

// ReconcileDue looks at the entries of a shard that are due in [from, to) and were
// not handled before.
func (a *Agenda) ReconcileDue(ctx context.Context, s *shard, from, to time.Time) error {
	return a.reconcileEntries(ctx, s, from, to, anyRound)
}

// RunResumed looks ahead whenever an order lets something go on, until ctx ends: beside
// the agenda's other work, for very much may have waited.
func (a *Agenda) RunResumed(ctx context.Context) {
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
func (a *Agenda) requeueEarly(ctx context.Context) error {
	now := time.Now()
	for _, s := range a.Shards {
		if !s.Held.Load() {
			continue
		}
		if err := a.reconcileEntries(ctx, s, now, now.Add((MaxRecheckFactor+1)*a.Cfg.Recheck), 0); err != nil {
			return err
		}
	}
	return nil
}

// Idle reports whether no message about mail waits in the broker.
func (a *Agenda) Idle(ctx context.Context) bool {
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
func (a *Agenda) reconcileEntries(ctx context.Context, s *shard, from, to time.Time, rounds int) error {
	remember := rounds == anyRound
	var g errgroup.Group
	g.SetLimit(AgendaAtOnce)
	var failed tally
	once := map[models.ID]bool{}
	for entry, err := range a.store.Agenda(ctx, s.N, from, to) {
		if err != nil {
			_ = g.Wait()
			return err
		}
		if ctx.Err() != nil || !s.Held.Load() || failed.all() {
			break
		}
		if s.Handled.has(&entry) {
			continue
		}
		if !remember {
			if entry.Round < rounds || once[entry.ID] {
				continue
			}
			once[entry.ID] = true
		}
		if a.UrgentFirst.pass(ctx); ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := a.reconcile(ctx, entry)
			if err == nil && remember {
				s.Handled.add(&entry)
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
	return l.failed >= AgendaAtOnce+l.good
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
