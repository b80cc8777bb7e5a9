package provider

import (
	"context"
	"errors"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// slots are the calls that may run at once. A few are kept for urgent mail, so
// that bulk can never hold all of them; and while bulk waits, urgent leaves it a
// share, so that it is never starved.
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

// limit sets how many there are. Calls that run already end in peace.
func (s *slots) limit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most != n {
		s.most = n
		s.wake()
	}
}

// Running is how many calls run.
func (s *slots) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (s *slots) wake() {
	close(s.came)
	s.came = make(chan struct{})
}

// The parts of the slots that each lane has for itself.
const (
	urgentPart = 8 // one of so many is kept for urgent mail
	bulkPart   = 4 // one of so many is left to bulk while it waits
)

// onePart is n/of, and one at least if there are two.
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
	if s.most == 1 { // they take turns
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

// idle reports whether a call of a lane may begin, and nobody waits to begin one.
func (s *slots) idle(l models.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free(l) && s.wait == [2]int{}
}

// Try takes a slot if one is free and returns how to give it back.
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

// ErrNoSlots: this worker's part of the provider's calls is none.
var ErrNoSlots = errors.New("no slots")

// Acquire waits for a slot until ctx ends. Errors: ErrNoSlots, at once; ctx's.
func (s *slots) Acquire(ctx context.Context, l models.Lane) (release func(), err error) {
	lane := laneNumber(l)
	waiting := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait[lane] += n
		if n < 0 {
			s.wake() // others may have waited for this one's turn
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
