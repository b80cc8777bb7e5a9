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

// A Rendered is the mail to one recipient.
type Rendered struct {
	Subject, Text, HTML string
	Headers             []models.Header // their values are encoded
}

// Render fills in the values of a recipient. missing names a placeholder without a value.
func Render(c *models.Content, r *models.Recipient) (m Rendered, missing string) {
	f := Fill(c, func(_ int, v Var) string {
		value, ok := v.Value(r)
		if !ok {
			missing = v.Name
		}
		return value
	}, nil)
	m.Subject, m.Text, m.HTML = f.Subject, f.Text, f.HTML
	for _, h := range c.HeadersOf(r) {
		value, lacks := Header(&h, r)
		if lacks != "" {
			missing = lacks
		}
		m.Headers = append(m.Headers, models.Header{Name: h.Name, Value: value})
	}
	return m, missing
}

// Flaws are what is wrong with the mails of a call.
type Flaws struct {
	lacking, unfit, tooLong models.Set // recipients
	lacks                   string     // what one of them has no value for
	why                     string     // one of them is unfit
}

// Lack notes that a recipient has no value for a placeholder, whose mail would show a raw token.
func (f *Flaws) Lack(r *models.CallRecipient, placeholder string) {
	f.lacking.Add(r.Log.Recipient())
	f.lacks = placeholder
}

// Unfit notes that the provider cannot take the mail to a recipient, and why.
func (f *Flaws) Unfit(r *models.CallRecipient, why string) {
	f.unfit.Add(r.Log.Recipient())
	f.why = why
}

// TooLong notes that the values of a recipient are longer than the provider takes.
func (f *Flaws) TooLong(r *models.CallRecipient) { f.tooLong.Add(r.Log.Recipient()) }

// Parts returns the parts of a call with flaws; nil: it has none. tooLong says which limit the values exceed.
func (f *Flaws) Parts(c *models.Call, tooLong string) []models.Part {
	bad := models.Part{
		Class:      models.RejectedRequest,
		Recipients: f.lacking,
		Reason:     models.InvalidRequest,
		Text:       "the recipient has no value for the placeholder " + f.lacks,
	}
	switch {
	case !f.lacking.Empty():
	case !f.unfit.Empty():
		bad = models.Part{Class: models.RejectedHereClass, Recipients: f.unfit, Text: f.why}
	default:
		bad = models.Part{Class: models.RejectedHereClass, Recipients: f.tooLong, Reason: models.TooLarge, Text: tooLong}
	}
	if bad.Recipients.Empty() {
		return nil
	}
	return Together(c, Without(c.Numbers(), bad))
}
