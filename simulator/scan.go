package simulator

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// A scanner reads a JSON document in place: strings are handed out as spans of
// the buffer and no tree is built. A send request for 1,000 recipients is a
// quarter of a megabyte of JSON; encoding/json takes 2.5 ms and 17,000
// allocations for it, and the simulator shares its processors with the product
// that is being measured.
//
// Errors stick: after the first one bad is set, every method returns at once
// and values are zero. The scanner accepts what encoding/json accepts, except
// documents nested deeper than maxDepth.
type scanner struct {
	buf   []byte
	pos   int
	depth int
	bad   bool
}

const maxDepth = 500

// A span is a piece of the scanned buffer. For a string it excludes the quotes;
// esc says that it holds a backslash and must be decoded before use.
type span struct {
	at, end uint32
	esc     bool
}

func (v span) empty() bool { return v.at == v.end }
func (v span) size() int   { return int(v.end - v.at) }

// plain tells the bytes that may stand in a JSON string as they are.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 256; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

func (s *scanner) reset(buf []byte) { *s = scanner{buf: buf} }

func (s *scanner) fail() { s.bad = true }

// raw returns the bytes of v as they stand in the buffer.
func (s *scanner) raw(v span) []byte { return s.buf[v.at:v.end] }

// text returns the decoded string v. Without escapes it is a view of the
// buffer, valid as long as that.
func (s *scanner) text(v span) []byte {
	raw := s.buf[v.at:v.end]
	if !v.esc {
		if utf8.Valid(raw) {
			return raw
		}
		return bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	var decoded string
	if json.Unmarshal(s.buf[v.at-1:v.end+1], &decoded) != nil {
		return nil
	}
	return []byte(decoded)
}

// peek skips white space and returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.buf) {
		switch c := s.buf[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) bool {
	if s.bad || s.peek() != c {
		s.bad = true
		return false
	}
	s.pos++
	return true
}

// end reports whether the document was read whole and without error.
func (s *scanner) end() bool { return !s.bad && s.peek() == 0 && s.pos == len(s.buf) }

// str reads a string.
func (s *scanner) str() (v span) {
	if !s.expect('"') {
		return span{}
	}
	start := s.pos
	for i := s.pos; i < len(s.buf); i++ {
		c := s.buf[i]
		if plain[c] {
			continue
		}
		switch c {
		case '"':
			s.pos = i + 1
			return span{uint32(start), uint32(i), v.esc}
		case '\\':
			v.esc = true
			if i = s.escape(i + 1); i < 0 {
				s.fail()
				return span{}
			}
		default:
			s.fail()
			return span{}
		}
	}
	s.fail()
	return span{}
}

// escape checks what follows a backslash at i and returns the position of its
// last byte, or -1.
func (s *scanner) escape(i int) int {
	if i >= len(s.buf) {
		return -1
	}
	switch s.buf[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i
	case 'u':
		if i+4 >= len(s.buf) {
			return -1
		}
		for _, c := range s.buf[i+1 : i+5] {
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return -1
			}
		}
		return i + 4
	}
	return -1
}

// number reads a number.
func (s *scanner) number() span {
	if s.bad {
		return span{}
	}
	s.peek()
	start, i := s.pos, s.pos
	digits := func() bool {
		from := i
		for i < len(s.buf) && s.buf[i] >= '0' && s.buf[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(s.buf) && s.buf[i] == '-' {
		i++
	}
	if i < len(s.buf) && s.buf[i] == '0' {
		i++
	} else if !digits() {
		s.fail()
		return span{}
	}
	if i < len(s.buf) && s.buf[i] == '.' {
		i++
		if !digits() {
			s.fail()
			return span{}
		}
	}
	if i < len(s.buf) && (s.buf[i] == 'e' || s.buf[i] == 'E') {
		i++
		if i < len(s.buf) && (s.buf[i] == '+' || s.buf[i] == '-') {
			i++
		}
		if !digits() {
			s.fail()
			return span{}
		}
	}
	s.pos = i
	return span{at: uint32(start), end: uint32(i)}
}

func (s *scanner) word(w string) bool {
	if s.bad || len(s.buf)-s.pos < len(w) || string(s.buf[s.pos:s.pos+len(w)]) != w {
		s.fail()
		return false
	}
	s.pos += len(w)
	return true
}

// null consumes a null if one is next, and reports whether it did.
func (s *scanner) null() bool { return !s.bad && s.peek() == 'n' && s.word("null") }

// boolean reads true or false.
func (s *scanner) boolean() bool {
	if s.bad {
		return false
	}
	if s.peek() == 't' {
		return s.word("true")
	}
	s.word("false")
	return false
}

// object reads an object; member is called for each key and must consume
// exactly one value.
func (s *scanner) object(member func(key span)) {
	if !s.enter('{') {
		return
	}
	if s.peek() == '}' {
		s.leave()
		return
	}
	for !s.bad {
		key := s.str()
		if !s.expect(':') {
			return
		}
		if member(key); s.bad {
			return
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.leave()
			return
		default:
			s.fail()
		}
	}
}

// array reads an array; element is called for each and must consume exactly one
// value.
func (s *scanner) array(element func(i int)) {
	if !s.enter('[') {
		return
	}
	if s.peek() == ']' {
		s.leave()
		return
	}
	for i := 0; !s.bad; i++ {
		if element(i); s.bad {
			return
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.leave()
			return
		default:
			s.fail()
		}
	}
}

func (s *scanner) enter(c byte) bool {
	if !s.expect(c) {
		return false
	}
	if s.depth++; s.depth > maxDepth {
		s.fail()
	}
	return !s.bad
}

func (s *scanner) leave() { s.pos++; s.depth-- }

// skip reads any value and returns where it stood.
func (s *scanner) skip() span {
	if s.bad {
		return span{}
	}
	c := s.peek()
	start := s.pos
	switch c {
	case '"':
		s.str()
	case '{':
		s.object(func(span) { s.skip() })
	case '[':
		s.array(func(int) { s.skip() })
	case 't', 'f':
		s.boolean()
	case 'n':
		s.null()
	default:
		s.number()
	}
	if s.bad {
		return span{}
	}
	return span{at: uint32(start), end: uint32(s.pos)}
}
