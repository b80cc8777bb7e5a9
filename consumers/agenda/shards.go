package agenda

import (
	"context"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Each shard of the agenda is worked on by one worker at a time, which holds a lease on
// it. Leases only save work: if two workers believe that they hold the same shard, the
// work is done twice and no harm is done.

// acquireShards acquires free shards, up to this worker's share.
func (a *Agenda) acquireShards(ctx context.Context) {
	free := a.maxShards()
	for _, s := range a.shards {
		if s.held.Load() {
			free--
		}
	}
	for _, s := range a.shards {
		if free <= 0 || ctx.Err() != nil {
			return
		}
		if s.held.Load() {
			continue
		}
		if err := a.acquireShard(ctx, s); err != nil && ctx.Err() == nil {
			a.log.Warn("lease of an agenda shard not acquired; will retry", "shard", s.n, "err", err)
		}
		if s.held.Load() {
			free--
		}
	}
}

// releaseSurplus releases the shards beyond this worker's share, for workers that joined.
// It keeps them while this worker republishes a backlog, which the others do not know.
func (a *Agenda) releaseSurplus(ctx context.Context) {
	if _, ok := a.Outbox.Outage.UnannouncedSince(); ok {
		return
	}
	free := a.maxShards()
	for _, s := range a.shards {
		if !s.held.Load() {
			continue
		}
		if free--; free >= 0 {
			continue
		}
		if err := a.saveMark(ctx, s); err != nil {
			return // the next holder begins here, so it must be stored first
		}
		a.releaseShard(ctx, s)
	}
}

// maxShards returns this worker's share of the shards: all, while it does not know how
// many workers there are.
func (a *Agenda) maxShards() int {
	part, ok := a.Members.Share()
	if !ok {
		return len(a.shards)
	}
	return (len(a.shards) + part.Size - 1) / part.Size
}

// RunLeases renews the leases of this worker's shards until ctx ends, however long the
// work on a shard takes.
func (a *Agenda) RunLeases(ctx context.Context) {
	for range models.Every(ctx, a.cfg.Lease/3) {
		for _, s := range a.shards {
			if err := a.renewShard(ctx, s); err != nil && ctx.Err() == nil {
				a.log.Warn("lease of an agenda shard not renewed; will retry", "shard", s.n, "err", err)
			}
		}
	}
}

func (s *shard) leaseName() string { return "agenda." + strconv.Itoa(s.n) }

// acquireShard tries to acquire a shard that this worker does not hold. Work on it begins
// where the previous holder stopped.
func (a *Agenda) acquireShard(ctx context.Context, s *shard) error {
	s.lease.Lock()
	defer s.lease.Unlock()
	now := time.Now()
	held, err := a.Store.Lease(ctx, s.leaseName(), a.cfg.Worker, a.cfg.Lease)
	if err != nil || !held {
		return err
	}
	mark, err := a.Store.AgendaMark(ctx, s.n)
	if err != nil {
		return err
	}
	a.Members.NoteGone(now)
	mark = models.EarlierOf(mark, now) // set by a fast clock
	from, behind := mark.Add(-models.LateWriters), mark
	if mark.IsZero() {
		from, behind = now.Add(-firstRead), now
		mark = now.Add(-firstBacklog)
	}
	s.mark.Store(mark.UnixMilli())
	late := models.LaterOf(from, now.Add(-models.LateWriters)) // no entry is written later than that
	s.upTo, s.reread, s.inboxFrom, s.swept = from, [2]time.Time{late, late}, from, time.Time{}
	s.handled.forget(now.Add(time.Hour))
	s.recovered[0].Store(0)
	s.recovered[1].Store(0)
	s.readTo.Store(behind.UnixMilli())
	s.oldestPost.Store(0)
	s.renewed, s.marked = now, now
	s.held.Store(true)
	return nil
}

// renewShard renews the lease of a shard that this worker holds.
func (a *Agenda) renewShard(ctx context.Context, s *shard) error {
	s.lease.Lock()
	defer s.lease.Unlock()
	if !s.held.Load() {
		return nil
	}
	now := time.Now()
	held, err := a.Store.Lease(ctx, s.leaseName(), a.cfg.Worker, a.cfg.Lease)
	switch {
	case err != nil:
		s.held.Store(now.Sub(s.renewed) < a.cfg.Lease) // it may still be renewed in time
	case held:
		s.renewed = now
	default:
		s.held.Store(false)
	}
	return err
}

// saveMark stores how far this worker has read. The mark does not pass posts that are
// not processed yet.
func (a *Agenda) saveMark(ctx context.Context, s *shard) error {
	return a.Store.SetAgendaMark(ctx, s.n, models.EarlierOf(s.upTo, s.inboxFrom))
}

// releaseShard releases a shard to other workers.
func (a *Agenda) releaseShard(ctx context.Context, s *shard) {
	s.lease.Lock()
	defer s.lease.Unlock()
	if s.held.Swap(false) {
		_, _ = a.Store.Lease(ctx, s.leaseName(), a.cfg.Worker, 0) // otherwise it expires
	}
}
