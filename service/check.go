package service

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// Check is the result of a recount of sums from the ledgers.
type Check struct {
	At          time.Time `json:"at"`
	Users       int       `json:"users"`
	Batches     int       `json:"batches"`
	Chunks      int       `json:"chunks"`
	Recipients  int64     `json:"recipients"`
	Days        int       `json:"days"`
	Differences int       `json:"differences"` // sums that are not what the recount says
	Repaired    int       `json:"repaired"`
}

// LastCheck is the newest recount that workers made by themselves, of what was
// accepted in the minutes before it. Not found where none was made lately.
func (s *Service) LastCheck(ctx context.Context, who Caller) (Check, error) {
	if err := who.operates(); err != nil {
		return Check{}, err
	}
	if s.check == nil {
		return Check{}, notFound()
	}
	c, err := s.check(ctx)
	if err != nil {
		return Check{}, storeError("read the newest check", err)
	}
	return c, nil
}

// Unknown counts the mails whose outcome nobody knows.
type Unknown struct {
	Mails   int64
	Users   int  // who have some
	Partial bool // there are too many users to ask for all
}

// Bounds of what operators are told of users.
const (
	maxUsers   = 1000
	unknownAge = 10 * time.Second // how long a count is used again
	usersAge   = 5 * time.Second
	usersAsked = 8 // at once
)

// UnknownOutcomes counts, over all users, the mails accepted today and yesterday
// (UTC) whose outcome is unknown.
func (s *Service) UnknownOutcomes(ctx context.Context, who Caller) (Unknown, error) {
	if err := who.operates(); err != nil {
		return Unknown{}, err
	}
	out, err := s.unknown.get(unknownAge, func() (Unknown, error) { return s.countUnknown(ctx, time.Now()) })
	if err != nil {
		return Unknown{}, storeError("count unknown outcomes", err)
	}
	return out, nil
}

func (s *Service) countUnknown(ctx context.Context, now time.Time) (Unknown, error) {
	users, err := s.users.get(usersAge, func() ([]models.User, error) { return s.store.Users(ctx) })
	if err != nil {
		return Unknown{}, err
	}
	out := Unknown{Partial: len(users) > maxUsers}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(usersAsked)
	for i := range users[:min(len(users), maxUsers)] {
		g.Go(func() error {
			nodes, err := s.store.Nodes(ctx, users[i].ID, models.Day, models.DayOf(now).AddDate(0, 0, -1), models.DayOf(now).AddDate(0, 0, 1))
			n := int64(0)
			for k := range nodes {
				for _, a := range nodes[k].Summary.Accounts {
					n += a.Unknown
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if out.Mails += n; n > 0 {
				out.Users++
			}
			return err
		})
	}
	return out, g.Wait()
}

// kept is what was read lately.
type kept[T any] struct {
	mu   sync.Mutex
	read time.Time
	v    T
}

// get returns what was read within age, or reads it anew, once for all who ask
// at the same time.
func (k *kept[T]) get(age time.Duration, read func() (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read.IsZero() && time.Since(k.read) < age {
		return k.v, nil
	}
	v, err := read()
	if err == nil {
		k.v, k.read = v, time.Now()
	}
	return v, err
}
