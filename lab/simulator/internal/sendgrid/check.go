package sendgrid

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
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
	badAddress  = "Does not contain a valid address."
	argsTooLong = "The total length of custom arguments may not exceed 10000 bytes."
	// invitation is the only type of an attachment with a parameter (sendgrid-nodejs issues 217 and 1313).
	invitation = "text/calendar; method=REQUEST"
)

// problems collects what SendGrid finds wrong with a request, in the words and with the field paths of its errors.
type problems []problem

// add adds a problem if there is one. help is what follows helpURL.
func (l *problems) add(wrong bool, field, help, text string) {
	if wrong {
		*l = append(*l, problem{text, field, helpURL + help})
	}
}

// at adds a problem of the i-th element of a list if there is one.
func (l *problems) at(wrong bool, list string, i int, rest, help, text string) {
	if wrong {
		l.add(true, fmt.Sprintf("%s.%d%s", list, i, rest), help, text)
	}
}

// check returns what SendGrid finds wrong with the request.
func (d *document) check(c *provider.Call, now time.Time) (l problems) {
	latest := now.Add(maxAhead).Unix()
	const field, help = "personalizations", "-Personalizations-Errors"
	l.add(len(d.People) == 0, field, help,
		"The personalizations field is required and must have at least one personalization.")
	l.add(len(d.People) > maxRecipients, field, help,
		"The personalizations field may not have more than 1000 personalizations.")
	n := len(c.Addresses())
	l.add(len(d.People) <= maxRecipients && n > maxRecipients, field, help,
		fmt.Sprintf("The total number of recipients of a request may not exceed %d. We found %d.", maxRecipients, n))
	if len(l) == 0 {
		for i := range d.People {
			l.person(d, c, i, latest)
		}
	}
	from := d.From.Email
	l.add(from == "", "from.email", "message.from", fromMissing)
	l.add(from != "" && (!message.ValidAddress(from) || !message.ASCII(from)), "from.email", "message.from", badAddress)
	l.add(d.ReplyTo != nil && len(d.ReplyToList) > 0, "reply_to", "message.reply_to",
		"The reply_to and reply_to_list fields may not be used together.")
	noSubject := func(p person) bool { return p.Subject == "" }
	l.add(d.Subject == "" && d.Template == "" && slices.ContainsFunc(d.People, noSubject), "subject", "message.subject",
		subjectMissing)
	l.content(d)
	if len(c.Mails) > 0 {
		l.attachments(d, c.Mails[0].Head)
	}
	l.add(pairBytes(d.Args) > maxArgs, "custom_args", "message.custom_args", argsTooLong)
	l.add(len(d.Categories) > maxCategories, "categories", "message.categories",
		"There may not be more than 10 categories.")
	for i, text := range d.Categories {
		l.at(len([]rune(text)) > maxCategory, "categories", i, "", "message.categories",
			"A category may not exceed 255 characters.")
		l.add(slices.Contains(d.Categories[:i], text), "categories", "message.categories", "The categories must be unique.")
	}
	l.add(d.SendAt > latest, "send_at", "message.send_at", tooFarAhead)
	return l
}

// person adds the problems of a personalization.
func (l *problems) person(d *document, c *provider.Call, i int, latest int64) {
	const list, help = "personalizations", "message.personalizations."
	p, to := &d.People[i], c.Mails[i].To
	for k, a := range to {
		if !message.ValidAddress(a.Address) {
			*l = append(*l, recipient(c, provider.Place{Mail: i, To: k}, "email", badAddress))
		}
		// SendGrid splits or rejects names with these characters unless they are quoted.
		if !strings.HasPrefix(a.Name, `"`) && strings.ContainsAny(a.Name, ",;") {
			*l = append(*l, recipient(c, provider.Place{Mail: i, To: k}, "name",
				"The name may not contain a comma or semicolon unless it is quoted."))
		}
		same := func(b provider.Recipient) bool { return strings.EqualFold(a.Address, b.Address) }
		if len(to) > 1 && slices.IndexFunc(to, same) < k {
			l.at(true, list, i, "", "message.recipient-errors", fmt.Sprintf("Each email address in the personalization block "+
				"should be unique between to, cc, and bcc. We found the first duplicate instance of [%s] in the "+
				"personalizations.%d field.", strings.ToLower(a.Address), i))
			break
		}
	}
	l.at(len(p.To) == 0, list, i, ".to", help+"to", toMissing)
	l.at(pairBytes(p.Args) > maxArgs, list, i, ".custom_args", help+"custom_args", argsTooLong)
	l.at(len(p.Substitutions) > maxArgs && pairBytes(p.substitutions()) > maxArgs, list, i, ".substitutions",
		help+"substitutions", "The total length of substitutions may not exceed 10000 bytes.")
	l.at(strings.HasPrefix(d.Template, "d-") && len(p.substitutions()) > 0, list, i, ".substitutions",
		help+"substitutions", "Substitutions may not be used with dynamic templating")
	l.at(p.SendAt > latest, list, i, ".send_at", "message.send_at", tooFarAhead)
}

// content adds the problems of the content.
func (l *problems) content(d *document) {
	l.add(len(d.Content) == 0 && d.Template == "", "content", "message.content", contentMissing)
	for i, part := range d.Content {
		l.at(part.Type == "", "content", i, ".type", "message.content.type", "The content type is required.")
		l.at(part.Value == "", "content", i, ".value", "message.content.value",
			"The content value must be a string at least one character in length.")
	}
	is := func(kind string) int {
		return slices.IndexFunc(d.Content, func(c content) bool { return c.Type == kind })
	}
	plain, html := is("text/plain"), is("text/html")
	l.add(plain > 0 || html > 1 || html == 1 && plain != 0, "content", "message.content",
		"If present, text/plain must be first, followed by text/html, followed by any other content.")
}

// attachments adds the problems of the attachments, and the attachments to the mail.
func (l *problems) attachments(d *document, head *message.Batch) {
	for i, a := range d.Attachments {
		at := func(wrong bool, field, text string) {
			l.at(wrong, "attachments", i, "."+field, "message.attachments."+field, text)
		}
		data, err := base64.StdEncoding.DecodeString(a.Content)
		at(err != nil || a.Content == "", "content", "The attachment content must be base64 encoded.")
		at(a.Filename == "", "filename", "The filename parameter is required.")
		for field, value := range map[string]string{"type": a.Type, "filename": a.Filename, "content_id": a.ContentID} {
			at(strings.ContainsAny(value, ";\r\n") && value != invitation, field,
				"The attachment "+field+" cannot contain ';', or CRLF characters.")
		}
		at(!slices.Contains([]string{"", "attachment", "inline"}, a.Disposition), "disposition",
			"The attachment disposition must be either inline or attachment.")
		if a.Disposition != "inline" {
			a.ContentID = ""
		}
		head.Attachments = append(head.Attachments,
			message.NewAttachment(strings.Clone(a.Filename), strings.Clone(a.Type), strings.Clone(a.ContentID), data))
	}
}

// pairBytes returns the length of keys and values.
func pairBytes(list []message.Pair) (n int) {
	for _, p := range list {
		n += len(p.Key) + len(p.Value)
	}
	return n
}
