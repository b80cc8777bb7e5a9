package intake

import (
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Check returns the batch without an ID and a user, or the error that lists all
// mistakes. If the context ended, the error may be the context's. The batch has a deadline
// only if the request has one: see SetDeadline. Check may be called once.
func (b *Builder) Check() (models.Batch, error) {
	if b.content > longContent || b.index > longCount {
		if err := b.pace.begin(); err != nil {
			return models.Batch{}, err
		}
		defer b.pace.pause()
	}
	b.checkStructured()
	if b.template != nil && b.Found() == 0 { // mistakes in the request may have thousands of consequences
		if err := b.fill(); err != nil {
			return models.Batch{}, err
		}
	}
	batch := b.batch()
	if b.template != nil && b.Found() > 0 {
		return batch, b.Err() // the placeholders were not filled
	}
	if err := b.checkPlaceholders(&batch); err != nil {
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
	batch.Content.Subject = b.subject()
	batch.Content.Text, batch.Content.HTML = b.bodies()
	if b.index == 0 && !b.bad["to"] {
		b.Wrong("/to", "required", "Add at least one recipient.")
	}
	b.setOptions(&batch)
	if b.template != nil {
		use := b.template.Use
		batch.Template = &use
	} else if b.texts[Language] != "" && b.texts[Template] == "" {
		b.Wrong("/"+Language, "conflict", "Only a template has languages.")
	}
	batch.Providers = b.providerNames()
	batch.Lane = b.lane(cut.count)
	b.setUnsubscribe(&batch)
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
	return b.parseAddress("/"+field, value)
}

// parseAddress returns the address in a field, and reports the mistakes in it.
func (b *Builder) parseAddress(at, value string) models.Address {
	a, err := ParseAddress(value)
	if err != nil {
		b.Wrong(at, "invalid_address", "%s %s", problem.Quote(value), err)
	} else if len(a.Name) > maxNameLen {
		b.Wrong(at, "too_long", "The name is longer than %d bytes.", maxNameLen)
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
	case len(s) > maxLine:
		b.Wrong("/subject", "too_long", "The subject is longer than %d bytes.", maxLine)
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
	switch most := len(b.cfg.Providers); {
	case b.set["providers"] && b.named == 0 && !b.bad["providers"]:
		b.Wrong("/providers", "required", "Name at least one provider, or leave providers out.")
	case b.named > most:
		b.Wrong("/providers", "too_many",
			"providers has more names than providers are configured (%d). Name each once.", most)
	}
	return b.providers
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
