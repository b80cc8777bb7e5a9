package models

import (
	"slices"
	"strings"
)

// MessageIDField and referencesField are the header fields that make a conversation of mails (RFC 5322, 3.6.4).
const (
	MessageIDField  = "Message-ID"
	referencesField = "References"
)

// maxHeaderLine is the longest line of a header, in bytes (RFC 5322, 2.1.1).
const maxHeaderLine = 998

// ShortenReferences cuts the value of References or In-Reply-To to the message ids that fit into one line: the first,
// which began the conversation, and the newest. Other fields stay.
func (h *Header) ShortenReferences() {
	most := maxHeaderLine - len(h.Name+": ")
	if len(h.Value) <= most || !strings.EqualFold(h.Name, referencesField) && !strings.EqualFold(h.Name, "In-Reply-To") {
		return
	}
	ids := strings.Fields(h.Value)
	left, from := most-len(ids[0]), len(ids)
	for from > 1 && left > len(ids[from-1]) {
		from--
		left -= len(" ") + len(ids[from])
	}
	h.Value = strings.Join(append(ids[:1], ids[from:]...), " ")
}

// MessageID returns the Message-ID that the sender gave the mail to a recipient, in angle brackets, or "".
func (c *Content) MessageID(r *Recipient) string {
	for _, headers := range [2][]Header{r.Headers, c.Headers} {
		if at := FindHeader(headers, MessageIDField); at >= 0 {
			return r.Fill(headers[at].Value, nil)
		}
	}
	return ""
}

// MoveMessageIDs prepares the call for a provider that replaces the Message-ID of every mail. References gets the one
// of the sender, so that answers to the mail still belong to its conversation.
func (c *Call) MoveMessageIDs() {
	shared := FindHeader(c.Content.Headers, MessageIDField) >= 0
	for i := range c.Recipients {
		r := &c.Recipients[i]
		if own := FindHeader(r.Headers, MessageIDField) >= 0; own || shared && FindHeader(r.Headers, referencesField) >= 0 {
			r.Headers = moveMessageID(c.Content.HeadersOf(&r.Recipient))
		}
	}
	if shared {
		content := *c.Content
		content.Headers = moveMessageID(content.Headers)
		c.Content = &content
	}
}

// moveMessageID returns header fields with the Message-ID at the end of References.
func moveMessageID(headers []Header) []Header {
	at := FindHeader(headers, MessageIDField)
	id := headers[at].Value
	headers = slices.Delete(slices.Clone(headers), at, at+1)
	if at = FindHeader(headers, referencesField); at < 0 {
		return append(headers, Header{Name: referencesField, Value: id})
	}
	headers[at].Value += " " + id
	if len(Placeholders(headers[at].Value)) == 0 {
		headers[at].ShortenReferences()
	}
	return headers
}
