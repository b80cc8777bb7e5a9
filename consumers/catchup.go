package consumers

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
	catchUpPoll  = time.Second
	catchUpGroup = 500              // messages published together
	mostAhead    = 100_000          // messages of bulk that may wait in the queue while more are announced
	unnoticed    = 10 * time.Second // the broker may have been away so long before a worker noticed
)

// barrier holds others back while it is shut.
type barrier struct {
	mu   sync.Mutex
	open chan struct{} // nil: it is open; closed when it opens again
}

// shut shuts the barrier; who calls what it returns, once or more often, opens it.
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

// errMissed: an announcement failed.
var errMissed = errors.New("announcements fail")

// catching is the work of catching up after one outage.
type catching struct {
	since, begun time.Time
	all          bool                    // whatever is unfinished may have been missed
	left         [2]map[*shard]time.Time // by lane: the shards that are not done, and up to where they are
}

// catchUp announces what was missed, whenever the broker has come back. empty:
// no message waited when this worker started; all may have been lost with the
// process, as those of the embedded broker are.
func (a *agenda) catchUp(ctx context.Context, empty bool) {
	t := time.NewTicker(catchUpPoll)
	defer t.Stop()
	a.dispatch.outgoingOutage().suspect(time.Now()) // somebody may have died while the broker was away
	var c *catching
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		since, ok := a.dispatch.outgoingOutage().open()
		if !ok {
			continue
		}
		room, err := a.roomAhead(ctx)
		if err != nil {
			continue // still away
		}
		if c == nil {
			c, empty = a.newCatching(since, empty), false
		}
		if err := a.catchUpOnce(ctx, c, room); err != nil {
			a.log.Debug("what was missed is announced later", "err", err)
			continue
		}
		if len(c.left[0])+len(c.left[1]) == 0 {
			a.dispatch.outgoingOutage().madeUp(c.begun)
			c = nil
		}
	}
}

func (a *agenda) newCatching(since time.Time, all bool) *catching {
	c := &catching{since: since.Add(-unnoticed), begun: time.Now(), all: all}
	for lane := range c.left {
		c.left[lane] = map[*shard]time.Time{}
		for _, s := range a.shards {
			c.left[lane][s] = time.Time{}
		}
	}
	return c
}

// catchUpOnce announces the urgent mail of all shards, and then as much bulk as
// there is room for. Shards that nobody gives to this worker are caught up with
// by others.
func (a *agenda) catchUpOnce(ctx context.Context, c *catching, room int) error {
	announced := 0
	defer func() {
		if announced > 0 {
			a.log.Info("announced what may have been missed", "messages", announced)
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
			sum, upTo, err := a.announceMissed(ctx, c, s, lane, at, most)
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

// roomAhead is how many more messages of bulk may wait in its queue. It fails
// while nothing can be announced.
func (a *agenda) roomAhead(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.broker.Ping(ctx); err != nil {
		return 0, err
	}
	depths, err := a.broker.Depths(ctx)
	if err != nil {
		return 0, err
	}
	room := mostAhead
	for i := range depths {
		if q := &depths[i].Queue; q.Kind == models.BatchMessage && q.Lane == models.Bulk {
			room -= depths[i].Ready
		}
	}
	return room, nil
}

// announceMissed announces a lane of a shard from a due date on, as much as there
// is room for. upTo is how far it came; zero: to the end.
func (a *agenda) announceMissed(ctx context.Context, c *catching, s *shard, lane models.Lane, from time.Time, room int) (announced int, upTo time.Time, err error) {
	upTo = from
	var group []models.Message
	flush := func(next time.Time) error {
		for some := range slices.Chunk(group, catchUpGroup) { // a batch alone may have thousands of chunks
			if !a.dispatch.wake(ctx, some...) {
				return errMissed
			}
		}
		announced += len(group)
		group, upTo = group[:0], next
		return ctx.Err()
	}
	for entry, err := range a.store.Agenda(ctx, s.n, from, c.begun.Add((mostPatience+1)*a.cfg.Recheck)) {
		if err != nil {
			return announced, upTo, fmt.Errorf("agenda of shard %d: %w", s.n, err)
		}
		if entry.Lane != lane || !c.missed(&entry, a.cfg.Recheck) {
			continue
		}
		if full := announced+len(group) >= room; full || len(group) >= catchUpGroup {
			if err := flush(entry.Due); full || err != nil {
				return announced, upTo, err
			}
		}
		group = append(group, entry.Announcements()...)
	}
	err = flush(time.Time{})
	return announced, upTo, err
}

// missed reports whether an entry may be about something that was not announced:
// it says so, or nobody has looked at it yet and its batch was stored while the
// broker was away.
func (c *catching) missed(entry *models.AgendaEntry, recheck time.Duration) bool {
	switch {
	case entry.Missed, c.all:
		return true
	}
	stored := entry.Due.Add(-recheck)
	return entry.Round == 0 && entry.Kind == models.LookAtBatch && !stored.Before(c.since) && stored.Before(c.begun)
}
