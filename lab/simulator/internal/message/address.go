package message

import "strings"

const (
	maxLocal  = 64
	maxDomain = 255
)

// localPlain and domainPlain hold the bytes that may be in an unquoted address
// before and after the @. Bytes over 0x7f are allowed: both providers take
// internationalised recipients.
var localPlain, domainPlain = func() (local, domain [256]bool) {
	for c := 0x21; c < 256; c++ {
		local[c] = c != 0x7f && !strings.ContainsRune(`()<>[]:;,\"@`, rune(c))
		domain[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '-' || c == '.' || c >= 0x80
	}
	return local, domain
}()

// ValidAddress reports whether addr is a bare address (local@domain.tld) that a
// provider would take. Both providers refuse quoted local parts, domains without a
// dot and domain literals.
func ValidAddress(addr string) bool {
	at := strings.LastIndexByte(addr, '@')
	if at < 1 || at > maxLocal {
		return false
	}
	domain := addr[at+1:]
	if len(domain) < 3 || len(domain) > maxDomain {
		return false
	}
	return dotted(addr[:at], &localPlain) > 0 && dotted(domain, &domainPlain) > 1
}

// dotted returns the number of dot-separated labels of text. It returns 0 if a
// label is empty or a byte is not allowed.
func dotted(text string, allowed *[256]bool) int {
	labels, last := 1, byte('.')
	for _, c := range []byte(text) {
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

// ASCII reports whether text holds only ASCII characters.
func ASCII(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c >= 0x80 }) < 0
}
