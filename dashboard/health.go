package dashboard

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// healthy is the word of workers for a provider that takes mail.
const healthy = "healthy"

// healthWords says what a worker's word for a provider's health means.
func healthWords(state string) string {
	switch state {
	case healthy:
		return "takes mail"
	case "half-open":
		return "is tried again"
	case "open":
		return "is down"
	case "shut":
		return "refuses this provider"
	case "slowed":
		return "asked to wait"
	case "offline":
		return "was taken offline"
	case "drain":
		return "is being drained"
	}
	return "is " + state
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
