package parse

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Providers repeat a post for up to 24 hours and may send the first signature again, so
// younger posts are accepted. Repeats are recognised by other means. The skew allows
// for clocks that are wrong, ours or theirs.
const (
	maxAge  = 24 * time.Hour
	maxSkew = time.Hour
)

// Fresh checks the time that a signature covers: Unix seconds of exactly ten digits. The
// length matters: providers sign the time and what follows without a separator, so
// digits could be moved from one to the other.
//
// Errors: *models.WebhookError, with a status after which the provider repeats, because
// our clock may be wrong.
func Fresh(timestamp string, now time.Time) error {
	if len(timestamp) != 10 || strings.Trim(timestamp, "0123456789") != "" {
		return &models.WebhookError{Status: http.StatusBadRequest, Code: "malformed",
			Detail: "the timestamp is not ten digits"}
	}
	sec, _ := strconv.ParseInt(timestamp, 10, 64)
	if age := now.Sub(time.Unix(sec, 0)); age > maxAge+maxSkew || age < -maxSkew {
		return &models.WebhookError{Status: http.StatusForbidden, Code: "stale",
			Detail: "it was signed " + age.Round(time.Minute).String() + " ago"}
	}
	return nil
}

// RetryAt returns when a provider wants to be called again: the later of
// X-RateLimit-Reset (Unix seconds, or Brevo's seconds until then) and Retry-After (seconds or an HTTP date). It
// ignores times in the past and more than a day ahead.
func RetryAt(h http.Header, now time.Time) (at time.Time) {
	for _, name := range [...]string{"X-Ratelimit-Reset", "X-Sib-Ratelimit-Reset", "Retry-After"} {
		s := h.Get(name)
		var t time.Time
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n > 0 {
			if t = time.Unix(n, 0); n < 1e8 { // too small for a date: seconds from now
				t = now.Add(time.Duration(n) * time.Second)
			}
		} else if d, err := http.ParseTime(s); err == nil {
			t = d
		}
		if t = Believable(t, now); t.After(at) {
			at = t
		}
	}
	return at
}

// Longest is how far ahead the time of a provider is believed.
const Longest = 24 * time.Hour

// Believable returns t, or the zero time if t is in the past or more than a day ahead.
func Believable(t, now time.Time) time.Time {
	if !t.After(now) || t.Sub(now) > Longest {
		return time.Time{}
	}
	return t.UTC()
}
