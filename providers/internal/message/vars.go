package message

import (
	"html"

	"github.com/safedelivr/safedelivr/models"
)

// A Form is how a value must be written in a part of the message.
type Form byte

// The forms.
const (
	HTMLForm    Form = 'h' // special characters as entities
	TextForm    Form = 't' // as it is
	SubjectForm Form = 's' // on one line
)

// A Var is a placeholder in one of its forms. Each has its own token at the
// provider, because one value may be wanted in several.
type Var struct {
	Name string
	Form Form
}

// Value is what the placeholder stands for at r, in the right form.
func (v Var) Value(r *models.Recipient) (string, bool) {
	s, ok := r.Value(v.Name)
	switch v.Form {
	case HTMLForm:
		return html.EscapeString(Body(s)), ok
	case SubjectForm:
		return Line(s), ok
	case TextForm:
	}
	return Body(s), ok
}

// A Filled is a content whose placeholders became the tokens of a provider.
type Filled struct {
	Subject, Text, HTML string
	Vars                []Var // those that are used, in order of appearance
}

// Fill puts tokens into a content. token gives that of variable i; literal is
// applied to what stands between the placeholders (nil: nothing is done to it).
func Fill(c *models.Content, token func(i int, v Var) string, literal func(Form, string) string) Filled {
	var f Filled
	known := map[Var]string{}
	part := func(form Form, s string) string {
		b := make([]byte, 0, len(s)+len(s)/8)
		models.EachPlaceholder(s, func(t string) {
			if literal != nil {
				t = literal(form, t)
			}
			b = append(b, t...)
		}, func(name string) {
			v := Var{name, form}
			t, ok := known[v]
			if !ok {
				t = token(len(f.Vars), v)
				known[v] = t
				f.Vars = append(f.Vars, v)
			}
			b = append(b, t...)
		})
		return string(b)
	}
	f.Subject = part(SubjectForm, Line(c.Subject))
	f.Text = part(TextForm, Body(c.Text))
	f.HTML = part(HTMLForm, Body(c.HTML))
	return f
}

// Missing is the answer to a call some of whose recipients have no value for a
// placeholder: what would be left in the mail is a raw token.
func Missing(all, lacking models.Set, name string) []models.Part {
	return Without(all, models.Part{Class: models.RejectedRequest, Recipients: lacking, Reason: models.InvalidRequest,
		Text: "the recipient has no value for the placeholder " + name})
}
