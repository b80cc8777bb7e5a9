package api

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// eachMember calls f for every member of a JSON object, in order. The object
// must be valid JSON: a decoder has read it before. Unlike decoding into a
// struct this sees repeated names, and matches names exactly.
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

// unquote returns the value of a valid JSON string.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s) // valid
	return s
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// valueEnd returns where the value that begins at i ends.
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
				return i // of the object around it
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}
