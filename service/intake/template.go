package intake

import (
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/templates"
)

// Fields of a batch that is made from a template.
const (
	Template = "template" // a name, or a name and a version like welcome@3
	Language = "language"
)

// UseTemplate makes the message from a template. It must be called before Check.
func (b *Builder) UseTemplate(f *templates.Filler) error {
	b.template = f
	for _, field := range []string{"subject", "text", "html", "body"} {
		if strings.TrimSpace(b.texts[field]) != "" {
			b.Wrong("/"+field, "conflict", "The template has the %s; send only one of them.", field)
		}
	}
	var c models.Content
	f.Content(&c)
	b.texts["subject"], b.texts["text"], b.texts["html"] = c.Subject, c.Text, c.HTML
	delete(b.set, "body")
	if strings.TrimSpace(b.texts["from"]) == "" {
		b.texts["from"] = f.Sender
	}
	if b.texts["category"] == "" {
		b.texts["category"] = f.Category
	}
	return b.AddContent(len(c.Subject) + len(c.Text) + len(c.HTML))
}

// NoTemplate reports why the template of the request cannot be used.
func (b *Builder) NoTemplate(why []problem.FieldError) {
	for _, w := range why {
		b.Wrong(w.Pointer, w.Code, "%s", w.Detail)
	}
	for _, field := range []string{"from", "subject", "text", "html"} {
		b.Unreadable(field) // they are not known
	}
}

// Structured notes a variable that is a list or an object, which only templates can use.
func (b *Builder) Structured(pointer string) {
	if b.structs++; len(b.structAt) < maxStructs {
		b.structAt = append(b.structAt, pointer)
	}
}

// maxStructs is how many variables that need a template are listed as mistakes.
const maxStructs = 100

// checkStructured reports the variables that need a template, if there is none.
func (b *Builder) checkStructured() {
	if b.template != nil || b.texts[Template] != "" || b.Permissive() {
		return
	}
	for _, at := range b.structAt {
		b.Wrong(at, "wrong_type", needsTemplate)
	}
	b.Skip(b.structs - len(b.structAt))
}

const needsTemplate = "A variable must be a string, a number or a boolean. Lists and objects need a template."

// needTemplate reports the variables of a recipient that need a template.
func (b *Builder) needTemplate(at place, r *models.Recipient) {
	for _, name := range at.json {
		if v := r.Vars[name]; v[0] == '{' || v[0] == '[' {
			b.Wrong("/to/"+strconv.Itoa(at.index)+problem.Pointer("vars", name), "wrong_type", needsTemplate)
		}
	}
}

// fill fills the template for each recipient. The recipients move to a new spool, because
// their sizes change. It takes time linear in the request.
func (b *Builder) fill() error {
	old := b.spool
	filled := newSpool(old.dir, b.cfg.Spooling)
	b.spool = filled
	defer old.close()
	var keep []string
	for i := range b.headers {
		keep = append(keep, models.Placeholders(b.headers[i].Value)...)
	}
	old.repeats = true // the new spool finds them again
	if b.rejected != nil {
		b.rejected.begin()
	}
	return spoolError(old.each(b.paced(func(at place, r models.Recipient) error {
		keep := keep[:len(keep):len(keep)]
		for _, h := range r.Headers {
			keep = append(keep, models.Placeholders(h.Value)...)
		}
		wrong, err := b.template.Fill(b.ctx, &r, at.json, keep)
		if err != nil {
			return err
		}
		b.row = at.row
		for _, w := range wrong {
			b.Wrong("/to/"+strconv.Itoa(at.index)+w.Pointer, w.Code, "%s", w.Detail)
		}
		if len(wrong) > 0 && b.Permissive() {
			return b.rejected.err
		}
		at.json = nil
		return filled.add(at, &r)
	})))
}

// Typed calls f for each recipient, with the names of its variables whose value is JSON.
func (b *Builder) Typed(f func(r models.Recipient, json []string)) error {
	return spoolError(b.spool.each(func(at place, r models.Recipient) error {
		f(r, at.json)
		return nil
	}))
}
