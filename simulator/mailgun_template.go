package simulator

import "bytes"

// A mgTemplate is a text with placeholders: %recipient.key% stands for a
// recipient-variable, %recipient% for the address.
type mgTemplate struct {
	name, text []byte
	holes      []mgHole
}

// A mgHole is a placeholder; key is nil for the address.
type mgHole struct {
	at, end int
	key     []byte
}

func newTemplate(f mgField) mgTemplate {
	t := mgTemplate{name: f.name, text: f.value}
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
			t.holes = append(t.holes, mgHole{at, at + len(opening) + 1, nil})
		case size > 1 && tail[0] == '.' && !bytes.ContainsAny(tail[:size], " \t\r\n"):
			t.holes = append(t.holes, mgHole{at, at + len(opening) + size + 1, tail[1:size]})
		default:
			at += len(opening)
			continue
		}
		at = t.holes[len(t.holes)-1].end
	}
}

// fill appends the text for one recipient. A placeholder stays as it is if there
// is no such variable or its value is neither text nor number.
func (t *mgTemplate) fill(dst []byte, a mgAddr, vars *scanner) []byte {
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

// variable looks up key in the JSON object v of the scanned document.
func variable(v span, key []byte, vars *scanner) (value []byte, ok bool) {
	if v.empty() {
		return nil, false
	}
	s := scanner{buf: vars.buf, pos: int(v.at)}
	s.object(func(k span) {
		if ok || !bytes.Equal(s.text(k), key) {
			s.skip()
			return
		}
		switch s.peek() {
		case '"':
			value, ok = s.text(s.str()), true
		case '{', '[', 'n':
			s.skip()
		default:
			value, ok = s.raw(s.skip()), true
		}
	})
	return value, ok
}
