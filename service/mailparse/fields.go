package mailparse

import (
	"encoding/json"
	"maps"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const maxLine = 998 // bytes of a line (RFC 5322, 2.1.1)

// dropped are fields that belong to one transport of a message, or are set anew. All names that begin with a name
// that ends in - are meant.
var dropped = []string{"arc-", "authentication-results", "bcc", "bounces-to", "content-", "date", "dkim-signature",
	"domainkey-signature", "errors-to", "mime-version", "received", "received-spf", "resent-", "return-path", "sender",
	"x-mailgun-", "x-pm-", "x-safedelivr-", "x-sg-"}

// refused are fields that say who gets what, when or how, which the gateway cannot do.
var refused = []string{"x-mailgun-delivery-time-", "x-mailgun-recipient-variables", "x-mailgun-require-tls",
	"x-mailgun-template-name", "x-mailgun-time-zone-"}

// field takes a field of the header of the message.
func (p *reader) field(name, value string) error {
	value = raw8(value)
	line, lower := words(value), strings.ToLower(name)
	text := map[string]*string{"subject": &p.Subject, "message-id": &p.MessageID, "x-pm-message-stream": &p.Stream,
		"resend-idempotency-key": &p.IdempotencyKey, "x-mailgun-track": &p.track, "x-mailgun-track-opens": &p.opens,
		"x-pm-trackopens": &p.opens, "x-mailgun-track-clicks": &p.clicks, "x-pm-tracklinks": &p.clicks}[lower]
	list := map[string]*[]models.Address{"from": &p.from, "reply-to": &p.ReplyTo, "to": &p.To, "cc": &p.Cc}[lower]
	key, isMetadata := strings.CutPrefix(lower, "x-pm-metadata-")
	named := func(s string) bool { return s == lower || strings.HasSuffix(s, "-") && strings.HasPrefix(lower, s) }
	switch {
	case text != nil && *text != "":
		p.flaw(HeaderLeftOut)
	case lower == "message-id":
		p.MessageID = p.messageID(line)
	case text != nil:
		*text = line
	case list != nil:
		*list = append(*list, p.addresses(value)...)
	case lower == "references", lower == "in-reply-to":
		h := models.Header{Name: name, Value: line}
		if ids := anID.FindAllString(line, -1); len(ids) > 0 {
			h.Value = strings.Join(ids, " ")
		}
		h.ShortenReferences()
		p.keep(name, h.Value)
	case lower == "x-mailgun-tag", lower == "x-pm-tag":
		p.tag(line)
	case lower == "x-mailgun-drop-message":
		p.TestMode = isYes(line)
	case lower == "x-mailgun-deliver-by":
		at, err := mail.ParseDate(line)
		if err != nil {
			return refuse("bad_time", "X-Mailgun-Deliver-By is not a date like Fri, 25 Dec 2026 18:00:00 +0100.")
		}
		p.DeliverAt = at
	case lower == "x-mailgun-variables":
		return p.variables(name, []byte(value))
	case lower == "x-smtpapi":
		return p.smtpapi(value)
	case isMetadata:
		p.metadata(name[len(name)-len(key):], line)
	case slices.ContainsFunc(refused, named) && !isEmpty([]byte(line)) && line != "no" && line != "false":
		return unsupported(name)
	case !slices.ContainsFunc(dropped, named):
		p.keep(name, line)
	}
	return nil
}

func unsupported(name string) error {
	return refuse("unsupported_field", "%s says who gets what or when. Send such mail with the API.", name)
}

// keep passes a field on.
func (p *reader) keep(name, value string) {
	switch {
	case value == "":
	case len(name) > 126, len(value) > maxLine, len(p.Headers) == MaxHeaders,
		models.FindHeader(p.Headers, strings.ToLower(name)) >= 0:
		p.flaw(HeaderLeftOut)
	default:
		p.Headers = append(p.Headers, models.Header{Name: name, Value: value})
	}
}

func (p *reader) tag(tag string) {
	if tag != "" && !slices.Contains(p.Tags, tag) {
		p.Tags = append(p.Tags, tag)
	}
}

func (p *reader) metadata(key, value string) {
	if key = clean(key); key == "" {
		p.flaw(HeaderLeftOut)
		return
	}
	if p.Metadata == nil {
		p.Metadata = map[string]string{}
	}
	p.Metadata[key] = clean(value)
}

// variables takes a JSON object as metadata. Values that are no strings stay JSON.
func (p *reader) variables(name string, raw []byte) error {
	var values map[string]json.RawMessage
	if !isEmpty(raw) && json.Unmarshal(raw, &values) != nil {
		return refuse("bad_variables", "%s is not a JSON object.", name)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		text := string(values[key])
		_ = json.Unmarshal(values[key], &text) // leaves text as it is unless it is a string
		p.metadata(key, text)
	}
	return nil
}

// smtpapi takes the options of SendGrid.
func (p *reader) smtpapi(value string) error {
	var o struct {
		To, Sub, Section, Category json.RawMessage
		Each                       json.RawMessage `json:"send_each_at"`
		Args                       json.RawMessage `json:"unique_args"`
		At                         int64           `json:"send_at"`
	}
	var one string
	var tags []string
	bad := !isEmpty([]byte(value)) && json.Unmarshal([]byte(value), &o) != nil
	if !isEmpty(o.To) || !isEmpty(o.Sub) || !isEmpty(o.Section) || !isEmpty(o.Each) {
		return unsupported("to, sub, section or send_each_at in X-SMTPAPI")
	}
	if json.Unmarshal(o.Category, &one) == nil {
		tags = []string{one}
	} else {
		bad = bad || !isEmpty(o.Category) && json.Unmarshal(o.Category, &tags) != nil
	}
	if bad || o.At < 0 || o.At > 1<<37 {
		return refuse("bad_smtpapi", "X-SMTPAPI is not an object of JSON with category, unique_args and send_at.")
	}
	for _, tag := range tags {
		p.tag(clean(tag))
	}
	if o.At > 0 {
		p.DeliverAt = time.Unix(o.At, 0).UTC()
	}
	return p.variables("unique_args in X-SMTPAPI", o.Args)
}

// isEmpty reports whether a JSON value is one that clients send for an option that is not used.
func isEmpty(raw []byte) bool {
	return slices.Contains([]string{"", `""`, "[]", "{}", "null"}, strings.TrimSpace(string(raw)))
}

// isYes reports whether the value of an option turns it on.
func isYes(s string) bool {
	return slices.Contains([]string{"yes", "true", "1", "htmlonly", "htmlandtext", "textonly"}, strings.ToLower(s))
}

// messageID returns the ID in a Message-ID field without < and >.
func (p *reader) messageID(line string) string {
	if _, after, found := strings.Cut(line, "<"); found {
		line, _, _ = strings.Cut(after, ">")
	}
	id := strings.TrimSpace(line)
	unusable := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '<' || r == '>' }
	name, domain, _ := strings.Cut(id, "@")
	if name == "" || domain == "" || len(id) > maxLine-len("Message-ID: <>") || strings.ContainsFunc(id, unusable) {
		p.flaw(HeaderLeftOut)
		return ""
	}
	return id
}

var anID = regexp.MustCompile(`<[^<>\s]+>`)
