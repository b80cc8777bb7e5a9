package api

import (
	"encoding/json"
	"strings"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// noWindow is a send window that lets mail leave at any time, whatever the defaults of the user are.
const noWindow = "none"

// jsonWindow decodes a send window.
func (d *decoder) jsonWindow(raw []byte) {
	const at = "/" + intake.SendWindow
	if string(raw) == `"`+noWindow+`"` {
		d.SetWindow(nil)
		return
	}
	if raw[0] != '{' {
		d.Wrong(at, "wrong_type", "send_window must be an object {from, to, weekdays, time_zone, strict}, or %q.", noWindow)
		return
	}
	var w intake.Window
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
	d.SetWindow(&w)
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
