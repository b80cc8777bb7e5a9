package agenda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// While the broker is away, nothing can be announced. The agenda finds all of it
// again, with several reads each, which takes long when a million entries are
// due. So what was missed is announced first, without a look, as soon as the
// broker is back: all urgent mail, and as much bulk as its queue may hold.

const (
	backlogPoll     = time.Second
	backlogGroup    = 500              // messages published together
	maxBulkQueued   = 100_000          // messages of bulk that may wait in the queue while more are announced
	unnoticedOutage = 10 * time.Second // the broker may have been away so long before a worker noticed
)

// barrier holds others back while it is shut.
type barrier struct {
	mu   sync.Mutex
	open chan struct{} // nil: it is open; closed when it opens again
}

// Shut shuts the barrier; who calls what it returns, once or more often, opens it.
func (b *barrier) Shut() (open func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = make(chan struct{})
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(b.open)
		b.open = nil
	})
}

// pass waits while the barrier is shut, or until ctx ends.
func (b *barrier) pass(ctx context.Context) {
	b.mu.Lock()
	open := b.open
	b.mu.Unlock()
	if open == nil {
		return
	}
	select {
	case <-open:
	case <-ctx.Done():
	}
}

// errUnannounced: an announcement failed.
var errUnannounced = errors.New("announcements fail")

// backlog is the work of catching up after one outage.
type backlog struct {
	since, Begun time.Time
	all          bool                    // whatever is unfinished may have been missed
	Left         [2]map[*shard]time.Time // by lane: the shards that are not done, and up to where they are
}

// RunBacklog announces what was missed, whenever the broker has come back. empty:
// no message waited when this worker started; all may have been lost with the
// process, as those of the embedded broker are.
func (a *Agenda) RunBacklog(ctx context.Context, empty bool) {
	t := time.NewTicker(backlogPoll)
	defer t.Stop()
	a.dispatch.OutgoingOutage().MarkUnannounced(time.Now()) // somebody may have died while the broker was away
	var c *backlog
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		since, ok := a.dispatch.OutgoingOutage().UnannouncedSince()
		if !ok {
			continue
		}
		room, err := a.bulkRoom(ctx)
		if err != nil {
			continue // still away
		}
		if c == nil {
			c, empty = a.NewBacklog(since, empty), false
		}
		if err := a.Republish(ctx, c, room); err != nil {
			a.log.Debug("what was missed is announced later", "err", err)
			continue
		}
		if len(c.Left[0])+len(c.Left[1]) == 0 {
			a.dispatch.OutgoingOutage().CaughtUp(c.Begun)
			c = nil
		}
	}
}

func (a *Agenda) NewBacklog(since time.Time, all bool) *backlog {
	c := &backlog{since: since.Add(-unnoticedOutage), Begun: time.Now(), all: all}
	for lane := range c.Left {
		c.Left[lane] = map[*shard]time.Time{}
		for _, s := range a.Shards {
			c.Left[lane][s] = time.Time{}
		}
	}
	return c
}

// Republish announces the urgent mail of all shards, and then as much bulk as
// there is room for. Shards that nobody gives to this worker are caught up with
// by others.
func (a *Agenda) Republish(ctx context.Context, c *backlog, room int) error {
	announced := 0
	defer func() {
		if announced > 0 {
			a.log.Info("announced what may have been missed", "messages", announced)
		}
	}()
	open := a.UrgentFirst.Shut()
	defer open()
	for n, lane := range []models.Lane{models.Urgent, models.Bulk} {
		most := math.MaxInt
		if lane == models.Bulk {
			open()
			most = room
		}
		for s, at := range c.Left[n] {
			if !s.Held.Load() {
				if time.Since(c.Begun) > 2*a.Cfg.Lease {
					delete(c.Left[n], s)
				}
				continue
			}
			if most <= 0 {
				break
			}
			if at.IsZero() {
				if at = c.since; c.all {
					at = models.EarlierOf(at, time.UnixMilli(s.mark.Load()))
				}
			}
			sum, upTo, err := a.republishLane(ctx, c, s, lane, at, most)
			most -= sum
			announced += sum
			c.Left[n][s] = upTo
			if err != nil {
				return err
			}
			if upTo.IsZero() {
				delete(c.Left[n], s)
			}
		}
	}
	return nil
}

// bulkRoom is how many more messages of bulk may wait in its queue. It fails
// while nothing can be announced.
func (a *Agenda) bulkRoom(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.broker.Ping(ctx); err != nil {
		return 0, err
	}
	depths, err := a.broker.Depths(ctx)
	if err != nil {
		return 0, err
	}
	room := maxBulkQueued
	for i := range depths {
		if q := &depths[i].Queue; q.Kind == models.BatchMessage && q.Lane == models.Bulk {
			room -= depths[i].Ready
		}
	}
	return room, nil
}

// republishLane announces a lane of a shard from a due date on, as much as there
// is room for. upTo is how far it came; zero: to the end.
func (a *Agenda) republishLane(
	ctx context.Context,
	c *backlog,
	s *shard,
	lane models.Lane,
	from time.Time,
	room int,
) (announced int, upTo time.Time, err error) {
	upTo = from
	var group []models.Message
	flush := func(next time.Time) error {
		for some := range slices.Chunk(group, backlogGroup) { // a batch alone may have thousands of chunks
			if !a.dispatch.Publish(ctx, some...) {
				return errUnannounced
			}
		}
		announced += len(group)
		group, upTo = group[:0], next
		return ctx.Err()
	}
	for entry, err := range a.store.Agenda(ctx, s.N, from, c.Begun.Add((MaxRecheckFactor+1)*a.Cfg.Recheck)) {
		if err != nil {
			return announced, upTo, fmt.Errorf("agenda of shard %d: %w", s.N, err)
		}
		if entry.Lane != lane || !c.missed(&entry, a.Cfg.Recheck) {
			continue
		}
		if full := announced+len(group) >= room; full || len(group) >= backlogGroup {
			if err := flush(entry.Due); full || err != nil {
				return announced, upTo, err
			}
		}
		group = append(group, entry.Announcements()...)
	}
	err = flush(time.Time{})
	return announced, upTo, err
}

// publishFailed reports whether an entry may be about something that was not announced:
// it says so, or nobody has looked at it yet and its batch was stored while the
// broker was away.
func (c *backlog) missed(entry *models.AgendaEntry, recheck time.Duration) bool {
	switch {
	case entry.Missed, c.all:
		return true
	}
	stored := entry.Due.Add(-recheck)
	return entry.Round == 0 && entry.Kind == models.LookAtBatch && !stored.Before(c.since) && stored.Before(c.Begun)
}
