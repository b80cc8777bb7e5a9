package intake

import (
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of the options of a message. Names, values, tags and keys are in bytes.
const (
	maxReplyTo       = 10
	maxHeaders       = 20
	maxHeaderName    = 126
	maxTags          = 10
	maxTag           = 64
	maxMetadata      = 50
	maxMetadataKey   = 40
	maxMetadataValue = 500
)

// options are what a message has besides sender, subject, bodies and recipients.
type options struct {
	replyTo  []string // values with the pointers of replyAt
	replyAt  []string
	headers  []models.Header
	tags     []string
	metadata map[string]string

	trackOpens, trackClicks bool

	attachments []*Attachment
	contentIDs  map[string]bool
	unsubscribe *bool // nil: not set
	copies      []carbon
	merged      int // addresses of cc and bcc that were named before
}

// Flags of a batch, which are false by default.
const (
	AllowDuplicates = "allow_duplicates"
	TrackOpens      = "track_opens"
	TrackClicks     = "track_clicks"
)

// Unsubscribe is a flag of a batch. By default it is true for bulk mail with a category, if
// there is a page for it.
const Unsubscribe = "unsubscribe"

// IsFlag reports whether a batch has a field with this name that is true or false.
func (b *Builder) IsFlag(name string) bool {
	return name == AllowDuplicates || name == TrackOpens || name == TrackClicks || name == Unsubscribe
}

// FieldNames lists the fields of a batch, for suggestions.
var FieldNames = []string{
	"from", "to", "cc", "bcc", "reply_to", "subject", "text", "html", "template", "language", "category", "tags",
	"headers", "metadata", "attachments", "providers", "lane", "on_unknown", DeliverAt, ExpiresAt, TimeZone, SendWindow,
	AllowDuplicates, TrackOpens, TrackClicks, Unsubscribe,
}

// IsList reports whether a batch has a field with this name that is a list of strings.
func (b *Builder) IsList(name string) bool {
	return name == "providers" || name == "tags" || name == "reply_to" || IsMailboxes(name)
}

// IsMailboxes reports whether the elements of a list are mailboxes, whose names may have commas.
func IsMailboxes(name string) bool { return name == string(models.CC) || name == string(models.BCC) }

// IsTexts reports whether a batch has a field with this name that is an object of strings.
func (b *Builder) IsTexts(name string) bool { return name == "headers" || name == "metadata" }

// SetFlag sets a flag.
func (b *Builder) SetFlag(name string, on bool) {
	switch name {
	case AllowDuplicates:
		b.AllowDuplicates = on
	case TrackOpens:
		b.trackOpens = on
	case TrackClicks:
		b.trackClicks = on
	case Unsubscribe:
		b.unsubscribe = &on
	}
}

// SetList sets a list: its elements with their indexes in the request. It reads only a little
// more than the list may have.
func (b *Builder) SetList(name string, elements iter.Seq2[int, string]) {
	b.set[name] = true
	switch name {
	case "providers":
		b.setProviders(elements)
	case string(models.CC), string(models.BCC):
		b.setCopies(models.Role(name), elements)
	case "reply_to":
		for i, text := range elements {
			if len(b.replyTo) == maxReplyTo {
				b.Wrong("/reply_to", "too_many", "A message may have at most %d addresses for replies.", maxReplyTo)
				return
			}
			b.replyTo, b.replyAt = append(b.replyTo, text), append(b.replyAt, "/reply_to/"+strconv.Itoa(i))
		}
	case "tags":
		for i, tag := range elements {
			if len(b.tags) == maxTags {
				b.Wrong("/tags", "too_many", "A batch may have at most %d tags.", maxTags)
				return
			}
			b.addTag("/tags/"+strconv.Itoa(i), tag)
		}
	}
}

func (b *Builder) addTag(at, tag string) {
	switch {
	case !validTag(tag):
		b.Wrong(at, "invalid_name", "%s", TagRule)
	case slices.Contains(b.tags, tag):
		b.Wrong(at, "repeated", "%s is listed twice.", problem.Quote(tag))
	}
	b.tags = append(b.tags, tag)
}

// TagRule says what a tag or a category must be.
const TagRule = "A tag or category has 1 to 64 characters: letters a to z, digits, _, -, . or :."

// validTag reports whether every provider takes a tag.
func validTag(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && !(c >= '0' && c <= '9') && strings.IndexByte("_-.:", c) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= maxTag
}

// SetHeaders sets the header fields of the message: names and values.
func (b *Builder) SetHeaders(fields iter.Seq2[string, string]) {
	b.set["headers"] = true
	b.headers = b.checkHeaders("/headers", fields)
}

// checkHeaders returns header fields, and reports the mistakes in them. It reads only one more than a message may have.
func (b *Builder) checkHeaders(here string, fields iter.Seq2[string, string]) (headers []models.Header) {
	given := map[string]bool{}
	for name, value := range fields {
		if len(headers) == maxHeaders {
			b.Wrong(here, "too_many", "A message may have at most %d header fields of its own.", maxHeaders)
			return headers
		}
		at, lower := here+problem.Pointer(name), strings.ToLower(name)
		headers = append(headers, models.Header{Name: name, Value: value})
		switch {
		case !headerName(name):
			b.Wrong(at, "invalid_name",
				"The name of a header field has 1 to %d visible ASCII characters without a colon (RFC 5322).", maxHeaderName)
		case reservedHeader(lower):
			b.Wrong(at, "reserved_header", "%s has a field of its own, or is set by Safedelivr or the provider.", name)
		case given[lower]:
			b.Wrong(at, "repeated", "%s is given twice.", name)
		case len(value) > maxLine:
			b.Wrong(at, "too_long", "The value has more than %d bytes.", maxLine)
		case HasControls(value):
			b.Wrong(at, "invalid_header", "The value must be one line without control characters.")
		default:
			if text := MalformedPlaceholder(value); text != "" {
				b.Wrong(at, "unknown_placeholder", "%s", text)
			}
		}
		given[lower] = true
	}
	return headers
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
	"date": true, "message-id": true, "mime-version": true, "return-path": true, "received": true,
	"dkim-signature": true, "domainkey-signature": true, "authentication-results": true, "received-spf": true,
	"errors-to": true, "bounces-to": true, "x-smtpapi": true,
}

// reservedHeader reports whether a request may not set a header field. The name is in lower
// case.
func reservedHeader(lower string) bool {
	for _, prefix := range []string{"content-", "resent-", "arc-", "x-mailgun-", "x-sg-", "x-safedelivr-"} {
		if strings.HasPrefix(lower, prefix) {
			return true
		}
	}
	return reserved[lower]
}

// SetMetadata sets the metadata of the batch.
func (b *Builder) SetMetadata(values map[string]string) {
	b.set["metadata"] = true
	b.metadata = values
	b.checkMetadata("/metadata", values)
}

// checkMetadata reports mistakes in metadata, in the order of the keys.
func (b *Builder) checkMetadata(at string, values map[string]string) {
	if len(values) > maxMetadata {
		b.Wrong(at, "too_many", "Metadata has at most %d keys.", maxMetadata)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		here := at + problem.Pointer(k)
		if k == "" || len(k) > maxMetadataKey || HasControls(k) {
			b.Wrong(here, "invalid_name", "A key of metadata is one line of 1 to %d bytes.", maxMetadataKey)
		}
		if len(values[k]) > maxMetadataValue {
			b.Wrong(here, "too_long", "The value has more than %d bytes.", maxMetadataValue)
		}
	}
}

// setOptions sets the options of the batch.
func (b *Builder) setOptions(batch *models.Batch) {
	c := &batch.Content
	if len(b.replyTo) == 0 {
		if a := b.address("reply_to", false); a.Email != "" {
			c.ReplyTo = []models.Address{a}
		}
	}
	for i, text := range b.replyTo {
		c.ReplyTo = append(c.ReplyTo, b.parseAddress(b.replyAt[i], text))
	}
	c.Headers, c.Tags, batch.Metadata = b.headers, b.tags, b.metadata
	c.TrackOpens, c.TrackClicks = b.trackOpens, b.trackClicks
	c.Attachments = b.attached()
	batch.Category = b.texts["category"]
	if batch.Category != "" && !validTag(batch.Category) {
		b.Wrong("/category", "invalid_name", "%s", TagRule)
	}
}

// ValidCategory reports whether a batch may have a category.
func ValidCategory(category string) bool { return category == "" || validTag(category) }

// setUnsubscribe lets the recipients unsubscribe, and adds the header fields of RFC 8058 for
// it, unless the message or a recipient has fields of its own.
func (b *Builder) setUnsubscribe(batch *models.Batch) {
	on := b.cfg.UnsubscribeURL != "" && batch.Lane == models.Bulk && batch.Category != "" && len(b.copies) == 0
	if b.unsubscribe != nil {
		on = *b.unsubscribe
	}
	if on && len(b.copies) > 0 {
		b.Wrong("/"+Unsubscribe, "conflict",
			"All addresses of a message with cc or bcc have the same link, which would unsubscribe the one in to.")
		on = false
	}
	if on && b.cfg.UnsubscribeURL == "" {
		b.Wrong("/"+Unsubscribe, "invalid_value",
			"Recipients need an address to unsubscribe at: an operator must set SAFEDELIVR_PUBLIC_URL.")
		on = false
	}
	if !on {
		return
	}
	batch.Unsubscribe = models.NewUnsubscription(b.cfg.UnsubscribeURL)
	c := &batch.Content
	if models.FindHeader(c.Headers, listUnsubscribe) >= 0 || b.ownHeaders.names[listUnsubscribe] > 0 {
		return
	}
	c.Headers = append(slices.Clone(c.Headers),
		models.Header{Name: "List-Unsubscribe", Value: "<{{" + models.UnsubscribeURL + "}}>"},
		models.Header{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"})
}
