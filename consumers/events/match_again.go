package events

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// matchPause is how long an entry with unmatched events waits for the second try.
	matchPause = time.Minute
	// matchPoll is how often such entries are looked for.
	matchPoll = 10 * time.Second
	// unmatchedTime is the time limit of the last write of the unmatched events.
	unmatchedTime = 2 * time.Second
	// matchWaiting is how many of them wait at most.
	matchWaiting = 1000
	// matchShare limits the time of searches: after one, the next begins earliest after
	// this many times its duration.
	matchShare = 9
)

// matchSchedule schedules searches for the mail of unnamed events.
type matchSchedule struct {
	mu      sync.Mutex
	next    time.Time               // when a search may begin
	waiting map[models.ID]time.Time // entries that are tried again, and when
}

// mayBegin reports whether a search may begin now.
func (m *matchSchedule) mayBegin(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !now.Before(m.next)
}

// ended notes a search.
func (m *matchSchedule) ended(began, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = models.LaterOf(m.next, now.Add(matchShare*now.Sub(began)))
}

// add makes an entry wait for the second try. It returns false if too many wait.
func (m *matchSchedule) add(entry models.ID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.waiting[entry]; ok {
		return true
	}
	if len(m.waiting) >= matchWaiting {
		return false
	}
	if m.waiting == nil {
		m.waiting = map[models.ID]time.Time{}
	}
	m.waiting[entry] = now.Add(matchPause)
	return true
}

// due removes the entries whose second try is due, and returns them.
func (m *matchSchedule) due(now time.Time) (ids []models.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range m.waiting {
		if !now.Before(at) {
			ids = append(ids, id)
			delete(m.waiting, id)
		}
	}
	return ids
}

// RunMatches calls MatchAgain until ctx ends, and stores which events were not matched.
func (q *Processor) RunMatches(ctx context.Context) {
	known := false
	store := func(ctx context.Context) (err error) {
		if !known {
			if err := q.matcher.unmatched.read(ctx); err != nil {
				return err
			}
			known = true
		}
		return q.matcher.unmatched.put(ctx)
	}
	for now := range models.Every(ctx, matchPoll) {
		if err := q.MatchAgain(ctx, now); err != nil && ctx.Err() == nil {
			q.log.Warn("cannot match events that name no log; will retry", "err", err)
		}
		if err := store(ctx); err != nil && ctx.Err() == nil {
			q.log.Warn("cannot store which events name no log; will retry", "err", err)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmatchedTime)
	defer cancel()
	if err := store(last); err != nil {
		q.log.Warn("cannot store which events name no log", "err", err)
	}
}

// MatchAgain matches the events that named no log when they came in. Entries that wait are
// lost if the process ends; a replay matches their events.
func (q *Processor) MatchAgain(ctx context.Context, now time.Time) error {
	ids := q.matcher.schedule.due(now)
	for rest := ids; len(rest) > 0; {
		entries, n, err := q.inbox.read(ctx, rest)
		if err == nil {
			group := newEventGroup(0)
			group.again = true
			err = q.processEntries(ctx, entries, group)
		}
		if err != nil {
			for _, id := range rest {
				q.matcher.schedule.add(id, now)
			}
			return err
		}
		rest = rest[n:]
	}
	return nil
}
