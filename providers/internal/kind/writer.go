package kind

import "encoding/base64"

// A Writer writes JSON, with commas where they are needed. It escapes only what it must, because HTML would become much
// longer. Strings are valid UTF-8.
type Writer []byte

// next writes the comma before a value or a name.
func (w *Writer) next() {
	if n := len(*w); n > 0 {
		if last := (*w)[n-1]; last != '{' && last != '[' && last != ':' {
			*w = append(*w, ',')
		}
	}
}

// Begin begins an object or a list.
func (w *Writer) Begin(bracket byte) *Writer {
	w.next()
	*w = append(*w, bracket)
	return w
}

// End ends an object or a list.
func (w *Writer) End(bracket byte) *Writer {
	*w = append(*w, bracket)
	return w
}

// Key writes the name of a member, which needs no escapes.
func (w *Writer) Key(name string) *Writer {
	w.next()
	*w = append(append(append(*w, '"'), name...), '"', ':')
	return w
}

// Pair writes a member with any name that is a string.
func (w *Writer) Pair(name, value string) *Writer {
	*w = append(*w.String(name), ':')
	return w.String(value)
}

// Field writes a member that is a string.
func (w *Writer) Field(name, value string) *Writer { return w.Key(name).String(value) }

// Optional writes a member that is a string, unless that is empty.
func (w *Writer) Optional(name, value string) *Writer {
	if value != "" {
		w.Field(name, value)
	}
	return w
}

// Person writes an object with the members email and name.
func (w *Writer) Person(name, email string) *Writer {
	return w.Begin('{').Field("email", email).Optional("name", name).End('}')
}

// Bool writes a member that is true or false.
func (w *Writer) Bool(name string, value bool) *Writer {
	w.Key(name)
	*w = append(*w, map[bool]string{true: "true", false: "false"}[value]...)
	return w
}

// Some writes a member that is a list or an object, unless it is empty.
func Some[T any](w *Writer, name string, bracket byte, list []T, write func(T)) {
	if len(list) == 0 {
		return
	}
	w.Key(name).Begin(bracket)
	for _, v := range list {
		write(v)
	}
	w.End(bracket + 2) // as in ASCII
}

// Base64 writes a member that is a file. The base64 is written where it stays.
func (w *Writer) Base64(name string, data []byte) *Writer {
	w.Key(name)
	*w = append(base64.StdEncoding.AppendEncode(append(*w, '"'), data), '"')
	return w
}

// String writes a string.
func (w *Writer) String(s string) *Writer {
	w.next()
	b, from := append(*w, '"'), 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, '\\', 'u', '0', '0', '0'+c>>4, "0123456789abcdef"[c&15])
		}
		from = i + 1
	}
	*w = append(append(b, s[from:]...), '"')
	return w
}
