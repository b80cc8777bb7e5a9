package mailparse

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// token matches an encoded word, a quoted text, a comment, an address in < and >, a separator, or other text.
var token = regexp.MustCompile(`=\?[^?\s]{1,60}\?[bBqQ]\?[^?]{0,200}\?=|"(?:[^"\\]|\\.)*(?:"|\\?$)|` +
	`\((?:[^()\\]|\\.)*(?:\)|\\?$)|<[^<>]*(?:>|$)|[,;:]|[^"(<,;:=]+|.`)

var escape = regexp.MustCompile(`\\(.)`)

// addresses returns the addresses in a list. Semicolons separate them, too, and members of groups count. It leaves out
// what is no address.
func (p *reader) addresses(list string) (found []models.Address) {
	var text []byte
	var comment, email string // email: in < and >
	for _, t := range append(token.FindAllString(clean(list), -1), ",") {
		inner := escape.ReplaceAllString(strings.TrimSuffix(t[1:], map[byte]string{'"': `"`, '(': ")", '<': ">"}[t[0]]), "$1")
		switch {
		case t[0] == '"':
			text = append(text, inner...)
		case t[0] == '(':
			comment = inner
		case t[0] == '<':
			email = inner
		case t == ":" && !bytes.Contains(text, []byte("@")):
			text = text[:0] // the name of a group
		case t != "," && t != ";":
			text = append(text, t...)
		default:
			name := string(text)
			if email == "" {
				email, name = name, comment
			}
			if email = strings.TrimSpace(email); isAddress(email) {
				found = append(found, models.Address{Email: email, Name: words(name)})
			} else if email != "" {
				p.flaw(BadAddress)
			}
			text, comment, email = text[:0], "", ""
		}
	}
	return found
}

// isAddress reports whether s has the form of an address: one @ between characters that need no quotes. The caller
// checks the address in detail.
func isAddress(s string) bool {
	before, after, _ := strings.Cut(s, "@")
	bad := func(r rune) bool { return r <= ' ' || strings.ContainsRune("\"(),:;<>[\\]", r) }
	return before != "" && after != "" && !strings.Contains(after, "@") && !strings.ContainsFunc(s, bad) && clean(s) == s
}

// Envelope says which mails a submission makes.
type Envelope struct {
	// One mail goes to all, with these addresses. Otherwise each address in To gets a mail of its own, without the others.
	Together    bool
	To, Cc, Bcc []models.Address
}

// Envelope compares the recipients of a submission with the header. One mail goes to all if the header names each
// recipient. If each address of the header is a recipient, one mail goes to all, too, and the others get a blind copy.
//
// Otherwise the header is that of another submission or of a list, and each recipient gets a mail. So it is without a
// recipient in To, and with more than most recipients. Addresses are compared without case.
func (m *Mail) Envelope(recipients []string, most int) (e Envelope) {
	var all []models.Address
	foreign := false
	same := func(email string) func(models.Address) bool {
		return func(a models.Address) bool { return strings.EqualFold(a.Email, email) }
	}
	split := func(list []models.Address) (out []models.Address) {
		for _, a := range list {
			i := slices.IndexFunc(recipients, func(r string) bool { return strings.EqualFold(r, a.Email) })
			switch {
			case i < 0:
				foreign = true
			case !slices.ContainsFunc(all, same(a.Email)):
				a.Email = recipients[i]
				all, out = append(all, a), append(out, a)
			}
		}
		return out
	}
	e.To, e.Cc = split(m.To), split(m.Cc)
	for _, r := range recipients {
		if !slices.ContainsFunc(all, same(r)) {
			a := models.Address{Email: r}
			all, e.Bcc = append(all, a), append(e.Bcc, a)
		}
	}
	if e.Together = len(e.To) > 0 && (len(e.Bcc) == 0 || !foreign) && len(all) <= most; !e.Together {
		return Envelope{To: all}
	}
	return e
}
