package intake

import (
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// maxOwnNames is the number of different names of header fields of recipients that are counted.
const maxOwnNames = 100

const listUnsubscribe = "list-unsubscribe"

// ownHeaders is what is known of the header fields that recipients have of their own.
type ownHeaders struct {
	added  int            // recipients
	names  map[string]int // how many of them have a field, by its name in lower case
	more   bool           // there are more names than are counted
	filled bool           // some values have placeholders
}

// note counts the header fields of a recipient.
func (o *ownHeaders) note(headers []models.Header) {
	o.added++
	for _, h := range headers {
		name := strings.ToLower(h.Name)
		if o.names == nil {
			o.names = map[string]int{}
		}
		if o.names[name] == 0 && len(o.names) == maxOwnNames && name != listUnsubscribe {
			o.more = true
			continue
		}
		o.names[name]++
		o.filled = o.filled || strings.Contains(h.Value, "{{")
	}
}

// kind returns what header fields the recipients of a message with some fields have.
func (o *ownHeaders) kind(headers []models.Header) models.OwnHeaders {
	if len(o.names) == 0 {
		return ""
	}
	for name, n := range o.names {
		if n < o.added && models.FindHeader(headers, name) < 0 {
			return models.DifferentNames
		}
	}
	if o.more {
		return models.DifferentNames
	}
	return models.SameNames
}

// checkOwnHeaders reports placeholders in the header fields of a recipient that have no value, and values that do not
// fit.
func (m *Mistakes) checkOwnHeaders(here string, r *models.Recipient, batch *models.Batch) {
	for _, h := range r.Headers {
		for _, n := range models.Placeholders(h.Value) {
			if _, ok := r.Value(n); !ok && (n != models.UnsubscribeURL || batch.Unsubscribe == nil) {
				m.Wrong(here+problem.Pointer("headers", h.Name), "unknown_placeholder", "{{%s}} has no value here.", n)
			}
		}
		m.checkLine(here, r, newLine("the header field "+h.Name, h.Value))
	}
}
