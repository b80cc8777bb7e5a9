package parse

import (
	"net/http"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Providers repeat a post for up to 24 hours and may carry the first signature
// along, so anything younger is taken; repeats are recognised by other means.
// The skew in both directions is for clocks that are off, ours or theirs.
const (
	maxAge  = 24 * time.Hour
	maxSkew = time.Hour
)

// Fresh checks the time that a signature covers: Unix seconds of exactly ten
// digits. The length matters: providers sign the time and what follows without a
// separator, so digits could be moved from one to the other.
//
// The refusal lets the provider repeat: it may be our clock that is wrong.
func Fresh(timestamp string, now time.Time) error {
	if !TenDigits(timestamp) {
		return &models.WebhookError{Status: http.StatusBadRequest, Code: "malformed", Detail: "the timestamp is not ten digits"}
	}
	sec, _ := strconv.ParseInt(timestamp, 10, 64)
	switch age := now.Sub(time.Unix(sec, 0)); {
	case age > maxAge+maxSkew:
		return &models.WebhookError{Status: http.StatusForbidden, Code: "stale", Detail: "it was signed " + age.Round(time.Minute).String() + " ago"}
	case age < -maxSkew:
		return &models.WebhookError{Status: http.StatusForbidden, Code: "stale", Detail: "it was signed " + (-age).Round(time.Minute).String() + " in the future"}
	}
	return nil
}

// TenDigits reports whether s is ten decimal digits.
func TenDigits(s string) bool {
	if len(s) != 10 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// NotConfigured refuses posts to a provider that has no key to verify them with.
// The provider repeats them until it has one.
func NotConfigured() error {
	return &models.WebhookError{Status: http.StatusServiceUnavailable, Code: "not_configured", Detail: "this provider has no webhook key"}
}

// RetryAt reads when a provider wants to be called again from X-RateLimit-Reset
// (Unix seconds) and Retry-After (seconds or an HTTP date): the later of them. Times
// that have passed or lie more than a day ahead are not believed.
func RetryAt(h http.Header, now time.Time) (at time.Time) {
	for _, name := range [...]string{"X-Ratelimit-Reset", "Retry-After"} {
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

// Believable returns t, or zero if it is no time to wait for.
func Believable(t, now time.Time) time.Time {
	if !t.After(now) || t.Sub(now) > 24*time.Hour {
		return time.Time{}
	}
	return t.UTC()
}
