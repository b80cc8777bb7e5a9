package api

import (
	"encoding/json"
	"reflect"

	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// reporter takes mistakes in a request.
type reporter interface {
	Wrong(pointer, code, detail string, args ...any)
}

// noWindow is a send window that lets mail leave at any time, in place of the default of the user.
const noWindow = "none"

// jsonWindow decodes a send window at a pointer. It reports mistakes, and returns nil if it cannot be read.
func jsonWindow(m reporter, at string, raw []byte) *intake.Window {
	if string(raw) == `"`+noWindow+`"` {
		return &intake.Window{None: true}
	}
	if raw[0] != '{' {
		m.Wrong(at, "wrong_type", "send_window must be an object {from, to, weekdays, time_zone, strict}, or %q.", noWindow)
		return nil
	}
	w := new(intake.Window)
	into, seen := operation.Pointers(reflect.ValueOf(w)), map[string]bool{}
	eachMember(raw, func(name string, value []byte) {
		here := at + problem.Pointer(name)
		again := seen[name]
		seen[name] = true
		switch field, ok := into[name]; {
		case again:
			m.Wrong(here, "repeated", "%s is repeated.", name)
		case !ok:
			m.Wrong(here, "unknown_field", "A send window has the fields from, to, weekdays, time_zone and strict.")
		case !validText(value):
			m.Wrong(here, "invalid_text", "%s is not valid Unicode text.", name)
		case json.Unmarshal(value, field) != nil:
			m.Wrong(here, "wrong_type", "weekdays is a list of strings, strict is true or false, and the others are strings.")
		}
	})
	return w
}

// jsonText decodes a text at a pointer. It reports mistakes, and whether there are none. filled: the text must not be
// empty.
func jsonText(m reporter, at, name string, raw []byte, filled bool, into *string) bool {
	switch {
	case raw[0] != '"':
		m.Wrong(at, "wrong_type", "%s must be a string.", name)
	case !validText(raw):
		m.Wrong(at, "invalid_text", "%s is not valid Unicode text.", name)
	case filled && len(raw) == len(`""`):
		m.Wrong(at, "invalid_value", "%s is empty. Leave it out, or give it a value.", name)
	default:
		*into = unquote(raw)
		return true
	}
	return false
}

// jsonTime decodes a time of a batch or a recipient.
func jsonTime(m reporter, at, name string, raw []byte, t *intake.Times) {
	if text := t.Time(name); text != nil {
		jsonText(m, at, name, raw, name != intake.TimeZone, text)
	} else {
		t.Window = jsonWindow(m, at, raw)
	}
}

// isTime reports whether a field is a time.
func isTime(name string) bool {
	return name == intake.SendWindow || new(intake.Times).Time(name) != nil
}

// timeFields returns the fields of a command about times: a send window, and some texts. A window that is null is none.
func timeFields(t *intake.Times, texts ...string) map[string]any {
	fields := map[string]any{}
	for _, name := range append(texts, intake.SendWindow) {
		fields[name] = setter(func(raw []byte, form *problem.Form) {
			if name == intake.SendWindow && string(raw) == "null" {
				raw = []byte(`"` + noWindow + `"`)
			}
			jsonTime(form, "/"+name, name, raw, t)
		})
	}
	return fields
}
