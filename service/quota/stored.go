package quota

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A kept counts stored things by the UTC day on which they were accepted, in a document for each subject. A process
// adds a grant to the day before it accepts so much, so that the count is never too low. Things are removed by whole
// days, the oldest first, so days before the oldest thing no longer count. Nothing needs to be counted again. If a
// process ends with a part of a grant unused, that part counts until its day is removed.
type kept struct {
	limit models.Limit
	kind  string // of the documents
	// most is how much a process is granted at a time, and first the first grant of a day. Each is at most as large as
	// those before together.
	first, most int64
	// from returns the time of the oldest thing of a user; zero: unknown.
	from func(g *Guard, ctx context.Context, user string) (time.Time, error)
}

// The things that are counted while they are stored.
var (
	storedBatches = &kept{limit: models.StoredBatches, kind: "stored-batches", first: 1, most: 1000, from: (*Guard).oldest}
	storedBytes   = &kept{
		limit: models.StoredBytes, kind: "stored-bytes", first: 64 << 10, most: 64 << 20, from: (*Guard).oldestContent,
	}
)

// keptOf returns how a limit is counted, or nil if it is not about what is stored.
func keptOf(l models.Limit) *kept {
	switch l {
	case models.StoredBatches:
		return storedBatches
	case models.StoredBytes:
		return storedBytes
	}
	return nil
}

// Times about what is stored and reached its limit.
const (
	storedCheck = 10 * time.Second // how long a refusal is repeated without asking the store
	storedRetry = time.Hour        // when a refused request may be repeated: retention runs so often
)

// storedDays has how much of each day is counted.
type storedDays struct {
	Days map[string]int64 `json:"days"` // by date
}

func (d *storedDays) total() (n int64) {
	for _, of := range d.Days {
		n += of
	}
	return n
}

// storage is what a process was granted of what a subject may store.
type storage struct {
	used atomic.Int64 // by all processes, as far as this one knows

	mu      sync.Mutex // held while more is granted
	day     string
	limit   int64
	credit  int64     // granted for the day under the limit and not used
	next    int64     // size of the next grant
	full    time.Time // until when there is known to be no room under the limit fullAt for fullFor
	fullAt  int64
	fullFor int64
}

// counted reports whether what a subject stores is counted: a user's always, so that a limit that is set later knows
// it, a key's from when it has a limit.
func (s *Subject) counted(l models.Limit) bool { return s.ID == s.User || s.Limits[l] > 0 }

// storage returns what the process was granted of a subject.
func (g *Guard) storage(s Subject, l models.Limit, now time.Time) *storage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of(s.ID, now).storedOf(l)
}

// storedOf returns what the process was granted of a limit.
func (c *counts) storedOf(l models.Limit) *storage {
	if l == models.StoredBytes {
		return &c.bytes
	}
	return &c.stored
}

// takeStored admits an amount that will be stored.
func (g *Guard) takeStored(ctx context.Context, s Subject, a Amount) (giveBack func(), err error) {
	n, now := a.N, time.Now()
	day := now.UTC().Format(time.DateOnly)
	limit := s.Limits[a.Limit]
	if limit > 0 && n > limit {
		return nil, exceeded(s, a.Limit, 0)
	}
	st := g.storage(s, a.Limit, now)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.day != day || st.limit != limit || st.credit < n {
		if st.fullAt == limit && n >= st.fullFor && now.Before(st.full) {
			return nil, exceeded(s, a.Limit, storedRetry)
		}
		if err := g.grant(ctx, st, s, a, now); err != nil {
			return nil, err
		}
	}
	st.credit -= n
	st.used.Add(n)
	return func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.day == day {
			st.credit += n
			st.used.Add(-n)
		}
	}, nil
}

// grant brings the credit of the day to at least n. It gives back credit of another day, or of an earlier limit.
func (g *Guard) grant(ctx context.Context, st *storage, s Subject, a Amount, now time.Time) error {
	k, n := keptOf(a.Limit), a.N
	day := now.UTC().Format(time.DateOnly)
	limit := s.Limits[k.limit]
	credit, next, left := st.credit, min(max(k.first, st.next), k.most), int64(0)
	if st.day != day || st.limit != limit {
		credit, next, left = 0, k.first, st.credit
	}
	if limit > 0 {
		next = min(next, max(1, limit/maxSlices))
	}
	var granted int64
	d, _, err := models.ChangeDocument(ctx, g.store, s.User, k.kind, s.ID, func(d *storedDays, _ int) error {
		if d.Days == nil {
			d.Days = map[string]int64{}
		}
		if left > 0 && d.Days[st.day] >= left {
			d.Days[st.day] -= left
		}
		granted = max(n-credit, next)
		if d.Days[day] == 0 || limit > 0 && d.total()+granted > limit {
			if err := g.dropDays(ctx, k, s.User, d, now); err != nil {
				return err
			}
		}
		if limit > 0 {
			granted = min(granted, limit-d.total())
		}
		if granted < n-credit {
			return exceeded(s, k.limit, storedRetry)
		}
		d.Days[day] += granted
		return nil
	})
	if err != nil {
		if _, ok := errors.AsType[*Exceeded](err); ok {
			st.full, st.fullAt, st.fullFor = now.Add(storedCheck), limit, n
		}
		return err
	}
	st.day, st.limit, st.credit, st.next = day, limit, credit+granted, 2*next
	st.used.Store(d.total() - st.credit)
	return nil
}

// dropDays removes the days before the user's oldest thing, but never today or yesterday: something of these may be
// about to be stored.
func (g *Guard) dropDays(ctx context.Context, k *kept, user string, d *storedDays, now time.Time) error {
	from, err := k.from(g, ctx, user)
	if err != nil {
		return err
	}
	if yesterday := now.Add(-24 * time.Hour); from.After(yesterday) {
		from = yesterday
	}
	first := from.UTC().Format(time.DateOnly)
	maps.DeleteFunc(d.Days, func(day string, _ int64) bool { return day < first })
	return nil
}

// oldest returns the time of the user's oldest batch, or a time after all if there is none.
func (g *Guard) oldest(ctx context.Context, user string) (time.Time, error) {
	oldest, err := g.store.BatchIDsAfter(ctx, user, models.ID{}, 1)
	if err != nil || len(oldest) == 0 {
		return time.Now(), err
	}
	return oldest[0].Time(), nil
}

// oldestContent returns a time before which no batch of the user has content.
func (g *Guard) oldestContent(ctx context.Context, user string) (time.Time, error) {
	removed, err := telemetry.ContentRemoved(ctx, g.store, user)
	if err != nil {
		return time.Time{}, err
	}
	oldest, err := g.oldest(ctx, user)
	return models.LaterOf(removed.Time(), oldest), err
}

// Stored returns how much of a limit about what is stored a subject uses in all processes, without what this process
// can still use.
func (g *Guard) Stored(ctx context.Context, s Subject, l models.Limit) (int64, error) {
	k, now := keptOf(l), time.Now()
	d, _, err := models.ReadDocument[storedDays](ctx, g.store, s.User, k.kind, s.ID)
	if err == nil {
		err = g.dropDays(ctx, k, s.User, &d, now)
	}
	if err != nil {
		return 0, err
	}
	st := g.storage(s, l, now)
	st.mu.Lock()
	defer st.mu.Unlock()
	return max(0, d.total()-st.credit), nil
}
