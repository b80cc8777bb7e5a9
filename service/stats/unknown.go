package stats

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Unknown counts the mails whose outcome is unknown.
type Unknown struct {
	Mails   int64
	Users   int  // number of users that have such mails
	Partial bool // only the first people.MaxUsers users were counted
}

// UnknownOutcomes counts the mails of all users that were accepted today or yesterday
// (UTC) and whose outcome is unknown.
func (s *Reader) UnknownOutcomes(ctx context.Context, who caller.Caller) (Unknown, error) {
	if err := who.NeedOperator(); err != nil {
		return Unknown{}, err
	}
	out, err := s.unknown.Get(unknownAge, func() (Unknown, error) { return s.countUnknown(ctx, time.Now()) })
	if err != nil {
		return Unknown{}, problem.FromStore("count unknown outcomes", err)
	}
	return out, nil
}

func (s *Reader) countUnknown(ctx context.Context, now time.Time) (Unknown, error) {
	users, err := s.People.All(ctx)
	if err != nil {
		return Unknown{}, err
	}
	out := Unknown{Partial: len(users) > people.MaxUsers}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(usersAtOnce)
	for i := range users[:min(len(users), people.MaxUsers)] {
		g.Go(func() error {
			sum, err := models.Lately(ctx, s.Store, users[i].ID, now)
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

const (
	unknownAge  = 10 * time.Second // how long a count is cached
	usersAtOnce = 8                // users whose mail is counted at the same time
)
