package intake

import (
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// SinceComplete returns how long ago the request was complete: when Check began.
func (b *Builder) SinceComplete() time.Duration { return time.Since(b.complete) }

// Check returns the batch without an ID and a user, or the error that lists all
// mistakes. If the context ended, the error may be the context's. The batch has an expiry
// only if the request has one: see SetTimes. Check may be called once.
func (b *Builder) Check() (models.Batch, error) {
	b.complete = time.Now()
	if b.content > longContent || b.index > longCount {
		if err := b.pace.begin(); err != nil {
			return models.Batch{}, err
		}
		defer b.pace.pause()
	}
	b.checkStructured()
	if b.template != nil && b.Mistakes.Found() == 0 { // mistakes in the request may have thousands of consequences
		if err := b.fill(); err != nil {
			return models.Batch{}, err
		}
	}
	if err := b.readDefaults(); err != nil {
		return models.Batch{}, err
	}
	batch := b.batch()
	if b.template != nil && b.Mistakes.Found() > 0 {
		return batch, b.Err() // the placeholders were not filled
	}
	if err := b.checkPlaceholders(&batch); err != nil {
		return batch, err
	}
	if b.Permissive() {
		b.count(&batch)
		if err := b.noneLeft(); err != nil {
			return batch, err
		}
	}
	if err := b.addCopies(&batch); err != nil {
		return batch, err
	}
	return batch, b.Err()
}

// count sets what a batch has of the number of its recipients.
func (b *Builder) count(batch *models.Batch) {
	cut := b.spool.cut()
	batch.Recipients = cut.count
	batch.Duplicates = b.spool.all.count - cut.count + b.merged
	batch.Rejected = b.Rejected()
	batch.Chunks = len(cut.sizes())
	batch.Sizes = b.spool.irregular()
}

// batch checks everything but the placeholders.
func (b *Builder) batch() models.Batch {
	b.keepRepeats()
	var batch models.Batch
	b.count(&batch)
	batch.Content.From = b.address("from", true)
	batch.Content.Subject = b.subject()
	batch.Content.Text, batch.Content.HTML = b.bodies()
	if b.index == 0 && !b.bad["to"] {
		b.Wrong("/to", "required", "Add at least one recipient.")
	}
	b.setOptions(&batch)
	b.checkCopies()
	if b.template != nil {
		use := b.template.Use
		batch.Template = &use
	} else if b.texts[Language] != "" && b.texts[Template] == "" {
		b.Wrong("/"+Language, "conflict", "Only a template has languages.")
	}
	batch.Providers = b.providerNames()
	batch.Lane = b.lane(batch.Recipients + len(b.copies))
	b.setUnsubscribe(&batch)
	batch.OwnHeaders = b.ownHeaders.kind(batch.Content.Headers)
	batch.OnUnknown = b.onUnknown()
	before := b.Found()
	b.setSchedule(&batch)
	if b.Found() == before && !b.Permissive() && b.resolveTimes(time.Now()) { // SetTimes does the rest
		b.reportTimes()
	}
	batch.Groups = models.GroupsOf(&batch)
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
		b.Wrong("/html", "required", "Add text, html, or both.")
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
