package models

import (
	"html"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Placeholders are written {{name}}, with optional spaces inside the braces. A name is a
// letter or underscore followed by letters and digits of any script, '_', '-' or '.', of
// at most 64 bytes. A literal {{ is written {{{{. Anything else that begins with {{ is
// malformed.

// maxVarName is the longest name of a placeholder, in bytes.
const maxVarName = 64

// EachPlaceholder calls text for every stretch of plain text of s and name for every
// placeholder, in order. Malformed placeholders are plain text. It takes time linear in s.
func EachPlaceholder(s string, text, name func(string)) {
	for s != "" {
		i := strings.Index(s, "{{")
		if i < 0 {
			text(s)
			return
		}
		key, n := placeholder(s[i:])
		switch {
		case strings.HasPrefix(s[i:], "{{{{"):
			text(s[:i+2])
			n = 4
		case key == "":
			text(s[:i+n])
		default:
			if i > 0 {
				text(s[:i])
			}
			name(key)
		}
		s = s[i+n:]
	}
}

// placeholder reads the placeholder that begins at s, and returns its name and length. If
// it is malformed, the name is empty. The length is then that of the part that was read.
func placeholder(s string) (name string, n int) {
	from := 2 + len(s[2:]) - len(strings.TrimLeft(s[2:], " \t\r\n"))
	to := from
	for to < len(s) {
		r, size := utf8.DecodeRuneInString(s[to:])
		if !varRune(r, to == from) {
			break
		}
		to += size
	}
	rest := strings.TrimLeft(s[to:], " \t\r\n")
	if to == from || to-from > maxVarName || !strings.HasPrefix(rest, "}}") {
		return "", to
	}
	return s[from:to], len(s) - len(rest) + 2
}

// varRune reports whether a name may hold r, as its first character or later.
func varRune(r rune, first bool) bool {
	if r == '_' || r != utf8.RuneError && unicode.IsLetter(r) {
		return true
	}
	return !first && (r == '-' || r == '.' || unicode.IsDigit(r) || unicode.IsMark(r))
}

// Placeholders lists the distinct names in the given texts, in order of
// appearance.
func Placeholders(texts ...string) []string {
	var out []string
	seen := map[string]bool{}
	for _, t := range texts {
		EachPlaceholder(t, func(string) {}, func(n string) {
			if !seen[n] {
				seen[n] = true
				out = append(out, n)
			}
		})
	}
	return out
}

// MalformedPlaceholder returns the offset of the first malformed placeholder of s, in
// bytes, and its beginning; -1: there is none.
func MalformedPlaceholder(s string) (offset int, text string) {
	for at := 0; ; {
		i := strings.Index(s[at:], "{{")
		if i < 0 {
			return -1, ""
		}
		at += i
		key, n := placeholder(s[at:])
		switch {
		case strings.HasPrefix(s[at:], "{{{{"):
			n = 4
		case key == "":
			text, _, _ = strings.Cut(s[at:], "\n")
			if end := strings.Index(text, "}}"); end >= 0 {
				text = text[:end+2]
			}
			return at, strings.ToValidUTF8(text[:min(len(text), maxVarName)], "")
		}
		at += n
	}
}

// Rewrite returns s with every placeholder replaced by what to returns for it.
func Rewrite(s string, to func(name string) string) string {
	if !strings.Contains(s, "{{") {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	EachPlaceholder(s, func(t string) { b.WriteString(t) }, func(n string) { b.WriteString(to(n)) })
	return b.String()
}

// slotPrefix begins the names of placeholders that are slots of a template: pieces of it that
// are rendered for each recipient. No request may have such a name.
const slotPrefix = "_slot."

// SlotName returns the name of slot n of a part of a message: 's'ubject, 't'ext or 'h'tml.
func SlotName(part byte, n int) string { return slotPrefix + string(part) + strconv.Itoa(n) }

// IsSlot reports whether a placeholder is a slot.
func IsSlot(name string) bool { return strings.HasPrefix(name, slotPrefix) }

// EscapeHTML returns the value of a placeholder for HTML. A slot of HTML is HTML already.
func EscapeHTML(name, value string) string {
	if strings.HasPrefix(name, slotPrefix+"h") {
		return value
	}
	return html.EscapeString(value)
}

// Fill returns s with the recipient's values in place of its placeholders. escape, if it is
// not nil, is applied to the values. A placeholder without a value stays.
func (r *Recipient) Fill(s string, escape func(name, value string) string) string {
	return Rewrite(s, func(name string) string {
		value, ok := r.Value(name)
		switch {
		case !ok:
			return "{{" + name + "}}"
		case escape != nil:
			return escape(name, value)
		}
		return value
	})
}

// ValidVar reports whether s can be the name of a placeholder.
func ValidVar(s string) bool {
	for i, r := range s {
		if !varRune(r, i == 0) {
			return false
		}
	}
	return s != "" && len(s) <= maxVarName
}

// Value returns the value of a placeholder for this recipient. The names "email" and
// "name" always have a value: the recipient's own, unless Vars has another.
func (r *Recipient) Value(name string) (string, bool) {
	if v, ok := r.Vars[name]; ok {
		return v, true
	}
	switch name {
	case "email":
		return r.Email, true
	case "name":
		return r.Name, true
	}
	return "", false
}
