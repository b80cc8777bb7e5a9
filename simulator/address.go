package simulator

import (
	"bytes"
	"net/mail"
)

const (
	maxLocal  = 64
	maxDomain = 255
)

// localPlain and domainPlain tell the bytes an address may hold unquoted on
// either side of the @. Bytes over 0x7f are let through: both vendors take
// internationalised recipients.
var localPlain, domainPlain = func() (local, domain [256]bool) {
	for c := 0x21; c < 256; c++ {
		local[c] = c != 0x7f && !bytes.ContainsRune([]byte(`()<>[]:;,\"@`), rune(c))
		domain[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c >= 0x80
	}
	return local, domain
}()

// validAddress reports whether addr is a bare address (local@domain.tld) that a
// provider would take. Quoted local parts, domains without a dot and domain
// literals are refused, as both vendors do.
func validAddress(addr []byte) bool {
	at := bytes.LastIndexByte(addr, '@')
	if at < 1 || at > maxLocal {
		return false
	}
	domain := addr[at+1:]
	if len(domain) < 3 || len(domain) > maxDomain {
		return false
	}
	return dotted(addr[:at], &localPlain) > 0 && dotted(domain, &domainPlain) > 1
}

// dotted counts the dot-separated, non-empty labels of text; 0 means that it has
// an empty one or a byte that is not allowed.
func dotted(text []byte, allowed *[256]bool) int {
	labels, last := 1, byte('.')
	for _, c := range text {
		if !allowed[c] || c == '.' && last == '.' {
			return 0
		}
		if c == '.' {
			labels++
		}
		last = c
	}
	if last == '.' {
		return 0
	}
	return labels
}

func ascii(text []byte) bool {
	for _, c := range text {
		if c >= 0x80 {
			return false
		}
	}
	return true
}

// lower returns text in lower case (ASCII letters only, which is all that
// identifies an address here), and text itself if it is so already.
func lower(text []byte) []byte {
	for _, c := range text {
		if c >= 'A' && c <= 'Z' {
			return bytes.ToLower(text)
		}
	}
	return text
}

// splitAddresses parses one address field of Mailgun: bare, with a name, or
// several separated by commas. It returns bare addresses and false if one of
// them is not valid. Bare ones are the common case and are not copied.
func splitAddresses(dst [][]byte, field []byte) ([][]byte, bool) {
	field = bytes.TrimSpace(field)
	if validAddress(field) {
		return append(dst, field), true
	}
	list, err := mail.ParseAddressList(string(field))
	if err != nil {
		return dst, false
	}
	for _, a := range list {
		if !validAddress([]byte(a.Address)) {
			return dst, false
		}
		dst = append(dst, []byte(a.Address))
	}
	return dst, true
}
