package service

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/models"
)

// Limits of the commands of a user about one batch.
const (
	commandBurst = 10              // commands at once
	commandPause = 6 * time.Second // then one command in this time
	maxLimiters  = 10_000          // batches and users that are counted at a time
)

// commandRate limits how often a user resumes, retries or releases one batch, in this
// process. It never limits a stop or a cancellation: without a resumption a repeat of them
// changes nothing.
type commandRate struct {
	mu       sync.Mutex
	limiters map[commandTarget]*rate.Limiter
}

type commandTarget struct {
	user  string
	batch models.ID
}

// take counts a command. It returns an error if the user has given too many.
func (c *commandRate) take(user string, batch models.ID) error {
	now := time.Now()
	r := c.limiter(commandTarget{user, batch}, now).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	return Fail(TooMany, "too_many_commands",
		"You have given more than %d commands about this batch within a minute. Repeat the request later.", commandBurst).
		After(int(math.Ceil(wait.Seconds())))
}

func (c *commandRate) limiter(t commandTarget, now time.Time) *rate.Limiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.limiters[t]
	if l != nil {
		return l
	}
	if c.limiters == nil {
		c.limiters = map[commandTarget]*rate.Limiter{}
	}
	if len(c.limiters) >= maxLimiters {
		for t, l := range c.limiters {
			if l.TokensAt(now) >= commandBurst {
				delete(c.limiters, t)
			}
		}
		if len(c.limiters) >= maxLimiters {
			clear(c.limiters)
		}
	}
	l = rate.NewLimiter(rate.Every(commandPause), commandBurst)
	c.limiters[t] = l
	return l
}
