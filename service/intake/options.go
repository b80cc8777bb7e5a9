package intake

import (
	"maps"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service/problem"
)

// MaxHeaders is the number of header fields of its own that a message may have, and maxOwnHeaders that of a recipient:
// a batch may have many of those.
const MaxHeaders, maxOwnHeaders = 100, 20

// Limits of the options of a message, in bytes.
const (
	maxHeaderName  = 126
	maxCategory    = 64
	maxTag         = 255
	maxMetadata    = 16 << 10 // keys and values together
	maxMetadataKey = 255
	maxKeys        = 100 // of metadata
)

// MeantProvider says which provider a name may have meant, or which there are.
func MeantProvider(name string, known map[string]bool) string {
	names := slices.Sorted(maps.Keys(known))
	if meant := nearest.Meant(name, names).String(); meant != "" || len(names) == 0 || len(names) > 10 {
		return meant
	}
	return " There are " + strings.Join(names, ", ") + "."
}

// CategoryRule says what a category must be.
const CategoryRule = "A category has 1 to 64 characters: letters a to z, digits, _, -, . or :."

// wordOf reports whether a text has only letters a to z, digits, and some other characters.
func wordOf(s, others string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && !(c >= '0' && c <= '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return true
}

// ValidCategory reports whether a batch may have a category.
func ValidCategory(category string) bool {
	return len(category) <= maxCategory && wordOf(category, "_-.:")
}

// checkHeaders reports the mistakes in header fields.
func (m *Mistakes) checkHeaders(here string, headers []models.Header, most int) {
	for i := range headers {
		if i == most {
			m.Wrong(here, "too_many", "There may be at most %d header fields here.", most)
			return
		}
		h := &headers[i]
		at, lower := here+problem.Pointer(h.Name), strings.ToLower(h.Name)
		h.ShortenReferences()
		switch {
		case !headerName(h.Name):
			m.Wrong(at, "invalid_name",
				"The name of a header field has 1 to %d visible ASCII characters without a colon (RFC 5322).", maxHeaderName)
		case reservedHeader(lower):
			m.Wrong(at, "reserved_header", "%s has a field of its own, or is set by Safedelivr or the provider.", h.Name)
		case models.FindHeader(headers[:i], lower) >= 0:
			m.Wrong(at, "repeated", "%s is given twice.", h.Name)
		case len(h.Value) > maxLine:
			m.Wrong(at, "too_long", "The value has more than %d bytes.", maxLine)
		case HasControls(h.Value):
			m.Wrong(at, "invalid_header", "The value must be one line without control characters.")
		case lower == messageID && !setMessageID(h):
			m.Wrong(at, "invalid_header", "A Message-ID is <name@domain>, without spaces (RFC 5322, 3.6.4).")
		default:
			if text := MalformedPlaceholder(h.Value); text != "" {
				m.Wrong(at, "unknown_placeholder", "%s", text)
			}
		}
	}
}

const messageID = "message-id"

// setMessageID puts the value of Message-ID into angle brackets. It reports whether the value can be one, with any
// values of its placeholders.
func setMessageID(h *models.Header) bool {
	id := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(h.Value), "<"), ">")
	h.Value = "<" + id + ">"
	plain, filled := models.Rewrite(id, func(string) string { return "x" }), strings.Contains(id, "{{")
	name, domain, found := strings.Cut(plain, "@")
	return (found && name != "" && domain != "" || filled) && !strings.ContainsFunc(plain, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || r == '<' || r == '>'
	})
}

// headerName reports whether s is a field-name of RFC 5322, 3.6.8.
func headerName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == ':' {
			return false
		}
	}
	return s != "" && len(s) <= maxHeaderName
}

// reserved are header fields that have a field of their own in a batch, or whose meaning
// belongs to Safedelivr, the provider or the servers that carry the mail.
var reserved = map[string]bool{
	"from": true, "sender": true, "to": true, "cc": true, "bcc": true, "reply-to": true, "subject": true,
	"date": true, "mime-version": true, "return-path": true, "received": true,
	"dkim-signature": true, "domainkey-signature": true, "authentication-results": true, "received-spf": true,
	"errors-to": true, "bounces-to": true, "x-smtpapi": true,
}

// IsReserved reports whether a request may not set a header field.
func IsReserved(name string) bool { return reservedHeader(strings.ToLower(name)) }

// reservedHeader reports whether a request may not set a header field. The name is in lower case.
func reservedHeader(lower string) bool {
	for _, prefix := range []string{"content-", "resent-", "arc-", "x-mailgun-", "x-sg-", "x-safedelivr-"} {
		if strings.HasPrefix(lower, prefix) {
			return true
		}
	}
	return reserved[lower]
}

// checkMetadata reports mistakes in metadata, in the order of the keys.
func (m *Mistakes) checkMetadata(at string, values map[string]string) {
	if len(values) > maxKeys {
		m.Wrong(at, "too_many", "Metadata has at most %d keys.", maxKeys)
		return
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(values)) {
		size += len(k) + len(values[k])
		if k == "" || len(k) > maxMetadataKey || HasControls(k) {
			m.Wrong(at+problem.Pointer(k), "invalid_name", "A key of metadata is one line of 1 to %d bytes.", maxMetadataKey)
		}
	}
	if size > maxMetadata {
		m.Wrong(at, "too_long", "The keys and values have %d bytes together; they may have %d.", size, maxMetadata)
	}
}

// setUnsubscribe lets the recipients unsubscribe, and adds the header fields of RFC 8058 for
// it, unless the message or a recipient has fields of its own.
func (in *Intake) setUnsubscribe(batch *models.Batch) {
	page, named := in.cfg.UnsubscribeURL, in.Batch.Unsubscribe
	on := page != "" && batch.Lane == models.Bulk && batch.Category != "" && !in.together
	if named != nil {
		on = *named
	}
	switch {
	case !on:
		return
	case in.together:
		in.Wrong("/"+Unsubscribe, "conflict",
			"All addresses of one message have the same link, which would unsubscribe the first in to.")
		return
	case page == "":
		in.Wrong("/"+Unsubscribe, "invalid_value",
			"Recipients need an address to unsubscribe at: an operator must set SAFEDELIVR_PUBLIC_URL.")
		return
	}
	batch.Unsubscribe = models.NewUnsubscription(page)
	c := &batch.Content
	if models.FindHeader(c.Headers, listUnsubscribe) >= 0 || in.ownHeaders.names[listUnsubscribe] > 0 {
		return
	}
	c.Headers = append(slices.Clone(c.Headers),
		models.Header{Name: "List-Unsubscribe", Value: "<{{" + models.UnsubscribeURL + "}}>"},
		models.Header{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"})
}
