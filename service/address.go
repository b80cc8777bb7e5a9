package service

import (
	"errors"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/safedelivr/safedelivr/models"
)

var (
	errAddress   = errors.New("is not an e-mail address (RFC 5322), like ann@example.com or Ann <ann@example.com>")
	errDomain    = errors.New("has no valid domain")
	errLocalPart = errors.New(
		"has a part before the @ that the providers do not take (letters, digits and !#$%&'*+-/=?^_`{|}~. only)",
	)
	errLocalLong    = errors.New("has more than 64 characters before the @")
	errAddressLong  = errors.New("is longer than 254 characters")
	errNameControls = errors.New("has a control character in the name")
)

// domains follows UTS #46 for look-ups: international names become punycode.
var domains = idna.New(
	idna.MapForLookup(),
	idna.Transitional(false),
	idna.StrictDomainName(true),
	idna.VerifyDNSLength(true),
)

// ParseAddress reads one mailbox: an addr-spec, or a name and an addr-spec in
// angle brackets. The domain is returned in ASCII and lower case.
func ParseAddress(s string) (models.Address, error) {
	s = strings.TrimSpace(s)
	if !utf8.ValidString(s) {
		return models.Address{}, errAddress
	}
	if simple(s) {
		email, err := normalise(s)
		return models.Address{Email: email}, err
	}
	a, err := mail.ParseAddress(s)
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

// simple reports whether s has the shape local@domain in plain ASCII, which
// spares most addresses the full grammar.
func simple(s string) bool {
	at := strings.IndexByte(s, '@')
	return at > 0 && !strings.ContainsAny(s, " \t\r\n\"<>(),:;[]\\") && strings.IndexByte(s[at+1:], '@') < 0
}

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
	if !plainDomain(domain) || strings.Contains(domain, "xn--") {
		var err error
		if domain, err = domains.ToASCII(domain); err != nil {
			return "", errDomain
		}
		domain = strings.ToLower(domain)
	}
	last := domain[strings.LastIndexByte(domain, '.')+1:]
	if len(last) == len(domain) || !plainDomain(domain) || strings.Trim(last, "0123456789") == "" {
		return "", errDomain // no top level of only digits exists: 10.0.0.1 is no domain
	}
	if len(local)+1+len(domain) > 254 {
		return "", errAddressLong
	}
	return local + "@" + domain, nil
}

// plainDomain reports whether d is a host name in lower-case ASCII already.
func plainDomain(d string) bool {
	if d == "" || len(d) > 253 {
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

// cleanName trims a display name and refuses what could end a header line.
func cleanName(s string) (string, error) {
	s = strings.TrimSpace(s)
	if hasControls(s) {
		return "", errNameControls
	}
	return s, nil
}

// hasControls reports whether s holds anything that a header may not contain:
// control characters (line breaks among them) or broken UTF-8.
func hasControls(s string) bool {
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
