package quota

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Stored batches are counted by the UTC day on which they were accepted, in a document for each
// subject. A process adds a grant to the day before it accepts so many batches, so that the count
// is never too low. Batches are removed by whole days, the oldest first: days before that of the
// oldest batch of the user count no more. So nothing needs to be counted again. What a process
// was granted and has not used when it ends is counted until its day is removed.
const storedKind = "stored-batches"

// maxGrant is how many batches a process is granted at a time. The first grants of a day are
// smaller: each is at most as large as those before together.
const maxGrant = 1000

// Times about stored batches that reached their limit.
const (
	storedCheck = 10 * time.Second // how long a refusal is repeated without asking the store
	storedRetry = time.Hour        // when a refused request may be repeated: retention runs so often
)

// storedDays has how many batches of each day are counted.
type storedDays struct {
	Days map[string]int64 `json:"days"` // by date
}

func (d *storedDays) total() (n int64) {
	for _, of := range d.Days {
		n += of
	}
	return n
}

// storage is what a process was granted of a subject's stored batches.
type storage struct {
	used atomic.Int64 // by all processes, as far as this one knows

	mu     sync.Mutex // held while more is granted
	day    string
	limit  int64
	credit int64     // granted for the day under the limit and not used
	next   int64     // size of the next grant
	full   time.Time // until when there is known to be no room under the limit fullAt
	fullAt int64
}

// counted reports whether the stored batches of a subject are counted: a user's always, so that
// a limit that is set later knows them, a key's from when it has a limit.
func (s *Subject) counted() bool { return s.ID == s.User || s.Limits[models.StoredBatches] > 0 }

// storage returns what the process was granted of a subject.
func (g *Guard) storage(s Subject, now time.Time) *storage {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &g.of(s.ID, now).stored
}

// takeStored admits batches to be stored.
func (g *Guard) takeStored(ctx context.Context, s Subject, a Amount) (giveBack func(), err error) {
	n, now := a.N, time.Now()
	day := now.UTC().Format(time.DateOnly)
	limit := s.Limits[models.StoredBatches]
	if limit > 0 && n > limit {
		return nil, exceeded(s, models.StoredBatches, 0)
	}
	st := g.storage(s, now)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.day != day || st.limit != limit || st.credit < n {
		if st.fullAt == limit && now.Before(st.full) {
			return nil, exceeded(s, models.StoredBatches, storedRetry)
		}
		if err := g.grant(ctx, st, s, n, now); err != nil {
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

// grant brings the credit of the day to at least n. What is left of another day, or of before the
// limit was changed, is given back.
func (g *Guard) grant(ctx context.Context, st *storage, s Subject, n int64, now time.Time) error {
	day := now.UTC().Format(time.DateOnly)
	limit := s.Limits[models.StoredBatches]
	credit, next, left := st.credit, min(max(1, st.next), maxGrant), int64(0)
	if st.day != day || st.limit != limit {
		credit, next, left = 0, 1, st.credit
	}
	if limit > 0 {
		next = min(next, max(1, limit/maxSlices))
	}
	var granted int64
	d, _, err := models.ChangeDocument(ctx, g.store, s.User, storedKind, s.ID, func(d *storedDays, _ int) error {
		if d.Days == nil {
			d.Days = map[string]int64{}
		}
		if left > 0 && d.Days[st.day] >= left {
			d.Days[st.day] -= left
		}
		granted = max(n-credit, next)
		if d.Days[day] == 0 || limit > 0 && d.total()+granted > limit {
			if err := g.dropDays(ctx, s.User, d, now); err != nil {
				return err
			}
		}
		if limit > 0 {
			granted = min(granted, limit-d.total())
		}
		if granted < n-credit {
			return exceeded(s, models.StoredBatches, storedRetry)
		}
		d.Days[day] += granted
		return nil
	})
	if err != nil {
		if _, ok := errors.AsType[*Exceeded](err); ok {
			st.full, st.fullAt = now.Add(storedCheck), limit
		}
		return err
	}
	st.day, st.limit, st.credit, st.next = day, limit, credit+granted, 2*next
	st.used.Store(d.total() - st.credit)
	return nil
}

// dropDays removes the days before that of the user's oldest batch. A batch of yesterday or
// today may be about to be stored.
func (g *Guard) dropDays(ctx context.Context, user string, d *storedDays, now time.Time) error {
	oldest, err := g.store.BatchIDsAfter(ctx, user, models.ID{}, 1)
	if err != nil {
		return err
	}
	from := now.Add(-24 * time.Hour)
	if len(oldest) > 0 && oldest[0].Time().Before(from) {
		from = oldest[0].Time()
	}
	first := from.UTC().Format(time.DateOnly)
	maps.DeleteFunc(d.Days, func(day string, _ int64) bool { return day < first })
	return nil
}

// storedBatches returns how many batches of a subject are counted in all processes, without what this
// process can still use.
func (g *Guard) storedBatches(ctx context.Context, s Subject, now time.Time) (int64, error) {
	d, _, err := models.ReadDocument[storedDays](ctx, g.store, s.User, storedKind, s.ID)
	if errors.Is(err, models.ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		err = g.dropDays(ctx, s.User, &d, now)
	}
	if err != nil {
		return 0, err
	}
	st := g.storage(s, now)
	st.mu.Lock()
	defer st.mu.Unlock()
	return max(0, d.total()-st.credit), nil
}
