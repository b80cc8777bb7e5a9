package models

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MessageKind is the kind of a message.
type MessageKind string

// The kinds of message.
const (
	BatchMessage    MessageKind = "batch"    // dispatch a chunk through any provider
	ProviderMessage MessageKind = "provider" // dispatch a chunk through one provider
	LogMessage      MessageKind = "log"      // dispatch one recipient through one provider
	EventMessage    MessageKind = "event"    // process an inbox entry
)

// Message wakes a consumer. It carries IDs and no content. Losing, doubling, delaying
// or reordering messages costs only time.
type Message struct {
	Kind      MessageKind `json:"k"`
	Provider  string      `json:"a,omitempty"` // of provider, log and event messages: the namespace
	ID        ID          `json:"id"`          // chunk, log or inbox entry
	Retry     int         `json:"r,omitempty"` // #num of the routing key
	Lane      Lane        `json:"l,omitempty"` // not of events
	NotBefore time.Time   `json:"nb,omitzero"` // earliest delivery
	At        time.Time   `json:"at,omitzero"` // when it was queued; the broker sets it
}

// Stamp sets At, unless it is set, to now. If NotBefore is later than At, it sets At to
// NotBefore.
func (m *Message) Stamp(now time.Time) {
	if m.At.IsZero() {
		m.At = now.UTC().Round(0)
	}
	if m.NotBefore.After(m.At) {
		m.At = m.NotBefore.UTC().Round(0)
	}
}

// Key returns the routing key: batch.<uuid>, <ns>.<uuid> or log.<ns>.<uuid>, with
// .retry.N from the first retry on, or event.<ns>.
func (m *Message) Key() string {
	var b strings.Builder
	b.Grow(64)
	switch m.Kind {
	case EventMessage:
		return "event." + m.Provider
	case BatchMessage:
		b.WriteString("batch.")
	case LogMessage:
		b.WriteString("log.")
		b.WriteString(m.Provider)
		b.WriteByte('.')
	case ProviderMessage:
		b.WriteString(m.Provider)
		b.WriteByte('.')
	}
	b.WriteString(m.ID.String())
	if m.Retry > 0 {
		b.WriteString(".retry.")
		b.WriteString(strconv.Itoa(m.Retry))
	}
	return b.String()
}

// Validate returns an error if m cannot be published.
func (m *Message) Validate() error {
	switch m.Kind {
	case BatchMessage, ProviderMessage, LogMessage, EventMessage:
	default:
		return fmt.Errorf("%w: message kind %q", ErrInvalid, m.Kind)
	}
	if m.ID.IsZero() {
		return fmt.Errorf("%w: message without an id", ErrInvalid)
	}
	if m.Kind != BatchMessage && !ValidProviderName(m.Provider) {
		return fmt.Errorf("%w: message for provider %q", ErrInvalid, m.Provider)
	}
	if m.Kind != EventMessage && !m.Lane.Valid() {
		return fmt.Errorf("%w: message in lane %q", ErrInvalid, m.Lane)
	}
	if m.Retry < 0 {
		return fmt.Errorf("%w: message with retry %d", ErrInvalid, m.Retry)
	}
	return nil
}

// ValidProviderName reports whether s can be the name of a provider. The name is one
// word of the routing keys: 1 to 32 characters of a-z, 0-9 and '-', beginning with a
// letter. The names batch, log, event and feed are reserved.
func ValidProviderName(s string) bool {
	if s == "" || len(s) > 32 || s == "batch" || s == "log" || s == "event" || s == WakeKey {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z') && (i == 0 || !(c >= '0' && c <= '9' || c == '-')) {
			return false
		}
	}
	return true
}

// MatchKey reports whether a topic binding matches a routing key. In a binding '*'
// matches one word and '#' any number of words.
func MatchKey(binding, key string) bool {
	return matchWords(strings.Split(binding, "."), strings.Split(key, "."))
}

func matchWords(b, k []string) bool {
	for len(b) > 0 {
		if b[0] == "#" {
			for i := 0; i <= len(k); i++ {
				if matchWords(b[1:], k[i:]) {
					return true
				}
			}
			return false
		}
		if len(k) == 0 || b[0] != "*" && b[0] != k[0] {
			return false
		}
		b, k = b[1:], k[1:]
	}
	return len(k) == 0
}
