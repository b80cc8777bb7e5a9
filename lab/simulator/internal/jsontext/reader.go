// Package jsontext reads and writes JSON without building values.
package jsontext

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// A Reader reads a JSON document from front to back. Only decoding the call for 1,000
// recipients with encoding/json takes longer than the whole call does here. The simulator
// shares its processors with the product that is being measured.
//
// Errors are sticky: after the first one, every method returns at once and values are
// zero. A Reader accepts what encoding/json accepts, except documents nested deeper
// than 500 levels.
type Reader struct {
	text  string
	pos   int
	depth int
	bad   bool
}

const maxDepth = 500

// NewReader returns a Reader of a document.
func NewReader(text string) *Reader { return &Reader{text: text} }

// Fail makes the document invalid.
func (r *Reader) Fail() { r.bad = true }

// OK reports whether the whole document was read without an error.
func (r *Reader) OK() bool { return !r.bad && r.Peek() == 0 && r.pos == len(r.text) }

// Peek skips white space and returns the next byte, or 0 at the end.
func (r *Reader) Peek() byte {
	for ; r.pos < len(r.text); r.pos++ {
		switch c := r.text[r.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// expect consumes the byte c.
func (r *Reader) expect(c byte) bool {
	if r.bad || r.Peek() != c {
		r.bad = true
		return false
	}
	r.pos++
	return true
}

// String reads a string. It is a part of the document unless it has escapes.
func (r *Reader) String() string {
	quoted := r.quoted()
	if r.bad {
		return ""
	}
	if text := quoted[1 : len(quoted)-1]; strings.IndexByte(text, '\\') < 0 && utf8.ValidString(text) {
		return text
	}
	var text string
	r.bad = json.Unmarshal([]byte(quoted), &text) != nil
	return text
}

// quoted reads a string and returns it with its quotes and escapes.
func (r *Reader) quoted() string {
	if !r.expect('"') {
		return ""
	}
	start, escaped := r.pos-1, false
	for i := r.pos; i < len(r.text) && r.text[i] >= ' '; i++ {
		switch r.text[i] {
		case '"':
			r.pos = i + 1
			text := r.text[start:r.pos]
			r.bad = escaped && !json.Valid([]byte(text))
			return text
		case '\\':
			escaped = true
			i++
		}
	}
	r.bad = true
	return ""
}

// Null consumes a null if one is next, and reports whether it did.
func (r *Reader) Null() bool { return !r.bad && r.Peek() == 'n' && r.Skip() == "null" }

// Object reads an object. It calls member for each key; member must consume exactly
// one value.
func (r *Reader) Object(member func(key string)) {
	r.list('{', '}', func() {
		key := r.String()
		r.expect(':')
		member(key)
	})
}

// Array reads an array. It calls element for each element; element must consume
// exactly one value.
func (r *Reader) Array(element func()) { r.list('[', ']', element) }

func (r *Reader) list(begin, end byte, element func()) {
	if !r.expect(begin) {
		return
	}
	if r.depth++; r.depth > maxDepth {
		r.bad = true
	}
	for more := r.Peek() != end; more && !r.bad; {
		element()
		if more = r.Peek() == ','; more {
			r.pos++
		}
	}
	r.depth--
	r.expect(end)
}

// Skip reads any value and returns its text.
func (r *Reader) Skip() string { return r.Text(r.skip) }

// Text returns the text of the value that read reads.
func (r *Reader) Text(read func()) string {
	r.Peek()
	start := r.pos
	if read(); r.bad {
		return ""
	}
	return r.text[start:r.pos]
}

func (r *Reader) skip() {
	if r.bad {
		return
	}
	switch r.Peek() {
	case '"':
		r.quoted()
	case '{':
		r.Object(func(string) { r.skip() })
	case '[':
		r.Array(r.skip)
	default:
		word := r.Text(func() {
			for r.pos < len(r.text) && r.text[r.pos] > ' ' && strings.IndexByte(`,:"[]{}`, r.text[r.pos]) < 0 {
				r.pos++
			}
		})
		r.bad = !json.Valid([]byte(word))
	}
}

// AppendQuoted appends text as a JSON string. With json.Marshal alone it takes four
// times as long for an address.
func AppendQuoted(dst []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // never an error
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), text...), '"')
}

// AppendField appends ,"name":"value".
func AppendField(dst []byte, name, value string) []byte {
	dst = append(AppendQuoted(append(dst, ','), name), ':')
	return AppendQuoted(dst, value)
}
