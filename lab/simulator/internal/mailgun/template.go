package mailgun

import (
	"bytes"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
)

// A template is a text with placeholders: %recipient.key% becomes a
// recipient-variable, %recipient% the address.
type template struct {
	name, text []byte
	holes      []hole
}

// A hole is a placeholder. The key is nil for the address.
type hole struct {
	at, end int
	key     []byte
}

// newTemplate returns the template of a form field.
func newTemplate(f field) template {
	t := template{name: f.name, text: f.value}
	opening := []byte("%recipient")
	for at := 0; ; {
		i := bytes.Index(t.text[at:], opening)
		if i < 0 {
			return t
		}
		at += i
		tail := t.text[at+len(opening):]
		size := bytes.IndexByte(tail, '%')
		switch {
		case size == 0:
			t.holes = append(t.holes, hole{at, at + len(opening) + 1, nil})
		case size > 1 && tail[0] == '.' && !bytes.ContainsAny(tail[:size], " \t\r\n"):
			t.holes = append(t.holes, hole{at, at + len(opening) + size + 1, tail[1:size]})
		default:
			at += len(opening)
			continue
		}
		at = t.holes[len(t.holes)-1].end
	}
}

// fill appends the text for one recipient. A placeholder is kept if there is no
// such variable or its value is an object, a list or null.
func (t *template) fill(dst []byte, a address, vars *jsontext.Scanner) []byte {
	at := 0
	for _, h := range t.holes {
		dst = append(dst, t.text[at:h.at]...)
		at = h.end
		if h.key == nil {
			dst = append(dst, a.addr...)
		} else if value, ok := variable(a.vars, h.key, vars); ok {
			dst = append(dst, value...)
		} else {
			dst = append(dst, t.text[h.at:h.end]...)
		}
	}
	return append(dst, t.text[at:]...)
}

// variable returns the value of key in the JSON object v of the document vars.
func variable(v jsontext.Span, key []byte, vars *jsontext.Scanner) (value []byte, ok bool) {
	if v.Empty() {
		return nil, false
	}
	s := vars.At(v)
	s.Object(func(k jsontext.Span) {
		if ok || !bytes.Equal(s.Text(k), key) {
			s.Skip()
			return
		}
		switch s.Peek() {
		case '"':
			value, ok = s.Text(s.ReadString()), true
		case '{', '[', 'n':
			s.Skip()
		default:
			value, ok = s.Raw(s.Skip()), true
		}
	})
	return value, ok
}
