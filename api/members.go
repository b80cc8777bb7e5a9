package api

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// eachMember calls f for each member of a JSON object, in order. The object must be valid JSON. Unlike json.Unmarshal
// into a struct, eachMember reports repeated names and keeps the case of names.
func eachMember(object []byte, f func(name string, value []byte)) {
	i := skipSpace(object, 1)
	for i < len(object) && object[i] == '"' {
		end := valueEnd(object, i)
		name := unquote(object[i:end])
		i = skipSpace(object, skipSpace(object, end)+1) // the colon
		end = valueEnd(object, i)
		f(name, object[i:end])
		if i = skipSpace(object, end); i < len(object) && object[i] == ',' {
			i = skipSpace(object, i+1)
		}
	}
}

// elements returns the elements of a JSON list with their indexes. The list must be valid JSON.
func elements(list []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		i := skipSpace(list, 1)
		for n := 0; i < len(list) && list[i] != ']'; n++ {
			end := valueEnd(list, i)
			if !yield(n, list[i:end]) {
				return
			}
			if i = skipSpace(list, end); i < len(list) && list[i] == ',' {
				i = skipSpace(list, i+1)
			}
		}
	}
}

// unquote returns the value of a JSON string, which must be valid.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

// validText reports whether a JSON value is UTF-8 and has no escaped half of a surrogate
// pair, which encoding/json would replace. The value must be valid JSON.
func validText(raw []byte) bool {
	if !utf8.Valid(raw) {
		return false
	}
	for i := bytes.IndexByte(raw, '\\'); i >= 0 && i+1 < len(raw); {
		n := 2
		if r := escapedRune(raw[i:]); r >= 0 {
			n = 6
			if utf16.IsSurrogate(r) {
				if utf16.DecodeRune(r, escapedRune(raw[i+6:])) == utf8.RuneError {
					return false
				}
				n = 12
			}
		}
		next := bytes.IndexByte(raw[i+n:], '\\')
		if next < 0 {
			break
		}
		i += n + next
	}
	return true
}

// escapedRune returns the code unit of an escape like \u0041 at the beginning of raw, or -1.
func escapedRune(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// skipSpace returns the index of the first byte from i on that is not space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// valueEnd returns the index after the value that begins at i.
func valueEnd(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return min(i+1, len(b))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			} else if depth < 0 {
				return i // the end of the surrounding object
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}
