package intake

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// SinceComplete returns how long ago the request was complete: when Check began.
func (in *Intake) SinceComplete() time.Duration { return time.Since(in.complete) }

// Check returns the batch without an ID and a user, or the error that lists all
// mistakes. If the context ended, the error may be the context's. The batch has an expiry
// only if the request has one: see SetTimes. The caller may call Check once.
func (in *Intake) Check() (models.Batch, error) {
	in.complete = time.Now()
	if err := in.useTemplate(); err != nil {
		return models.Batch{}, err
	}
	if in.content > longContent || in.index > longCount {
		if err := in.begin(); err != nil {
			return models.Batch{}, err
		}
		defer in.Pause()
	}
	if in.Batch.Template == "" && !in.Permissive() {
		in.structured.report(&in.Mistakes)
	}
	if err := in.gather(); err != nil {
		return models.Batch{}, err
	}
	// Mistakes in the request may have thousands of consequences.
	if in.template != nil && in.Mistakes.Mistakes.Found() == 0 {
		if err := in.fill(); err != nil {
			return models.Batch{}, err
		}
	}
	var err error
	if in.defaults, err = in.cfg.sendDefaults(); err != nil {
		return models.Batch{}, err
	}
	batch := in.batch()
	if err := in.checkReplaced(); err != nil {
		return batch, err
	}
	if in.template != nil && in.Mistakes.Mistakes.Found() > 0 {
		return batch, in.Err() // the placeholders were not filled
	}
	if err := in.checkPlaceholders(&batch); err != nil {
		return batch, err
	}
	if in.Permissive() {
		if err := in.countKept(&batch); err != nil {
			return batch, err
		}
	}
	if err := in.addCopies(&batch); err != nil {
		return batch, err
	}
	return batch, in.Err()
}

// count sets what a batch has of the number of its recipients.
func (in *Intake) count(batch *models.Batch) {
	cut := in.spool.cut()
	batch.Recipients = cut.count
	batch.Duplicates = in.spool.all.count - cut.count + in.merged
	batch.Rejected = in.Rejected()
	batch.Chunks = len(cut.sizes())
	batch.Sizes = in.spool.irregular()
}

// countKept is count for a batch without the recipients that have mistakes. It reports them if no other is left.
func (in *Intake) countKept(batch *models.Batch) error {
	in.count(batch)
	if in.Mistakes.Mistakes.Found() > 0 || in.Rejected() == 0 || batch.Recipients > 0 {
		return nil
	}
	return in.noneLeft()
}

// keepRepeats says whether the spool keeps repeated addresses. It frees the hashes of addresses, which only add needs.
func (in *Intake) keepRepeats() {
	in.spool.repeats = in.Batch.AllowDuplicates
	in.spool.seen = nil
}

// batch checks everything but the placeholders.
func (in *Intake) batch() models.Batch {
	in.keepRepeats()
	b, m := &in.Batch, &in.Mistakes
	var batch models.Batch
	in.count(&batch)
	c := &batch.Content
	c.From = b.from(m)
	c.ReplyTo = b.replyTo(m)
	c.Subject = b.subject(m)
	c.Text = b.Text
	c.HTML = in.names.Rewrite(b.bodies(m))
	if in.index == 0 && !m.unreadable["to"] {
		m.Wrong("/to", "required", "Add at least one recipient.")
	}
	c.Tags, c.Headers, batch.Metadata = b.tags(m), b.Headers, b.Metadata
	m.checkHeaders("/headers", b.Headers, MaxHeaders)
	m.checkMetadata("/metadata", b.Metadata)
	c.TrackOpens, c.TrackClicks = b.TrackOpens, b.TrackClicks
	c.Attachments = in.described()
	batch.PartOf = in.PartOf
	if batch.Category = b.Category; !ValidCategory(b.Category) {
		m.Wrong("/category", "invalid_name", "%s", CategoryRule)
	}
	if in.template != nil {
		use := in.template.Use
		batch.Template = &use
	} else if b.Language != "" && b.Template == "" {
		m.Wrong("/"+Language, "conflict", "Only a template has languages.")
	}
	batch.Providers = in.cfg.providers(b.Providers, m)
	batch.Lane = models.Lane(b.Lane)
	if batch.Lane == "" {
		batch.Lane = models.Bulk
		if batch.Recipients+len(in.copies) <= in.cfg.UrgentUpTo {
			batch.Lane = models.Urgent
		}
	}
	in.setUnsubscribe(&batch)
	batch.OwnHeaders = in.ownHeaders.kind(c.Headers)
	batch.OnUnknown = cmp.Or(models.UnknownPolicy(b.OnUnknown), models.Hold)
	b.checkTags(m)
	before := m.Found()
	s := in.cfg.schedule(&b.Times, &in.defaults, m)
	batch.DeliverAt, batch.ExpiresAt, batch.Window = s.DeliverAt, s.ExpiresAt, s.Window
	if m.Found() == before && !in.Permissive() && in.resolveTimes(time.Now()) { // SetTimes does the rest
		in.own.report(m)
	}
	batch.SetGroups()
	return batch
}

// required reports that a field is missing, unless its value could not be read.
func (m *Mistakes) required(detail, field string, alike ...string) {
	for _, name := range append(alike, field) {
		if m.unreadable[name] {
			return
		}
	}
	m.Wrong("/"+field, "required", "%s", detail)
}

func (b *Batch) from(m *Mistakes) models.Address {
	if empty(b.From) {
		m.required("Add the sender's address.", "from")
		return models.Address{}
	}
	return m.address("/from", b.From)
}

func (b *Batch) replyTo(m *Mistakes) (out []models.Address) {
	for i, text := range b.ReplyTo {
		at := "/reply_to/" + strconv.Itoa(i)
		if b.OneText {
			at = "/reply_to"
		}
		if !m.noted(at, text) {
			out = append(out, m.address(at, text))
		}
	}
	return out
}

// noted reports whether a value is empty because the decoder has reported that it cannot be read.
func (m *Mistakes) noted(at, value string) bool { return value == "" && m.At(at) }

// address returns the address in a field, and reports the mistakes in it.
func (m *Mistakes) address(at, value string) models.Address {
	a, err := ParseAddress(value)
	if err != nil {
		m.Wrong(at, "invalid_address", "%s %s", problem.Quote(value), err)
	} else if len(a.Name) > maxNameLen {
		m.Wrong(at, "too_long", "The name is longer than %d bytes.", maxNameLen)
	}
	return a
}

func (b *Batch) subject(m *Mistakes) string {
	s := strings.TrimSpace(b.Subject)
	switch {
	case s == "":
		m.required("Add a subject.", "subject")
	case HasControls(s):
		m.Wrong("/subject", "invalid_header", "The subject must be one line without control characters.")
	case len(s) > maxLine:
		m.Wrong("/subject", "too_long", "The subject is longer than %d bytes.", maxLine)
	}
	return s
}

// bodies returns the HTML. It reports that there is neither HTML nor text.
func (b *Batch) bodies(m *Mistakes) (html string) {
	if b.Body != "" && b.HTML != "" {
		m.Wrong("/body", "conflict", "body is another name for html; send only one of them.")
	}
	html, _ = b.html()
	if empty(b.Text) && empty(html) {
		m.required("Add text, html, or both.", "html", "text", "body")
	}
	return html
}

func (b *Batch) tags(m *Mistakes) []string {
	for i, tag := range b.Tags {
		at := "/tags/" + strconv.Itoa(i)
		switch {
		case m.noted(at, tag):
		case empty(tag), len(tag) > maxTag, HasControls(tag):
			m.Wrong(at, "invalid_name", "A tag is one line of 1 to %d bytes.", maxTag)
		case slices.Contains(b.Tags[:i], tag):
			m.Wrong(at, "repeated", "%s is listed twice.", problem.Quote(tag))
		}
	}
	return b.Tags
}

// providers returns the providers that a batch may use, each once.
func (c *Config) providers(names []string, m *Mistakes) (out []string) {
	most, named := len(c.Providers), 0
	for i, name := range names {
		at := "/providers/" + strconv.Itoa(i)
		if m.noted(at, name) {
			continue
		}
		named++
		switch {
		case !c.Providers[name]:
			m.Wrong(at, "unknown_provider", "No provider is called %s.%s", problem.Quote(name),
				MeantProvider(name, c.Providers))
		case slices.Contains(out, name):
			m.Wrong(at, "repeated", "%s is listed twice.", problem.Quote(name))
		default:
			out = append(out, name)
		}
	}
	switch {
	case names != nil && named == 0 && !m.unreadable["providers"]:
		m.Wrong("/providers", "required", "Name at least one provider, or leave providers out.")
	case named > most:
		m.Wrong("/providers", "too_many",
			"providers has more names than providers are configured (%d). Name each once.", most)
	}
	return out
}

// useTemplate takes the content of the template that the request names. It reports why the template cannot be used.
func (in *Intake) useTemplate() error {
	b := &in.Batch
	if b.Template == "" {
		return nil
	}
	f, err := in.cfg.Template(b.Template, b.Language)
	var e *problem.Error
	switch {
	case errors.As(err, &e) && e.Kind == problem.Invalid:
		for _, w := range e.Fields {
			in.Wrong(w.Pointer, w.Code, "%s", w.Detail)
		}
		for _, field := range []string{"from", "subject", "html"} {
			in.Unreadable(field) // they are not known
		}
		return nil
	case err != nil:
		return err
	}
	for _, field := range []struct{ name, text string }{
		{"subject", b.Subject}, {"text", b.Text}, {"html", b.HTML}, {"body", b.Body},
	} {
		if !empty(field.text) {
			in.Wrong("/"+field.name, "conflict", "The template has the %s; send only one of them.", field.name)
		}
	}
	var c models.Content
	f.Content(&c)
	in.template = f
	b.Subject, b.Text, b.HTML, b.Body = c.Subject, c.Text, c.HTML, ""
	if empty(b.From) {
		b.From = f.Sender
	}
	b.Category = cmp.Or(b.Category, f.Category)
	return in.AddContent(len(c.Subject) + len(c.Text) + len(c.HTML))
}

// fill fills the template for each recipient.
func (in *Intake) fill() error {
	var ofBatch []string
	for i := range in.Batch.Headers {
		ofBatch = append(ofBatch, models.Placeholders(in.Batch.Headers[i].Value)...)
	}
	return in.respool(func(at *place, r *models.Recipient) error {
		keep := ofBatch[:len(ofBatch):len(ofBatch)]
		for _, h := range r.Headers {
			keep = append(keep, models.Placeholders(h.Value)...)
		}
		wrong, err := in.template.Fill(in.ctx, r, at.json, keep)
		for _, w := range wrong {
			in.Wrong(pointerTo(at.index)+w.Pointer, w.Code, "%s", w.Detail)
		}
		at.json = nil
		return err
	})
}

// structured are the variables of recipients that are lists or objects, which only templates can use.
type structured struct {
	count int
	at    []string // pointers of some of them
}

// maxStructs is how many variables that need a template are listed as mistakes.
const maxStructs = 100

// NeedsTemplate is the text of the mistake in a variable that only templates can use.
const NeedsTemplate = "A variable must be a string, a number or a boolean. Lists and objects need a template."

// IsStructured reports whether the value of a variable is a list or an object.
func IsStructured(value string) bool { return value != "" && (value[0] == '{' || value[0] == '[') }

// note notes the variables of a recipient.
func (s *structured) note(index int, r *Recipient) {
	for _, name := range r.JSON {
		if !IsStructured(r.Vars[name]) {
			continue
		}
		if s.count++; len(s.at) < maxStructs {
			s.at = append(s.at, pointerTo(index)+problem.Pointer("vars", name))
		}
	}
}

// report reports that they need a template.
func (s *structured) report(m *Mistakes) {
	for _, at := range s.at {
		m.Wrong(at, "wrong_type", NeedsTemplate)
	}
	m.Skip(s.count - len(s.at))
}

// needTemplate reports the variables of a recipient that need a template.
func (m *Mistakes) needTemplate(at place, r *models.Recipient) {
	for _, name := range at.json {
		if IsStructured(r.Vars[name]) {
			m.Wrong(pointerTo(at.index)+problem.Pointer("vars", name), "wrong_type", NeedsTemplate)
		}
	}
}
