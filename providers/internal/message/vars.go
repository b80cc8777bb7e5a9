package message

import (
	"github.com/safedelivr/safedelivr/models"
)

// A Form says how a value is written in a part of the message.
type Form byte

// The forms.
const (
	HTMLForm    Form = 'h' // special characters as entities
	TextForm    Form = 't' // as it is
	SubjectForm Form = 's' // on one line
)

// A Var is a placeholder in one of its forms. Each form has its own token at the
// provider, because a value may be used in several.
type Var struct {
	Name string
	Form Form
}

// Value returns the value of the placeholder for r in its form. ok is false if there is
// none.
func (v Var) Value(r *models.Recipient) (value string, ok bool) {
	s, ok := r.Value(v.Name)
	switch v.Form {
	case HTMLForm:
		return models.EscapeHTML(v.Name, Body(s)), ok
	case SubjectForm:
		return models.OneLine(s), ok
	case TextForm:
	}
	return Body(s), ok
}

// A Filled is a content whose placeholders were replaced by tokens of a provider.
type Filled struct {
	Subject, Text, HTML string
	Vars                []Var // the placeholders, in order of appearance
}

// Fill replaces the placeholders of a content by tokens. token returns the token of
// variable i. literal, if not nil, is applied to the text between placeholders.
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
	f.Subject = part(SubjectForm, models.OneLine(c.Subject))
	f.Text = part(TextForm, Body(c.Text))
	f.HTML = part(HTMLForm, Body(c.HTML))
	return f
}

// Missing returns the parts of a call in which some recipients have no value for a
// placeholder. Their mail would show a raw token.
func Missing(all, lacking models.Set, name string) []models.Part {
	return Without(all, models.Part{
		Class:      models.RejectedRequest,
		Recipients: lacking,
		Reason:     models.InvalidRequest,
		Text:       "the recipient has no value for the placeholder " + name,
	})
}
