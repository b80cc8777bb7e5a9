package drill

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// incident is what broke in a drill, and when.
type incident struct {
	began    time.Time // the drill
	brokenAt time.Time
	healedAt time.Time
	killed   int         // processes, while they worked
	woken    []time.Time // when a frozen worker was woken
	heldUp   standstills
}

// broken notes that the fault has been injected.
func (i *incident) broken() {
	if i.killed == 0 { // kill has set it
		i.brokenAt = time.Now()
	}
}

// kill notes that a process is killed.
func (i *incident) kill() {
	if i.killed++; i.brokenAt.IsZero() {
		i.brokenAt = time.Now()
	}
}

// ran reports whether all processes ran all the time.
func (i *incident) ran() bool { return !i.heldUp.any() && i.killed == 0 && len(i.woken) == 0 }

const (
	// heldUpFor is how long the drill has to stand still until workers are taken to have done so, too.
	heldUpFor = callTimeout
	// shortest is the length of the shortest standstill that is noted.
	shortest = callTimeout / 8
)

// standstills are the times in which the machine held the drill up. Its methods may be called by many goroutines at
// once.
type standstills struct {
	mu   sync.Mutex
	list []standstill
}

type standstill struct{ from, to time.Time }

// note notes standstills until ctx ends.
func (s *standstills) note(ctx context.Context) {
	last := time.Now()
	for range models.Every(ctx, pollLeast) {
		now := time.Now()
		if now.Sub(last) > shortest {
			s.add(last, now)
		}
		last = now
	}
}

func (s *standstills) add(from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, standstill{from, to})
}

func (s *standstills) any() bool { return s.within(time.Time{}, time.Now()) }

// within reports whether there was a standstill longer than heldUpFor between two times, or one that had begun before or
// ended after.
func (s *standstills) within(from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.list, func(x standstill) bool {
		return x.to.Sub(x.from) > heldUpFor && x.to.After(from) && x.from.Before(to)
	})
}

// cutOff reports whether standstills may have used up the time of a call: there was a long one, or the call ran into its
// time-out, and would not have done so without the shorter ones.
func (s *standstills) cutOff(from, to time.Time) bool {
	return s.within(from, to) || to.Sub(from) >= callTimeout && s.ran(from, to) < callTimeout
}

// ran returns how long the machine was running between two times.
func (s *standstills) ran(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	ran := to.Sub(from)
	for _, x := range s.list {
		ran -= max(0, models.EarlierOf(x.to, to).Sub(models.LaterOf(x.from, from)))
	}
	return ran
}
