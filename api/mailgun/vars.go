package mailgun

import (
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/service/intake"
)

// macro matches what Mailgun replaces in a mail.
var macro = regexp.MustCompile(`%(recipient(?:_email|_name|_fname|_lname|\.[^%\s]{1,128})?|` +
	`(?:tag_|mailing_list_)?unsubscribe_(?:url|email))%`)

// A filler turns what Mailgun replaces into placeholders whose values stand as they are. Everything else is literal.
type filler struct {
	names       []string // what stands between the percent signs, by the number of the placeholder
	unsubscribe bool     // a text has the link to unsubscribe
}

// text returns a text of a message with placeholders.
func (f *filler) text(s string) string {
	var b strings.Builder
	last := 0
	for _, at := range macro.FindAllStringSubmatchIndex(s, -1) {
		before, name := s[last:at[0]], s[at[2]:at[3]]
		last = at[1]
		if braces := len(before) - len(strings.TrimRight(before, "{")); braces%2 == 1 { // it would belong to the placeholder
			before, name = before[:len(before)-1], "{"+name
		}
		b.WriteString(intake.Literal(before))
		key := strings.TrimPrefix(name, "{")
		switch own := strings.HasPrefix(key, "recipient"); {
		case !own && strings.HasSuffix(key, "_url"):
			f.unsubscribe = true
			b.WriteString(strings.Repeat(" ", len(name)-len(key)) + "{{unsubscribe_url}}")
		case !own: // there is no address to unsubscribe at
		default:
			n := slices.Index(f.names, name)
			if n < 0 && len(f.names) <= intake.MaxVars { // a message with more is refused
				n, f.names = len(f.names), append(f.names, name)
			}
			b.WriteString(intake.Raw(max(n, 0)))
		}
	}
	b.WriteString(intake.Literal(s[last:]))
	return b.String()
}

// values returns the values of the placeholders for a recipient, in their order. A placeholder without a value stays
// as it was written.
func (f *filler) values(to *address) []string {
	out := make([]string, len(f.names))
	first, last, _ := strings.Cut(to.name, " ")
	for i, name := range f.names {
		key := strings.TrimPrefix(name, "{")
		value := "%" + key + "%"
		switch key {
		case "recipient":
			value = to.posted
		case "recipient_email":
			value = to.email
		case "recipient_name":
			value = to.name
		case "recipient_fname":
			value = first
		case "recipient_lname":
			value = last
		default:
			if known, ok := to.vars[strings.TrimPrefix(key, "recipient.")]; ok {
				value = known
			}
		}
		out[i] = name[:len(name)-len(key)] + value
	}
	return out
}
