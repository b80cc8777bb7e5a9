package service

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of the commands of a caller about one batch or user.
const (
	commandBurst = 10              // commands at once
	commandPause = 6 * time.Second // then one command in this time
	maxLimiters  = 10_000          // callers and targets that are counted at a time
)

// commandRate limits how often a caller resumes, retries or releases one batch, or resumes
// one user, in this process. It never limits what withholds mail: without a resumption a
// repeat changes nothing.
type commandRate struct {
	mu       sync.Mutex
	limiters map[commandTarget]*rate.Limiter
}

type commandTarget struct{ by, target string }

// take counts a command of a caller about a batch or a user, given by ID. It returns an
// error if the caller has given too many.
func (c *commandRate) take(who Caller, target string) error {
	now := time.Now()
	r := c.limiter(commandTarget{who.by(), target}, now).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	return Fail(TooMany, "too_many_commands",
		"You have given more than %d commands about the same batch or user within a minute. Repeat the request later.",
		commandBurst).
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
