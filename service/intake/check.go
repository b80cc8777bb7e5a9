package intake

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Check returns the batch without an ID and a user, or the error that lists all
// mistakes. The batch has a deadline only if the request has one: see SetDeadline. Check
// may be called once.
func (b *Builder) Check() (models.Batch, error) {
	batch := b.batch()
	if err := b.checkPlaceholders(&batch.Content); err != nil {
		return batch, err
	}
	return batch, b.Err()
}

// batch checks everything but the placeholders.
func (b *Builder) batch() models.Batch {
	b.keepRepeats()
	cut := b.spool.cut()
	batch := models.Batch{
		Recipients: cut.count,
		Duplicates: b.spool.all.count - cut.count,
		Chunks:     len(cut.sizes),
		Sizes:      b.spool.irregular(),
	}
	batch.Content.From = b.address("from", true)
	batch.Content.ReplyTo = b.address("reply_to", false)
	batch.Content.Subject = b.subject()
	batch.Content.Text, batch.Content.HTML = b.bodies()
	if b.index == 0 && !b.bad["to"] {
		b.Wrong("/to", "required", "Add at least one recipient.")
	}
	batch.Providers = b.providerNames()
	batch.Lane = b.lane(cut.count)
	batch.OnUnknown = b.onUnknown()
	batch.Deadline = b.deadline()
	return batch
}

func (b *Builder) address(field string, required bool) models.Address {
	value := b.texts[field]
	if strings.TrimSpace(value) == "" {
		if required && !b.bad[field] {
			b.Wrong("/"+field, "required", "Add the sender's address.")
		}
		return models.Address{}
	}
	a, err := ParseAddress(value)
	if err != nil {
		b.Wrong("/"+field, "invalid_address", "%s %s", problem.Quote(value), err)
	} else if len(a.Name) > maxNameLen {
		b.Wrong("/"+field, "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	return a
}

func (b *Builder) subject() string {
	s := strings.TrimSpace(b.texts["subject"])
	switch {
	case b.bad["subject"]:
	case s == "":
		b.Wrong("/subject", "required", "Add a subject.")
	case HasControls(s):
		b.Wrong("/subject", "invalid_header", "The subject must be one line without control characters.")
	case len(s) > maxSubject:
		b.Wrong("/subject", "too_long", "The subject is longer than %d bytes.", maxSubject)
	}
	return s
}

// bodies returns the text and the HTML. The field body is another name for html.
func (b *Builder) bodies() (text, html string) {
	text, html = b.texts["text"], b.texts["html"]
	if b.set["body"] {
		if b.set["html"] {
			b.Wrong("/body", "conflict", "body is another name for html; send only one of them.")
		}
		html = b.texts["body"]
	}
	empty := strings.TrimSpace(text) == "" && strings.TrimSpace(html) == ""
	if empty && !b.bad["text"] && !b.bad["html"] && !b.bad["body"] {
		b.Wrong("/html", "required", "Add text, html (or body), or both.")
	}
	return text, html
}

// providerNames returns the providers of the request without repeated names.
func (b *Builder) providerNames() []string {
	if b.set["providers"] && len(b.providers) == 0 && !b.bad["providers"] {
		b.Wrong("/providers", "required", "Name at least one provider, or leave providers out.")
	}
	var out []string
	for _, p := range b.providers {
		at := "/providers/" + strconv.Itoa(p.Index)
		if !b.cfg.Providers[p.Name] {
			b.Wrong(at, "unknown_provider", "No provider is called %s.", problem.Quote(p.Name))
		}
		if slices.Contains(out, p.Name) {
			b.Wrong(at, "repeated", "%s is listed twice.", problem.Quote(p.Name))
		} else {
			out = append(out, p.Name)
		}
	}
	return out
}

// lane returns the lane of a batch with a number of recipients.
func (b *Builder) lane(recipients int) models.Lane {
	lane := models.Lane(b.texts["lane"])
	switch {
	case b.bad["lane"]:
	case !b.set["lane"] && recipients <= b.cfg.UrgentUpTo:
		return models.Urgent
	case !b.set["lane"]:
		return models.Bulk
	case !lane.Valid():
		b.Wrong("/lane", "invalid_value", "lane must be urgent or bulk.")
	}
	return lane
}

func (b *Builder) onUnknown() models.UnknownPolicy {
	policy := models.UnknownPolicy(b.texts["on_unknown"])
	switch {
	case b.bad["on_unknown"]:
	case !b.set["on_unknown"]:
		return models.Hold
	case !policy.Valid():
		b.Wrong("/on_unknown", "invalid_value", "on_unknown must be hold or resend.")
	}
	return policy
}

// deadline returns the deadline of the request, or the zero time if it has none.
func (b *Builder) deadline() time.Time {
	if !b.set["deadline"] {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, b.texts["deadline"])
	if err != nil {
		b.Wrong("/deadline", "invalid_value", "deadline must be an RFC 3339 time with a zone, like 2026-01-31T12:00:00Z.")
	}
	return at.UTC().Truncate(time.Millisecond)
}

// SetDeadline checks the deadline of a batch that was first requested at a time, and
// sets it if the request has none. All retries of a request get the same deadline.
func (b *Builder) SetDeadline(batch *models.Batch, requested time.Time) error {
	if !b.set["deadline"] {
		batch.Deadline = requested.Add(b.cfg.Deadline).UTC().Truncate(time.Millisecond)
		return nil
	}
	most := max(maxDeadline, b.cfg.Deadline)
	if !batch.Deadline.After(requested) || batch.Deadline.Sub(requested) > most {
		b.Wrong("/deadline", "invalid_value", "deadline must be in the future, at most %d days from now.",
			int(most/(24*time.Hour)))
	}
	return b.Err()
}

// checkPlaceholders reports recipients that have no value for a placeholder of the
// content, or a value that the subject cannot contain.
func (b *Builder) checkPlaceholders(c *models.Content) error {
	b.checkSyntax()
	names, field := b.placeholders(c)
	missing := b.spool.missing(names)
	var some, inSubject []string
	for _, n := range names {
		switch missing[n] {
		case missingAll:
			b.Wrong("/"+field[n], "unknown_placeholder", "No recipient has a value for {{%s}}; add it to vars.", n)
		case missingSome:
			some = append(some, n)
		case missingNone:
		}
	}
	for _, n := range models.Placeholders(c.Subject) {
		if b.spool.many || b.spool.withControls[n] {
			inSubject = append(inSubject, n)
		}
	}
	if len(some)+len(inSubject) == 0 {
		return nil
	}
	return b.each(func(index int, r models.Recipient) error {
		here := "/to/" + strconv.Itoa(index)
		for _, n := range some {
			if _, ok := r.Vars[n]; !ok {
				b.Wrong(here+problem.Pointer("vars", n), "unknown_placeholder",
					"{{%s}} in %s has no value here.", n, field[n])
			}
		}
		for _, n := range inSubject {
			if HasControls(r.Vars[n]) {
				b.Wrong(here+problem.Pointer("vars", n), "invalid_header",
					"{{%s}} is used in the subject, so its value must be one line without control characters.", n)
			}
		}
		return nil
	})
}

// checkSyntax reports the first malformed placeholder of each field.
func (b *Builder) checkSyntax() {
	for _, field := range []string{"subject", "text", b.htmlField()} {
		text := b.texts[field]
		at, found := models.MalformedPlaceholder(text)
		if at < 0 {
			continue
		}
		before := text[:at]
		b.Wrong("/"+field, "unknown_placeholder",
			"%s in line %d, column %d is not a placeholder. A placeholder is {{name}}: a letter or _, then letters, digits, "+
				"_, - or dots, at most 64 bytes. Write {{{{ for a literal {{.",
			problem.Quote(found), strings.Count(before, "\n")+1,
			utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])+1)
	}
}

// htmlField returns the name of the field that holds the HTML.
func (b *Builder) htmlField() string {
	if b.set["body"] {
		return "body"
	}
	return "html"
}

// placeholders returns the placeholders of the content that need a value, in the order
// in which they appear, and the first field that each of them appears in.
func (b *Builder) placeholders(c *models.Content) (names []string, field map[string]string) {
	field = map[string]string{}
	for _, f := range []struct{ name, text string }{{"subject", c.Subject}, {"text", c.Text}, {b.htmlField(), c.HTML}} {
		for _, n := range models.Placeholders(f.text) {
			if n != "email" && n != "name" && field[n] == "" {
				field[n] = f.name
				names = append(names, n)
			}
		}
	}
	return names, field
}
