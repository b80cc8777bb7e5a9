package mailgun

import (
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
)

// A template is a text with placeholders: %recipient.key% becomes a
// recipient-variable, %recipient% the address.
type template struct {
	name, text string
	holes      []hole
}

// A hole is a placeholder. The key is empty for the address.
type hole struct {
	at, end int
	key     string
}

// newTemplate returns the template of a form field.
func newTemplate(f field) template {
	t := template{name: f.name, text: f.value}
	const opening = "%recipient"
	for at := 0; ; {
		i := strings.Index(t.text[at:], opening)
		if i < 0 {
			return t
		}
		at += i
		tail := t.text[at+len(opening):]
		size := strings.IndexByte(tail, '%')
		switch {
		case size == 0:
			t.holes = append(t.holes, hole{at, at + len(opening) + 1, ""})
		case size > 1 && tail[0] == '.' && !strings.ContainsAny(tail[:size], " \t\r\n"):
			t.holes = append(t.holes, hole{at, at + len(opening) + size + 1, tail[1:size]})
		default:
			at += len(opening)
			continue
		}
		at = t.holes[len(t.holes)-1].end
	}
}

// fill returns the text for one recipient. A placeholder is kept if there is no
// such variable or its value is an object, a list or null.
func (t *template) fill(a address) string {
	var out strings.Builder
	at := 0
	for _, h := range t.holes {
		out.WriteString(t.text[at:h.at])
		at = h.end
		value, ok := a.addr, true
		if h.key != "" {
			value, ok = variable(a.vars, h.key)
		}
		if !ok {
			value = t.text[h.at:h.end]
		}
		out.WriteString(value)
	}
	out.WriteString(t.text[at:])
	return out.String()
}

// variable returns the value of key in the JSON object vars, which may be empty.
func variable(vars, key string) (value string, ok bool) {
	if vars == "" {
		return "", false
	}
	r := jsontext.NewReader(vars)
	r.Object(func(k string) {
		if ok || k != key {
			r.Skip()
			return
		}
		switch r.Peek() {
		case '"':
			value, ok = r.String(), true
		case '{', '[', 'n':
			r.Skip()
		default:
			value, ok = r.Skip(), true
		}
	})
	return value, ok
}
