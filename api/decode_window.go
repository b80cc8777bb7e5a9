package api

import (
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// noWindow is a send window that lets mail leave at any time, whatever the defaults of the user are.
const noWindow = "none"

// jsonWindow decodes the send window of the batch.
func (d *decoder) jsonWindow(raw []byte) {
	if w, ok := d.windowOf("/"+intake.SendWindow, raw); ok {
		d.SetWindow(w)
	}
}

// windowOf decodes a send window at a pointer; nil: mail may leave at any time. It reports mistakes. ok is false if it
// cannot be read.
func (d *decoder) windowOf(at string, raw []byte) (w *intake.Window, ok bool) {
	if string(raw) == `"`+noWindow+`"` {
		return nil, true
	}
	if raw[0] != '{' {
		d.Wrong(at, "wrong_type", "send_window must be an object {from, to, weekdays, time_zone, strict}, or %q.", noWindow)
		return nil, false
	}
	w = new(intake.Window)
	into := map[string]any{
		"from": &w.From, "to": &w.To, "time_zone": &w.Zone, "weekdays": &w.Weekdays, "strict": &w.Strict,
	}
	seen := map[string]bool{}
	eachMember(raw, func(name string, value []byte) {
		here := at + service.Pointer(name)
		again := seen[name]
		seen[name] = true
		switch field, ok := into[name]; {
		case again:
			d.Wrong(here, "repeated", "%s is repeated.", name)
		case !ok:
			d.Wrong(here, "unknown_field", "A send window has the fields from, to, weekdays, time_zone and strict.")
		case !validText(value):
			d.Wrong(here, "invalid_text", "%s is not valid Unicode text.", name)
		case json.Unmarshal(value, field) != nil:
			d.Wrong(here, "wrong_type", "weekdays is a list of strings, strict is true or false, and the others are strings.")
		}
	})
	return w, true
}

// recipientTime decodes a time of a recipient.
func (d *decoder) recipientTime(at, name string, value []byte, r *intake.Recipient) {
	if value[0] == 'n' { // null counts as absent
		return
	}
	if r.Times == nil {
		r.Times = new(intake.Times)
	}
	switch {
	case name == intake.SendWindow:
		if w, ok := d.windowOf(at, value); ok {
			r.Times.Window, r.Times.AnyTime = w, w == nil
		}
	case value[0] != '"':
		d.Wrong(at, "wrong_type", "%s must be a string.", name)
	default:
		r.Times.SetText(name, unquote(value))
	}
}

// formWindow decodes a send window in a form.
func (d *decoder) formWindow(value string) {
	switch raw := []byte(strings.TrimSpace(value)); {
	case string(raw) == noWindow:
		d.SetWindow(nil)
	case json.Valid(raw):
		d.jsonWindow(raw)
	default:
		d.Wrong("/"+intake.SendWindow, "wrong_type",
			"send_window must be none, or JSON: an object {from, to, weekdays, time_zone}.")
	}
}

// timeFields returns the fields of a request about times: a send window, and some texts. A window that is null is none.
func (d *decoder) timeFields(texts ...string) map[string]any {
	fields := map[string]any{intake.SendWindow: setter(func(raw []byte) {
		if string(raw) == "null" {
			d.SetWindow(nil)
		} else {
			d.jsonWindow(raw)
		}
	})}
	for _, name := range texts {
		fields[name] = setter(func(raw []byte) {
			_ = d.jsonText(name, raw) // its only error is that of content that is too long
		})
	}
	return fields
}
