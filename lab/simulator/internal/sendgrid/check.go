package sendgrid

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

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
	if pairBytes(r.args) > maxArgs {
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
	recipients := len(c.Addresses())
	switch n := len(c.people); {
	case n == 0:
		c.report(field, help, "The personalizations field is required and must have at least one personalization.")
	case n > maxRecipients:
		c.report(field, help, "The personalizations field may not have more than %d personalizations.", maxRecipients)
	case recipients > maxRecipients:
		c.report(field, help, "The total number of recipients of a request may not exceed %d. We found %d.",
			maxRecipients, recipients)
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
	for _, a := range p.addrs {
		if !message.ValidAddress(a.addr) {
			c.list = append(c.list, invalidAddress(i, a))
		}
		// SendGrid splits or rejects names with these characters unless they are quoted.
		if !strings.HasPrefix(a.name, `"`) && strings.ContainsAny(a.name, ",;") {
			role := roles[a.flags]
			c.report(path(fmt.Sprintf(".%s.%d.name", role, a.i)), help+role,
				"The name may not contain a comma or semicolon unless it is quoted.")
		}
	}
	if !slices.ContainsFunc(p.addrs, func(a address) bool { return a.flags == 0 }) {
		c.report(path(".to"), help+"to", toMissing)
	}
	if addr := repeated(p.addrs); addr != "" {
		c.report(path(""), "message.recipient-errors", "Each email address in the personalization block should be unique "+
			"between to, cc, and bcc. We found the first duplicate instance of [%s] in the %s field.", addr, path(""))
	}
	if pairBytes(p.args) > maxArgs {
		c.report(path(".custom_args"), help+"custom_args",
			"The total length of custom arguments may not exceed %d bytes.", maxArgs)
	}
	if len(p.subs) > maxArgs && pairBytes(p.substitutions()) > maxArgs {
		c.report(path(".substitutions"), help+"substitutions",
			"The total length of substitutions may not exceed %d bytes.", maxArgs)
	}
	if p.subs != "" && strings.HasPrefix(c.template, "d-") {
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
		if _, err := base64.StdEncoding.DecodeString(a.content); err != nil || a.content == "" {
			report("content", "The attachment content must be base64 encoded.")
		}
		if a.filename == "" {
			report("filename", "The filename parameter is required.")
		}
		for field, value := range map[string]string{
			"type": a.kind, "filename": a.filename, "content_id": a.contentID,
		} {
			if strings.ContainsAny(value, ";\r\n") && value != invitation {
				report(field, "The attachment "+field+" cannot contain ';', or CRLF characters.")
			}
		}
		switch a.disposition {
		case "", "attachment", "inline":
		default:
			report("disposition", "The attachment disposition must be either inline or attachment.")
		}
	}
}

// repeated returns an address that is in a personalization twice, or "".
func repeated(addrs []address) string {
	if len(addrs) < 2 {
		return ""
	}
	seen := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		addr := strings.ToLower(a.addr)
		if seen[addr] {
			return addr
		}
		seen[addr] = true
	}
	return ""
}

func (c *checker) checkMessage() {
	switch {
	case c.from == "":
		c.report("from.email", "message.from", fromMissing)
	case !message.ValidAddress(c.from) || !message.ASCII(c.from):
		c.report("from.email", "message.from", "Does not contain a valid address.")
	}
	if c.hasReply && c.hasReplyList {
		c.report("reply_to", "message.reply_to", "The reply_to and reply_to_list fields may not be used together.")
	}
	noSubject := func(p personalization) bool { return p.subject == "" }
	if c.subject == "" && c.template == "" && slices.ContainsFunc(c.people, noSubject) {
		c.report("subject", "message.subject", subjectMissing)
	}
}

func (c *checker) checkContent() {
	if len(c.contents) == 0 && c.template == "" {
		c.report("content", "message.content", contentMissing)
		return
	}
	plain, html := -1, -1
	for i, part := range c.contents {
		if part.kind == "" {
			c.report(fmt.Sprintf("content.%d.type", i), "message.content.type", "The content type is required.")
		}
		if part.value == "" {
			c.report(fmt.Sprintf("content.%d.value", i), "message.content.value",
				"The content value must be a string at least one character in length.")
		}
		if part.kind == "text/plain" && plain < 0 {
			plain = i
		}
		if part.kind == "text/html" && html < 0 {
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
	for i, text := range c.categories {
		if len([]rune(text)) > maxCategory {
			c.report(fmt.Sprintf("categories.%d", i), help, "A category may not exceed %d characters.", maxCategory)
		}
		if seen[text] {
			c.report("categories", help, "The categories must be unique.")
		}
		seen[text] = true
	}
}

// pairBytes returns the length of keys and values.
func pairBytes(list []message.Pair) (n int) {
	for _, p := range list {
		n += len(p.Key) + len(p.Value)
	}
	return n
}
