package intake

import (
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/safedelivr/safedelivr/models"
)

var (
	errTooLong   = fmt.Errorf("has more than %d bytes", maxMailbox)
	errAddress   = errors.New("is not an email address like ann@example.com or Ann <ann@example.com> (RFC 5322)")
	errDomain    = errors.New("does not have a valid domain")
	errLocalPart = errors.New(
		"has characters before the @ that providers do not accept; use letters, digits and !#$%&'*+-/=?^_`{|}~. only",
	)
	errLocalLong    = errors.New("has more than 64 characters before the @")
	errAddressLong  = errors.New("is longer than 254 characters")
	errNameControls = errors.New("has a control character in its name")
)

// domains converts international domains to punycode, as UTS #46 says for look-ups.
var domains = idna.New(
	idna.MapForLookup(),
	idna.Transitional(false),
	idna.StrictDomainName(true),
	idna.VerifyDNSLength(true),
)

// Limits of addresses, in bytes.
const (
	maxMailbox = 4096 // an address with its name and comments
	maxDomain  = 253
)

// ParseAddress parses one mailbox: an address, or a name and an address in angle
// brackets. The domain of the result is in ASCII and lower case.
func ParseAddress(s string) (models.Address, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxMailbox {
		return models.Address{}, errTooLong
	}
	if !utf8.ValidString(s) {
		return models.Address{}, errAddress
	}
	if simple(s) {
		email, err := normalise(s)
		return models.Address{Email: email}, err
	}
	a, err := mail.ParseAddress(s)
	if plain, ok := withoutComments(s); err != nil && ok {
		a, err = mail.ParseAddress(plain)
	}
	if err != nil {
		return models.Address{}, errAddress
	}
	email, err := normalise(a.Address)
	if err != nil {
		return models.Address{}, err
	}
	name, err := cleanName(a.Name)
	return models.Address{Email: email, Name: name}, err
}

// withoutComments returns an address without its comments (RFC 5322, 3.2.2), which net/mail does not know in all
// places. A comment in a name counts as a space. ok reports whether there are comments, and all of them end.
func withoutComments(s string) (plain string, ok bool) {
	var b strings.Builder
	depth, escaped, quoted := 0, false, false
	inName := strings.Contains(s, "<") // a comment that contains it is rare, and harmless
	for i := 0; i < len(s); i++ {
		c := s[i]
		skip := depth > 0
		switch {
		case escaped:
			escaped = false
		case c == '\\':
			escaped = quoted || depth > 0
		case quoted:
			quoted = c != '"'
		case c == '(':
			depth++
			skip, ok = true, true
		case c == ')' && depth > 0:
			if depth--; depth == 0 && inName {
				b.WriteByte(' ')
			}
		case depth > 0:
		case c == '"':
			quoted = true
		case c == '<':
			inName = false
		}
		if !skip {
			b.WriteByte(c)
		}
	}
	return strings.TrimSpace(b.String()), ok && depth == 0
}

// simple reports whether s has the form local@domain, so that it needs no parser of
// the full grammar. Most addresses do.
func simple(s string) bool {
	at := strings.IndexByte(s, '@')
	return at > 0 && !strings.ContainsAny(s, " \t\r\n\"<>(),:;[]\\") && strings.IndexByte(s[at+1:], '@') < 0
}

// normalise checks an address without a name and returns it with its domain in ASCII and lower case.
func normalise(email string) (string, error) {
	at := strings.LastIndexByte(email, '@')
	if at <= 0 || at == len(email)-1 {
		return "", errAddress
	}
	local, domain := email[:at], email[at+1:]
	if !dotAtom(local) {
		return "", errLocalPart
	}
	if len(local) > 64 {
		return "", errLocalLong
	}
	if len(domain) > maxDomain {
		return "", errDomain // to convert a long domain takes quadratic time
	}
	if !plainDomain(domain) || strings.Contains(domain, "xn--") {
		var err error
		if domain, err = domains.ToASCII(domain); err != nil {
			return "", errDomain
		}
		domain = strings.ToLower(domain)
	}
	last := domain[strings.LastIndexByte(domain, '.')+1:]
	if len(last) == len(domain) || !plainDomain(domain) || strings.Trim(last, "0123456789") == "" {
		return "", errDomain // no top-level domain consists of digits: 10.0.0.1 is an IP address
	}
	if len(local)+1+len(domain) > 254 {
		return "", errAddressLong
	}
	return local + "@" + domain, nil
}

// plainDomain reports whether d is a host name in lower-case ASCII.
func plainDomain(d string) bool {
	if d == "" || len(d) > maxDomain {
		return false
	}
	label := 0
	for i := 0; i < len(d); i++ {
		c := d[i]
		switch {
		case c == '.':
			if label == 0 || d[i-1] == '-' {
				return false
			}
			label = 0
			continue
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && label > 0:
		default:
			return false
		}
		if label++; label > 63 {
			return false
		}
	}
	return label > 0 && d[len(d)-1] != '-'
}

// dotAtom reports whether s is a dot-atom (RFC 5322, 3.2.3).
func dotAtom(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '.' {
			if i == 0 || i == len(s)-1 || s[i-1] == '.' {
				return false
			}
			continue
		}
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),:;<>@[\\]", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// cleanName returns a display name without surrounding space. It returns an error if the name could end a header line.
func cleanName(s string) (string, error) {
	s = strings.TrimSpace(s)
	if HasControls(s) {
		return "", errNameControls
	}
	return s, nil
}

// HasControls reports whether s contains something that is not allowed in a header:
// a control character, a line break or invalid UTF-8.
func HasControls(s string) bool {
	ascii := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == 0x7f {
			return true
		} else if c >= 0x80 {
			ascii = false
		}
	}
	if ascii {
		return false
	}
	if !utf8.ValidString(s) {
		return true
	}
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	})
}

// SplitAddresses returns the mailboxes of a list, which are separated by commas.
func SplitAddresses(list string) (out []string) {
	var l Separator
	for from, i := 0, 0; i <= len(list); i++ {
		if i < len(list) && !l.Separates(list[i]) {
			continue
		}
		if address := strings.TrimSpace(list[from:i]); address != "" {
			out = append(out, address)
		}
		from = i + 1
	}
	return out
}

// Separator finds the commas that separate mailboxes (RFC 5322, 3.4).
type Separator struct {
	escaped, quote, angle bool
	comment               int // depth
}

// Separates takes the next byte and reports whether it separates two mailboxes.
func (l *Separator) Separates(c byte) bool {
	switch {
	case l.escaped:
		l.escaped = false
	case c == '\\':
		l.escaped = l.quote || l.comment > 0
	case l.quote:
		l.quote = c != '"'
	case c == '(':
		l.comment++
	case c == ')' && l.comment > 0:
		l.comment--
	case l.comment > 0:
	case c == '"':
		l.quote = true
	case c == '<':
		l.angle = true
	case c == '>':
		l.angle = false
	case c == ',':
		return !l.angle
	}
	return false
}
