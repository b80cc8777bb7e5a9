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

// While the broker is down, nothing can be announced. The agenda finds all of it again, but needs several reads for
// each entry, which takes long for a million of them. So as soon as the broker is back, the backlog is published
// without a reconcile: all urgent mail, and as much bulk mail as its queue may hold.

const (
	backlogPoll     = time.Second
	backlogGroup    = 500              // messages published at once
	maxBulkQueued   = 100_000          // bulk messages that may wait in the queue while more are published
	unnoticedOutage = 10 * time.Second // how long the broker may have been down before a worker noticed
)

// barrier makes others wait while it is shut.
type barrier struct {
	mu   sync.Mutex
	open chan struct{} // nil: open; closed when the barrier opens
}

// shut shuts the barrier until the returned function is called. Further calls do nothing.
func (b *barrier) shut() (open func()) {
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

// errUnannounced reports that messages could not be published.
var errUnannounced = errors.New("messages cannot be published")

// backlog is the work of republishing after one outage.
type backlog struct {
	since, begun time.Time
	all          bool                    // any unfinished entry may be unannounced
	left         [2]map[*shard]time.Time // by lane: the shards that are not done, and up to where each is
}

// RunBacklog republishes the backlog whenever the broker has come back. empty says that no message waited when this
// worker started. Then all may have been lost with the process, as with the in-process broker.
func (a *Agenda) RunBacklog(ctx context.Context, empty bool) {
	a.Outbox.Outage.MarkUnannounced(time.Now()) // a worker may have died during an outage
	var c *backlog
	for range models.Every(ctx, backlogPoll) {
		since, ok := a.Outbox.Outage.UnannouncedSince()
		if !ok {
			continue
		}
		room, err := a.bulkRoom(ctx)
		if err != nil {
			continue // still down
		}
		if c == nil {
			c, empty = a.newBacklog(since, empty), false
		}
		if err := a.republish(ctx, c, room); err != nil {
			a.log.Debug("backlog is republished later", "err", err)
			continue
		}
		if len(c.left[0])+len(c.left[1]) == 0 {
			a.Outbox.Outage.CaughtUp(c.begun)
			c = nil
		}
	}
}

// newBacklog returns the work to be done after an outage that began at since. all says that any unfinished mail may
// have been missed.
func (a *Agenda) newBacklog(since time.Time, all bool) *backlog {
	c := &backlog{since: since.Add(-unnoticedOutage), begun: time.Now(), all: all}
	for lane := range c.left {
		c.left[lane] = map[*shard]time.Time{}
		for _, s := range a.shards {
			c.left[lane][s] = time.Time{}
		}
	}
	return c
}

// republish publishes the urgent mail of all shards, and then as much bulk mail as there is room for. Other workers do
// the same for shards that this worker does not hold.
func (a *Agenda) republish(ctx context.Context, c *backlog, room int) error {
	announced := 0
	defer func() {
		if announced > 0 {
			a.log.Info("republished backlog", "messages", announced)
		}
	}()
	open := a.urgentFirst.shut()
	defer open()
	for n, lane := range []models.Lane{models.Urgent, models.Bulk} {
		most := math.MaxInt
		if lane == models.Bulk {
			open()
			most = room
		}
		for s, at := range c.left[n] {
			if !s.held.Load() {
				if time.Since(c.begun) > 2*a.cfg.Lease {
					delete(c.left[n], s)
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
			c.left[n][s] = upTo
			if err != nil {
				return err
			}
			if upTo.IsZero() {
				delete(c.left[n], s)
			}
		}
	}
	return nil
}

// bulkRoom returns how many more bulk messages may wait in the queue. It fails while messages cannot be published.
func (a *Agenda) bulkRoom(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.Broker.Ping(ctx); err != nil {
		return 0, err
	}
	depths, err := a.Broker.Depths(ctx)
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

// republishLane publishes a lane of a shard from a due date on, as much as there is room for. upTo is where it stopped;
// zero: at the end.
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
		for some := range slices.Chunk(group, backlogGroup) { // a single batch may have thousands of chunks
			if !a.Outbox.Publish(ctx, some...) {
				return errUnannounced
			}
		}
		announced += len(group)
		group, upTo = group[:0], next
		return ctx.Err()
	}
	for entry, err := range a.Store.Agenda(ctx, s.n, from, c.begun.Add((maxRecheckFactor+1)*a.cfg.Recheck)) {
		if err != nil {
			return announced, upTo, fmt.Errorf("agenda of shard %d: %w", s.n, err)
		}
		if entry.Lane != lane || !c.missed(&entry) {
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

// missed reports whether an entry may be about an unpublished message. The entry says so, or it was never reconciled
// and its batch was stored during the outage.
func (c *backlog) missed(entry *models.AgendaEntry) bool {
	switch {
	case entry.Missed, c.all:
		return true
	}
	stored := entry.ID.Batch().Time()
	return entry.Round == 0 && entry.Kind == models.LookAtBatch && !stored.Before(c.since) && stored.Before(c.begun)
}
