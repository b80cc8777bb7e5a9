// Package parse reads answers and events of providers: texts without addresses, reasons
// from SMTP replies, lenient JSON.
package parse

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
)

const (
	mask    = "<address>"
	maxRead = 8 << 10 // bytes of a text; the rest is never shown
)

// Text returns a provider's text for storing and showing: on one line, at most
// models.MaxText bytes, with email addresses replaced by <address> and secrets by
// <secret>. It has no @. Of an HTML page it returns the visible text.
func Text(s string, secrets ...string) string {
	if len(s) > maxRead {
		// Half an address would not be recognised, so the cut is at a space.
		s = s[:strings.LastIndexFunc(s[:maxRead], unicode.IsSpace)+1]
	}
	s = plain(s)
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "<secret>")
		}
	}
	s = strings.ToValidUTF8(s, "\ufffd")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
	s = withoutAddresses(s)
	if len(s) > models.MaxText {
		s = s[:models.MaxText]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}

// at lists the ways in which an @ is written in replies and URLs.
var at = []string{"@", "%40", "&#64;", "\uff20"}

// nextAt returns the index and the length of the first @ of s, or -1.
func nextAt(s string) (i, n int) {
	i = -1
	for _, a := range at {
		if k := strings.Index(s, a); k >= 0 && (i < 0 || k < i) {
			i, n = k, len(a)
		}
	}
	return i, n
}

// withoutAddresses replaces the addresses in s.
func withoutAddresses(s string) string {
	i, n := nextAt(s)
	if i < 0 {
		return s
	}
	var b strings.Builder
	for i >= 0 {
		from, to := localStart(s[:i]), i+n+domainEnd(s[i+n:])
		if from == i || to == i+n { // not an address, or a part of one
			b.WriteString(s[:i])
			b.WriteString("(at)")
			s = s[i+n:]
		} else {
			if from > 0 && s[from-1] == '<' && to < len(s) && s[to] == '>' {
				from, to = from-1, to+1
			}
			b.WriteString(s[:from])
			b.WriteString(mask)
			s = s[to:]
		}
		i, n = nextAt(s)
	}
	b.WriteString(s)
	return b.String()
}

// localStart returns the index of the local part at the end of s.
func localStart(s string) int {
	if strings.HasSuffix(s, `"`) { // "john doe"@example.com
		if i := strings.LastIndexByte(s[:len(s)-1], '"'); i >= 0 {
			return i
		}
	}
	return strings.LastIndexFunc(s, func(r rune) bool {
		return !(unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~.", r) ||
			r > unicode.MaxASCII)
	}) + 1 // separators are ASCII, one byte each
}

// domainEnd returns the length of the domain at the beginning of s.
func domainEnd(s string) int {
	if strings.HasPrefix(s, "[") { // address literal
		if i := strings.IndexByte(s, ']'); i >= 0 {
			return i + 1
		}
	}
	i := strings.IndexFunc(s, func(r rune) bool {
		return !(unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-._", r) || r > unicode.MaxASCII)
	})
	if i < 0 {
		i = len(s)
	}
	return len(strings.TrimRight(s[:i], "."))
}
