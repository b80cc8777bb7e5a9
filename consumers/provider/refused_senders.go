package provider

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// refusedSenders holds the domains that a healthy provider refuses to send for. Mail from
// other domains is not affected.
type refusedSenders struct {
	mu    sync.Mutex
	until map[string]time.Time // when the domain is tried again
}

// maxSenders bounds the domains held for a provider, because users choose them. A domain
// beyond the bound costs a call now and then.
const maxSenders = 500

// refuse suspends mail from a domain until a time, and reports whether that changes
// anything.
func (s *refusedSenders) refuse(domain string, now, until time.Time) bool {
	domain = strings.ToLower(domain)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.until, func(_ string, t time.Time) bool { return !now.Before(t) })
	_, known := s.until[domain]
	if !known && len(s.until) >= maxSenders {
		return false
	}
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	s.until[domain] = models.LaterOf(s.until[domain], until)
	return !known
}

// refused returns until when mail from a domain is suspended; zero: it is not.
func (s *refusedSenders) refused(domain string, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.until) == 0 {
		return time.Time{}
	}
	if t := s.until[strings.ToLower(domain)]; now.Before(t) {
		return t
	}
	return time.Time{}
}

// forget drops all domains, so that they are tried again.
func (s *refusedSenders) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.until)
}

// left returns the domains and how much longer each is suspended.
func (s *refusedSenders) left(now time.Time) map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out map[string]time.Duration
	for domain, t := range s.until {
		if now.Before(t) {
			if out == nil {
				out = map[string]time.Duration{}
			}
			out[domain] = t.Sub(now)
		}
	}
	return out
}

// list returns the domains.
func (s *refusedSenders) list(now time.Time) []string { return slices.Collect(maps.Keys(s.left(now))) }
