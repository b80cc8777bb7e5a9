package provider

import (
	"context"
	"errors"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// slots limits concurrent calls. A few slots are reserved for urgent mail, so that bulk
// mail never holds all of them. While bulk mail waits, urgent mail leaves it a share.
type slots struct {
	mu    sync.Mutex
	most  int
	used  int
	bulk  int           // of used
	wait  [2]int        // calls that wait: urgent, bulk
	turns int           // urgent calls since the last one of bulk
	came  chan struct{} // closed and replaced when a slot may be free
}

func newSlots(n int) *slots { return &slots{most: n, came: make(chan struct{})} }

// limit sets the number of slots. Calls that run already are not affected.
func (s *slots) limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != n {
		s.most = n
		s.wake()
	}
}

// Running returns the number of running calls.
func (s *slots) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (s *slots) wake() {
	close(s.came)
	s.came = make(chan struct{})
}

// The parts of the slots that are reserved for each lane.
const (
	urgentPart = 8 // one in so many is reserved for urgent mail
	bulkPart   = 4 // one in so many is left to bulk mail while it waits
)

// onePart returns n/of, but at least one if n is two or more.
func onePart(n, of int) int {
	if n > 1 {
		return max(1, n/of)
	}
	return 0
}

func laneNumber(l models.Lane) int {
	if l == models.Urgent {
		return 0
	}
	return 1
}

// free reports whether a call of a lane may begin.
func (s *slots) free(l models.Lane) bool {
	if s.most == 1 { // the lanes alternate
		due := s.turns >= bulkPart-1
		if l != models.Urgent {
			return s.used == 0 && (due || s.wait[0] == 0)
		}
		return s.used == 0 && !(due && s.wait[1] > 0)
	}
	if l != models.Urgent {
		return s.used < s.most && s.bulk < s.most-onePart(s.most, urgentPart)
	}
	owed := 0
	if s.wait[1] > 0 {
		owed = max(0, onePart(s.most, bulkPart)-s.bulk)
	}
	return s.used < s.most-owed
}

// idle reports whether a call of a lane may begin while no other waits.
func (s *slots) idle(l models.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free(l) && s.wait == [2]int{}
}

// Try acquires a slot if one is free, and returns the function that releases it.
func (s *slots) Try(l models.Lane) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.free(l) {
		return nil, false
	}
	s.used++
	if l == models.Urgent {
		s.turns++
	} else {
		s.bulk++
		s.turns = 0
	}
	return func() { s.release(l) }, true
}

func (s *slots) release(l models.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if l != models.Urgent {
		s.bulk--
	}
	s.wake()
}

// ErrNoSlots reports that this worker's share of the provider's slots is zero.
var ErrNoSlots = errors.New("no slots")

// Acquire waits for a slot until ctx ends. Errors: ErrNoSlots, at once; ctx's.
func (s *slots) Acquire(ctx context.Context, l models.Lane) (release func(), err error) {
	lane := laneNumber(l)
	waiting := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait[lane] += n
		if n < 0 {
			s.wake() // others may have waited for this call
		}
	}
	waiting(1)
	defer waiting(-1)
	for {
		s.mu.Lock()
		came, none := s.came, s.most == 0
		s.mu.Unlock()
		if none {
			return nil, ErrNoSlots
		}
		if release, ok := s.Try(l); ok {
			return release, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Waiting returns how many calls of a lane wait for a slot.
func (s *slots) Waiting(l models.Lane) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wait[laneNumber(l)]
}
