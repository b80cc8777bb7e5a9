package sendgrid

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

const (
	tooFarAhead = "Scheduled sends may not be more than 72 hours in the future."
	fromMissing = "The from object must be provided for every email send. " +
		"It is an object that requires the email parameter, " +
		`but may also contain a name parameter. e.g. {"email" : "example@example.com"} or ` +
		`{"email" : "example@example.com", "name" : "Example Recipient"}.`
	subjectMissing = "The subject is required. You can get around this requirement " +
		"if you use a template with a subject defined or if every personalization has a subject defined."
	contentMissing = "Unless a valid template_id is provided, the content parameter is required. " +
		"There must be at least one defined content block. " +
		"We typically suggest both text/plain and text/html blocks are included, but only one block is required."
	toMissing = "The to array is required for all personalization objects, " +
		"and must have at least one email object with a valid email address."
)

// A checker collects what SendGrid finds wrong with a request, in the words and
// with the field paths of its errors.
type checker struct {
	*request
	now  time.Time
	list []apiError
}

// check returns what SendGrid finds wrong with the request.
func (r *request) check(now time.Time) []apiError {
	c := checker{request: r, now: now}
	c.checkRecipients()
	c.checkMessage()
	c.checkContent()
	c.checkAttachments()
	if r.pairBytes(r.args) > maxArgs {
		c.report("custom_args", "message.custom_args",
			"The total length of custom arguments may not exceed %d bytes.", maxArgs)
	}
	c.checkCategories()
	if c.tooLate(r.sendAt) {
		c.report("send_at", "message.send_at", tooFarAhead)
	}
	return c.list
}

// report adds an error. Help is what follows helpURL.
func (c *checker) report(field, help, format string, args ...any) {
	c.list = append(c.list, apiError{fmt.Sprintf(format, args...), field, helpURL + help})
}

func (c *checker) tooLate(sendAt int64) bool { return sendAt > c.now.Add(maxAhead).Unix() }

func (c *checker) checkRecipients() {
	const field, help = "personalizations", "-Personalizations-Errors"
	switch n := len(c.people); {
	case n == 0:
		c.report(field, help, "The personalizations field is required and must have at least one personalization.")
	case n > maxRecipients:
		c.report(field, help, "The personalizations field may not have more than %d personalizations.", maxRecipients)
	case len(c.addrs) > maxRecipients:
		c.report(field, help, "The total number of recipients of a request may not exceed %d. We found %d.",
			maxRecipients, len(c.addrs))
	default:
		for i := range c.people {
			c.checkPerson(i)
		}
	}
}

func (c *checker) checkPerson(i int) {
	const help = "message.personalizations."
	p := &c.people[i]
	path := func(rest string) string { return fmt.Sprintf("personalizations.%d%s", i, rest) }
	addrs := c.addrs[p.addrs[0]:p.addrs[1]]
	for _, a := range addrs {
		if !message.ValidAddress(string(c.Text(a.addr))) {
			c.list = append(c.list, c.invalid(a))
		}
		// SendGrid splits or rejects names with these characters unless they are quoted.
		if name := c.Text(a.name); len(name) > 0 && name[0] != '"' && bytes.ContainsAny(name, ",;") {
			role := roles[a.flags]
			c.report(path(fmt.Sprintf(".%s.%d.name", role, a.i)), help+role,
				"The name may not contain a comma or semicolon unless it is quoted.")
		}
	}
	if !slices.ContainsFunc(addrs, func(a address) bool { return a.flags == 0 }) {
		c.report(path(".to"), help+"to", toMissing)
	}
	if addr := c.repeated(addrs); addr != "" {
		c.report(path(""), "message.recipient-errors", "Each email address in the personalization block should be unique "+
			"between to, cc, and bcc. We found the first duplicate instance of [%s] in the %s field.", addr, path(""))
	}
	if c.pairBytes(c.pairs[p.args[0]:p.args[1]]) > maxArgs {
		c.report(path(".custom_args"), help+"custom_args",
			"The total length of custom arguments may not exceed %d bytes.", maxArgs)
	}
	subs := c.pairs[p.subs[0]:p.subs[1]]
	if c.pairBytes(subs) > maxArgs {
		c.report(path(".substitutions"), help+"substitutions",
			"The total length of substitutions may not exceed %d bytes.", maxArgs)
	}
	if len(subs) > 0 && strings.HasPrefix(string(c.Text(c.template)), "d-") {
		c.report(path(".substitutions"), help+"substitutions", "Substitutions may not be used with dynamic templating")
	}
	if c.tooLate(p.sendAt) {
		c.report(path(".send_at"), "message.send_at", tooFarAhead)
	}
}

// invitation is the only type of an attachment with a parameter (sendgrid-nodejs issues 217 and 1313).
const invitation = "text/calendar; method=REQUEST"

func (c *checker) checkAttachments() {
	for i, a := range c.attachments {
		report := func(field, text string) {
			c.report(fmt.Sprintf("attachments.%d.%s", i, field), "message.attachments."+field, "%s", text)
		}
		text := c.Text(a.content)
		if _, err := base64.StdEncoding.Decode(make([]byte, base64.StdEncoding.DecodedLen(len(text))), text); err != nil ||
			len(text) == 0 {
			report("content", "The attachment content must be base64 encoded.")
		}
		if len(c.Text(a.filename)) == 0 {
			report("filename", "The filename parameter is required.")
		}
		for field, value := range map[string]jsontext.Span{
			"type": a.kind, "filename": a.filename, "content_id": a.contentID,
		} {
			if bytes.ContainsAny(c.Text(value), ";\r\n") && string(c.Text(value)) != invitation {
				report(field, "The attachment "+field+" cannot contain ';', or CRLF characters.")
			}
		}
		switch string(c.Text(a.disposition)) {
		case "", "attachment", "inline":
		default:
			report("disposition", "The attachment disposition must be either inline or attachment.")
		}
	}
}

// repeated returns an address that is in a personalization twice, or "".
func (r *request) repeated(addrs []address) string {
	if len(addrs) < 2 {
		return ""
	}
	seen := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		addr := strings.ToLower(string(r.Text(a.addr)))
		if seen[addr] {
			return addr
		}
		seen[addr] = true
	}
	return ""
}

func (c *checker) checkMessage() {
	switch from := string(c.Text(c.from)); {
	case len(from) == 0:
		c.report("from.email", "message.from", fromMissing)
	case !message.ValidAddress(from) || !message.ASCII(from):
		c.report("from.email", "message.from", "Does not contain a valid address.")
	}
	if c.hasReply && c.hasReplyList {
		c.report("reply_to", "message.reply_to", "The reply_to and reply_to_list fields may not be used together.")
	}
	noSubject := func(p personalization) bool { return p.subject.Empty() }
	if c.subject.Empty() && c.template.Empty() && slices.ContainsFunc(c.people, noSubject) {
		c.report("subject", "message.subject", subjectMissing)
	}
}

func (c *checker) checkContent() {
	if len(c.contents) == 0 && c.template.Empty() {
		c.report("content", "message.content", contentMissing)
		return
	}
	plain, html := -1, -1
	for i, part := range c.contents {
		kind := string(c.Text(part.kind))
		if kind == "" {
			c.report(fmt.Sprintf("content.%d.type", i), "message.content.type", "The content type is required.")
		}
		if part.value.Empty() {
			c.report(fmt.Sprintf("content.%d.value", i), "message.content.value",
				"The content value must be a string at least one character in length.")
		}
		if kind == "text/plain" && plain < 0 {
			plain = i
		}
		if kind == "text/html" && html < 0 {
			html = i
		}
	}
	if plain > 0 || html > 1 || html == 1 && plain != 0 {
		c.report("content", "message.content",
			"If present, text/plain must be first, followed by text/html, followed by any other content.")
	}
}

func (c *checker) checkCategories() {
	const help = "message.categories"
	if len(c.categories) > maxCategories {
		c.report("categories", help, "There may not be more than %d categories.", maxCategories)
		return
	}
	seen := map[string]bool{}
	for i, v := range c.categories {
		text := string(c.Text(v))
		if len([]rune(text)) > maxCategory {
			c.report(fmt.Sprintf("categories.%d", i), help, "A category may not exceed %d characters.", maxCategory)
		}
		if seen[text] {
			c.report("categories", help, "The categories must be unique.")
		}
		seen[text] = true
	}
}

// pairBytes returns the length of keys and values. It decodes escapes only if
// that can make a difference.
func (r *request) pairBytes(list []pair) (n int) {
	for _, p := range list {
		n += p.key.Size() + p.value.Size()
	}
	if n <= maxArgs {
		return n
	}
	n = 0
	for _, p := range list {
		n += len(r.Text(p.key)) + len(r.Text(p.value))
	}
	return n
}
