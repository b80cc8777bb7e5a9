package provider

import (
	"maps"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// refusedSenders holds the domains that a healthy provider refuses to send for. Mail from
// other domains is not affected. The caller holds a lock.
type refusedSenders struct {
	until map[string]time.Time // when the domain is tried again
}

// maxSenders bounds the domains held for a provider, because users choose them. A domain
// beyond the bound costs a call now and then.
const maxSenders = 500

// refuse suspends mail from a domain until a time, and reports whether that changes
// anything.
func (s *refusedSenders) refuse(domain string, now, until time.Time) bool {
	domain = strings.ToLower(domain)
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
	clear(s.until)
}

// left returns the domains and how much longer each is suspended.
func (s *refusedSenders) left(now time.Time) map[string]time.Duration {
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
