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

// LastCheck returns the newest recount that a worker made of recently accepted batches.
// It returns a NotFound error if no worker has made one lately.
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

// Unknown counts the mails whose outcome is unknown.
type Unknown struct {
	Mails   int64
	Users   int  // number of users that have such mails
	Partial bool // only the first maxUsers users were counted
}

// Bounds of what operators see of all users.
const (
	maxUsers    = 1000
	unknownAge  = 10 * time.Second // how long a count is cached
	usersAge    = 5 * time.Second  // how long the list of users is cached
	usersAtOnce = 8                // users counted at the same time
)

// UnknownOutcomes counts the mails of all users that were accepted today or yesterday
// (UTC) and whose outcome is unknown.
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
	g.SetLimit(usersAtOnce)
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

// cached is a value that was read from the store.
type cached[T any] struct {
	mu   sync.Mutex
	read time.Time
	v    T
}

// get returns the cached value if it is younger than age. Otherwise it calls read, once
// for all concurrent callers.
func (c *cached[T]) get(age time.Duration, read func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && time.Since(c.read) < age {
		return c.v, nil
	}
	v, err := read()
	if err == nil {
		c.v, c.read = v, time.Now()
	}
	return v, err
}
