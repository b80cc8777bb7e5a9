package quota

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// CommandBurst is the number of commands that a caller may give about a target at once.
// Another becomes possible every commandPause.
const CommandBurst = 10

const (
	commandPause = 6 * time.Second
	maxLimiters  = 10_000 // callers and targets that are counted at a time
)

// Commands limits how often a caller gives commands about a target, in this process. The zero value is ready for use.
type Commands struct {
	mu       sync.Mutex
	limiters map[commandTarget]*rate.Limiter
}

type commandTarget struct{ by, target string }

// Take counts a command and returns 0, or returns how long the caller must wait first.
func (c *Commands) Take(by, target string) (wait time.Duration) {
	now := time.Now()
	r := c.limiter(commandTarget{by, target}, now).ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

func (c *Commands) limiter(t commandTarget, now time.Time) *rate.Limiter {
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
			if l.TokensAt(now) >= CommandBurst {
				delete(c.limiters, t)
			}
		}
		if len(c.limiters) >= maxLimiters {
			clear(c.limiters)
		}
	}
	l = rate.NewLimiter(rate.Every(commandPause), CommandBurst)
	c.limiters[t] = l
	return l
}
