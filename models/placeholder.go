package models

import (
	"strings"
)

// Placeholders are written {{name}}, with optional spaces inside the braces.
// A name is a letter or underscore followed by letters, digits, '_', '-' or
// '.', at most 64 bytes. Anything else between braces is plain text.

// EachPlaceholder calls text for every stretch of plain text of s and name for
// every placeholder, in order.
func EachPlaceholder(s string, text, name func(string)) {
	for s != "" {
		i := strings.Index(s, "{{")
		if i < 0 {
			break
		}
		j := strings.Index(s[i+2:], "}}")
		if j < 0 {
			break
		}
		key := strings.TrimSpace(s[i+2 : i+2+j])
		if !ValidVar(key) {
			// "{{{{name}}" still holds a placeholder: go on one byte later.
			text(s[:i+1])
			s = s[i+1:]
			continue
		}
		if i > 0 {
			text(s[:i])
		}
		name(key)
		s = s[i+2+j+2:]
	}
	if s != "" {
		text(s)
	}
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

// ValidVar reports whether s may name a placeholder.
func ValidVar(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || !(c >= '0' && c <= '9' || c == '-' || c == '.')) {
			return false
		}
	}
	return true
}

// Value is the value of placeholder name for this recipient. The names
// "email" and "name" always have a value: the recipient's own, unless Vars
// says otherwise.
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
