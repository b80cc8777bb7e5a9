package agenda

import (
	"context"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Each shard of the agenda is worked by one worker at a time, which holds a lease
// on it. Leases only spare work: two workers that both believe they hold a shard
// do double work and no harm.

// AcquireShards takes what nobody holds, as much as is this worker's part.
func (a *Agenda) AcquireShards(ctx context.Context) {
	free := a.maxShards()
	for _, s := range a.Shards {
		if s.Held.Load() {
			free--
		}
	}
	for _, s := range a.Shards {
		if free <= 0 || ctx.Err() != nil {
			return
		}
		if s.Held.Load() {
			continue
		}
		if err := a.AcquireShard(ctx, s); err != nil && ctx.Err() == nil {
			a.log.Warn("agenda will be asked for again", "shard", s.N, "err", err)
		}
		if s.Held.Load() {
			free--
		}
	}
}

// ReleaseSurplus gives up what is more than this worker's part, for workers that
// came; not while it makes up for announcements that failed, of which they do not
// know.
func (a *Agenda) ReleaseSurplus(ctx context.Context) {
	if _, ok := a.dispatch.OutgoingOutage().UnannouncedSince(); ok {
		return
	}
	free := a.maxShards()
	for _, s := range a.Shards {
		if !s.Held.Load() {
			continue
		}
		if free--; free >= 0 {
			continue
		}
		if err := a.saveMark(ctx, s); err != nil {
			return // it is worked on from here, until this is known to who comes next
		}
		a.releaseShard(ctx, s)
	}
}

// maxShards is how many shards are this worker's part: all, while it does not
// know how many others there are.
func (a *Agenda) maxShards() int {
	part, ok := a.members.Share()
	if !ok {
		return len(a.Shards)
	}
	return (len(a.Shards) + part.Size - 1) / part.Size
}

// RunLeases renews the leases of what this worker holds, however long the work
// on a shard takes, until ctx ends.
func (a *Agenda) RunLeases(ctx context.Context) {
	t := time.NewTicker(a.Cfg.Lease / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		for _, s := range a.Shards {
			if err := a.renewShard(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("the agenda's lease will be asked for again", "shard", s.N, "err", err)
			}
		}
	}
}

func (s *shard) leaseName() string { return "agenda." + strconv.Itoa(s.N) }

// AcquireShard asks for a shard that this worker does not hold, and begins where the one
// before it was.
func (a *Agenda) AcquireShard(ctx context.Context, s *shard) error {
	s.lease.Lock()
	defer s.lease.Unlock()
	now := time.Now()
	held, err := a.store.Lease(ctx, s.leaseName(), a.Cfg.Worker, a.Cfg.Lease)
	if err != nil || !held {
		return err
	}
	mark, err := a.store.AgendaMark(ctx, s.N)
	if err != nil {
		return err
	}
	a.members.NoteGone(now)
	mark = models.EarlierOf(mark, now) // by a clock that was ahead
	from, behind := mark.Add(-models.LateWriters), mark
	if mark.IsZero() {
		from, behind = now.Add(-firstRead), now
		mark = now.Add(-firstBacklog)
	}
	s.mark.Store(mark.UnixMilli())
	late := models.LaterOf(from, now.Add(-models.LateWriters)) // nobody writes entries that are due before
	s.upTo, s.reread, s.InboxFrom, s.swept = from, [2]time.Time{late, late}, from, time.Time{}
	s.Handled.Forget(now.Add(time.Hour))
	s.readTo.Store(behind.UnixMilli())
	s.OldestPost.Store(0)
	s.renewed, s.marked = now, now
	s.Held.Store(true)
	return nil
}

// renewShard keeps a shard that this worker holds.
func (a *Agenda) renewShard(ctx context.Context, s *shard) error {
	s.lease.Lock()
	defer s.lease.Unlock()
	if !s.Held.Load() {
		return nil
	}
	now := time.Now()
	held, err := a.store.Lease(ctx, s.leaseName(), a.Cfg.Worker, a.Cfg.Lease)
	switch {
	case err != nil:
		s.Held.Store(now.Sub(s.renewed) < a.Cfg.Lease) // it may be renewed in time yet
	case held:
		s.renewed = now
	default:
		s.Held.Store(false)
	}
	return err
}

// saveMark writes down how far this worker is. The mark waits for posts that are
// still to be worked off.
func (a *Agenda) saveMark(ctx context.Context, s *shard) error {
	return a.store.SetAgendaMark(ctx, s.N, models.EarlierOf(s.upTo, s.InboxFrom))
}

// releaseShard lets another worker have a shard.
func (a *Agenda) releaseShard(ctx context.Context, s *shard) {
	s.lease.Lock()
	defer s.lease.Unlock()
	if s.Held.Swap(false) {
		_, _ = a.store.Lease(ctx, s.leaseName(), a.Cfg.Worker, 0) // it ends by itself otherwise
	}
}
