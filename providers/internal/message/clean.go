// Package message prepares calls for all adapters: it checks what no provider can take,
// removes control characters from header fields and replaces placeholders.
package message

import (
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
)

// Name returns a display name for a header field.
func Name(s string) string { return strings.TrimSpace(models.OneLine(s)) }

// Unmarked returns a name without some marks: they and the spaces beside them become one space.
func Unmarked(s, marks string) string {
	if !strings.ContainsAny(s, marks) {
		return s
	}
	mark := func(r rune) bool { return r == ' ' || r < utf8.RuneSelf && strings.ContainsRune(marks, r) }
	return strings.Join(strings.FieldsFunc(s, mark), " ")
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Named returns an address with its name in quotes.
func Named(name, email string) string {
	if name = Name(name); name == "" {
		return email
	}
	return `"` + quoted.Replace(name) + `" <` + email + ">"
}

// Body returns s for a body: NUL is removed and invalid UTF-8 becomes U+FFFD. Line breaks
// stay.
func Body(s string) string {
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "")
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

// atext accepts the bytes of an unquoted local part and of a domain (RFC 5322, 3.2.3).
var atext = func() (t [256]bool) {
	for c := range 256 {
		t[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("!#$%&'*+-/=?^_`{|}~.", byte(c)) >= 0 && c != 0
	}
	return t
}()

// Mailbox reports whether s is exactly one addr-spec. A provider that takes address
// lists in a string would read "a@x, b@y" as two recipients, so addresses are checked
// here again although they were checked when they were accepted.
func Mailbox(s string) bool {
	if len(s) < 3 || len(s) > 320 {
		return false
	}
	at, odd := -1, false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '@' && at < 0:
			at = i
		case !atext[s[i]]:
			odd = true
		}
	}
	if at < 1 || at == len(s)-1 {
		return false
	}
	if !odd && s[0] != '.' && s[at-1] != '.' && s[at+1] != '.' && s[len(s)-1] != '.' && !strings.Contains(s, "..") {
		return true
	}
	// Quoted local parts, address literals, letters beyond ASCII.
	space := func(r rune) bool { return models.BreaksLine(r) || unicode.IsSpace(r) }
	if !utf8.ValidString(s) || strings.IndexFunc(s, space) >= 0 {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Name == "" && (a.Address == s || strings.Contains(s, `"`) && !strings.ContainsAny(s, "<>(),;"))
}
