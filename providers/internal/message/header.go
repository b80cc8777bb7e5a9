package message

import (
	"mime"

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

// Personal reports whether the values of header fields differ from recipient to recipient.
func Personal(headers []models.Header) bool {
	for i := range headers {
		if len(models.Placeholders(headers[i].Value)) > 0 {
			return true
		}
	}
	return false
}

// Tags returns the tags of a content that a provider takes, which has a limit.
func Tags(c *models.Content, limit int) []string { return c.Tags[:min(len(c.Tags), limit)] }
