package provider

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// refusedSenders are the domains that a provider refuses to send for, although the
// provider is well: whoever else uses it is not to suffer from them.
type refusedSenders struct {
	mu    sync.Mutex
	until map[string]time.Time // when the domain is tried again
}

// maxSenders bounds what is remembered of a provider, as whoever may use it
// names the domains. Those beyond cost a call each now and then.
const maxSenders = 500

// refuse keeps mail from a domain away until a time, and reports whether that is
// news.
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

// refused is until when mail from a domain is kept away; zero: it is not.
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

// forget has all domains tried again.
func (s *refusedSenders) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.until)
}

// left lists the domains and how much longer each is kept away.
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

// list names the domains.
func (s *refusedSenders) list(now time.Time) []string { return slices.Collect(maps.Keys(s.left(now))) }
