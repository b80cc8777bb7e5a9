package service

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// LastCheck is the newest recount that workers made by themselves, of what was
// accepted in the minutes before it. Not found where none was made lately.
func (s *Service) LastCheck(ctx context.Context, who Caller) (out telemetry.Recount, err error) {
	if err := who.operates(); err != nil {
		return out, err
	}
	raw, err := s.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	if errors.Is(err, models.ErrNotFound) {
		return out, Fail(NotFound, "not_found", "No worker has recounted the sums lately.")
	}
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return out, storeError("read the newest recount", err)
	}
	return out, nil
}

// Unknown counts the mails of unknown outcome.
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
			sum, err := models.Lately(ctx, s.store, users[i].ID, now)
			mu.Lock()
			defer mu.Unlock()
			if n := sum.Unknown(); n > 0 {
				out.Mails += n
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
