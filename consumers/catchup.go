package consumers

import (
	"context"
	"errors"
	"fmt"
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

// outage is the time in which announcements fail. Once one has failed, only one
// try is made each second, and all others fail at once, so that nobody who has
// other work waits for a broker that is away.
type outage struct {
	mu     sync.Mutex
	since  time.Time // of the first failure that was not made up for; zero: none
	last   time.Time // of the latest
	away   bool
	trying bool
	next   time.Time // the next try while it is away
}

// begin reports whether a try may be made; its end is to be told.
func (o *outage) begin(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.away {
		return true
	}
	if o.trying || now.Before(o.next) {
		o.last = now
		return false
	}
	o.trying = true
	return true
}

// end takes in the outcome of a try.
func (o *outage) end(now time.Time, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trying = false
	if o.away = err != nil; !o.away {
		return
	}
	if o.since.IsZero() {
		o.since = now
	}
	o.last, o.next = now, now.Add(time.Second)
}

// suspect lets what was missed before be made up for.
func (o *outage) suspect(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		o.since = now
	}
}

// open returns since when announcements failed that were not made up for.
func (o *outage) open() (since time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, !o.since.IsZero()
}

// madeUp notes that everything missed until then was announced.
func (o *outage) madeUp(until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
	if o.last.After(until) {
		o.since = until
	}
}

// errMissed: an announcement failed.
var errMissed = errors.New("announcements fail")

// catching is the work of catching up after one outage.
type catching struct {
	since, begun time.Time
	all          bool                 // whatever is unfinished may have been missed
	shards       map[*shard]*[2]place // by lane, what is left
}

// place is how far a lane of a shard is announced.
type place struct {
	at   time.Time // entries due before it are
	over bool
}

// catchUp announces what was missed, whenever the broker has come back. empty:
// no message waited when this worker started; all may have been lost with the
// process, as those of the embedded broker are.
func (e *Engine) catchUp(ctx context.Context, empty bool) {
	t := time.NewTicker(catchUpPoll)
	defer t.Stop()
	e.outage.suspect(time.Now()) // somebody may have died while the broker was away
	var c *catching
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		since, ok := e.outage.open()
		if !ok {
			continue
		}
		room, err := e.roomAhead(ctx)
		if err != nil {
			continue // still away
		}
		if c == nil {
			c, empty = e.newCatching(since, empty), false
		}
		if err := e.catchUpOnce(ctx, c, room); err != nil {
			e.log.Debug("what was missed is announced later", "err", err)
			continue
		}
		if len(c.shards) == 0 {
			e.outage.madeUp(c.begun)
			c = nil
		}
	}
}

func (e *Engine) newCatching(since time.Time, all bool) *catching {
	c := &catching{since: since.Add(-unnoticed), begun: time.Now(), all: all, shards: map[*shard]*[2]place{}}
	for _, s := range e.shards {
		c.shards[s] = &[2]place{}
	}
	return c
}

// catchUpOnce announces of every shard what there is room for. Shards that
// nobody gives to this worker are caught up with by others.
func (e *Engine) catchUpOnce(ctx context.Context, c *catching, room int) error {
	announced := 0
	defer func() {
		if announced > 0 {
			e.log.Info("announced what was missed while the broker was away", "messages", announced)
		}
	}()
	for s, left := range c.shards {
		switch {
		case !s.held.Load():
			if time.Since(c.begun) > 2*leaseTime {
				delete(c.shards, s)
			}
			continue
		case left[0].over && room <= 0:
			continue
		}
		n, err := e.announceMissed(ctx, c, s, left, &room)
		announced += n
		if err != nil {
			return err
		}
		if left[0].over && left[1].over {
			delete(c.shards, s)
		}
	}
	return nil
}

// roomAhead is how many more messages of bulk may wait in its queue. It fails
// while nothing can be announced.
func (e *Engine) roomAhead(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := e.broker.Ping(ctx); err != nil {
		return 0, err
	}
	depths, err := e.broker.Depths(ctx)
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

// announceMissed reads a shard from where it was left.
func (e *Engine) announceMissed(ctx context.Context, c *catching, s *shard, left *[2]place, room *int) (announced int, err error) {
	if left[0].at.IsZero() {
		left[0].at = c.since
		if c.all {
			left[0].at = minTime(c.since, time.UnixMilli(s.mark.Load()))
		}
		left[1].at = left[0].at
	}
	from, to := left[1].at, c.begun.Add((mostPatience+1)*e.cfg.Recheck)
	if !left[0].over {
		from = minTime(from, left[0].at)
	}
	var group []models.Message
	var upTo [2]time.Time // due dates that the group reaches
	flush := func() error {
		if len(group) > 0 && !e.wake(ctx, group...) {
			return errMissed
		}
		announced += len(group)
		group = group[:0]
		for lane, at := range upTo {
			left[lane].at = maxTime(left[lane].at, at)
		}
		return nil
	}
	var full time.Time // due date of the first for which there is no room
	for entry, err := range e.store.Agenda(ctx, s.n, from, to) {
		if err != nil {
			return announced, fmt.Errorf("agenda of shard %d: %w", s.n, err)
		}
		lane := laneNumber(entry.Lane)
		if !c.missed(&entry, e.cfg.Recheck) || left[lane].over || entry.Due.Before(left[lane].at) {
			continue
		}
		if entry.Lane == models.Bulk {
			if full.IsZero() && *room <= 0 {
				full = entry.Due
			}
			if !full.IsZero() {
				if left[0].over {
					break
				}
				continue
			}
			*room -= max(1, entry.Chunks)
		}
		group = append(group, entry.Announcements()...)
		upTo[lane] = entry.Due
		if len(group) >= catchUpGroup {
			if err := flush(); err != nil {
				return announced, err
			}
		}
	}
	if err := errors.Join(ctx.Err(), flush()); err != nil {
		return announced, err
	}
	left[0].over, left[1].over = true, left[1].over || full.IsZero()
	left[1].at = maxTime(left[1].at, full)
	return announced, nil
}

// missed reports whether an entry may be about something that was not announced:
// it says so, or nobody has looked at it yet and its batch was stored while the
// broker was away.
func (c *catching) missed(entry *models.AgendaEntry, recheck time.Duration) bool {
	switch {
	case entry.Lane == "":
		return false // of an older version; it is looked at in its time
	case entry.Missed, c.all:
		return true
	}
	stored := entry.Due.Add(-recheck)
	return entry.Round == 0 && entry.Kind == models.LookAtBatch && !stored.Before(c.since) && stored.Before(c.begun)
}
