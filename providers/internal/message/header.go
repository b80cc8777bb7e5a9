package message

import (
	"mime"
	"net/mail"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Header returns the value of a header field for a recipient: one line of ASCII, encoded
// (RFC 2047) if it has other characters. missing names a placeholder without a value.
func Header(h *models.Header, r *models.Recipient) (value, missing string) {
	value = models.Rewrite(h.Value, func(name string) string {
		v, ok := r.Value(name)
		if !ok {
			missing = name
		}
		return v
	})
	return mime.QEncoding.Encode("utf-8", models.OneLine(value)), missing
}

// Personal reports whether the header fields of a call differ from recipient to recipient.
func Personal(c *models.Call) bool {
	for _, h := range c.Content.Headers {
		if len(models.Placeholders(h.Value)) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(c.Recipients, func(r models.CallRecipient) bool { return len(r.Headers) > 0 })
}

// Replies returns the value of the header field Reply-To, or "" if the message has none.
func Replies(c *models.Content) string {
	list := make([]string, len(c.ReplyTo))
	for i, a := range c.ReplyTo {
		list[i] = (&mail.Address{Name: Name(a.Name), Address: a.Email}).String()
	}
	return strings.Join(list, ", ")
}
