package dashboard

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// healthWords returns a health as the predicate of a sentence.
func healthWords(h *telemetry.Health) string {
	switch h.State {
	case telemetry.Healthy:
		return "takes mail"
	case telemetry.Draining:
		return "is being drained"
	case telemetry.Probation:
		return "gets little mail until it reports on it"
	case telemetry.Probing:
		return "is being tested with single messages"
	case telemetry.Suspended:
		return suspendedWords[h.Source]
	case telemetry.Offline:
		return "was taken offline"
	}
	return "is " + h.State
}

// suspendedWords has what happened before a suspension, by its source.
var suspendedWords = map[string]string{
	telemetry.CallsFailed: "is down",
	telemetry.Rejected:    "rejects its credentials or quota",
	telemetry.RetryAfter:  "asked to wait",
	telemetry.Silence:     "reports nothing about its mail",
}

// sentence makes a fragment a sentence.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	r, n := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(r)) + s[n:]
	if !strings.ContainsAny(s[len(s)-1:], ".!?") {
		s += "."
	}
	return s
}
