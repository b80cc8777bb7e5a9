package templates

import (
	"cmp"
	"context"
	"fmt"
	"net/mail"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Sample is the message and the recipient of a preview.
type Sample struct {
	Template string // a reference; empty: the source
	Language string
	Source   client.TemplateSource
	To       models.Recipient
	JSON     []string // variables of the recipient whose value is JSON
}

// gmailClip is the size in bytes from which Gmail shows only the beginning of a message.
const gmailClip = 102 << 10

// preview is a preview that is made.
type preview struct{ client.Preview }

// Preview fills a message for a recipient as a batch does. It returns the names of the variables that have no value,
// too. The first warnings are about them, in the same order.
func (l *Library) Preview(
	ctx context.Context, user string, s Sample,
) (out client.Preview, missing []string, err error) {
	end, err := l.previews.take(ctx, user)
	if err != nil {
		return out, nil, err
	}
	defer end()
	f, err := l.sampleFiller(ctx, user, &s)
	if err != nil {
		return out, nil, err
	}
	p := preview{client.Preview{Headers: []client.PreviewHeader{}, Warnings: []client.PreviewWarning{}}}
	if f.Use.Name != "" {
		use := client.TemplateUse(f.Use)
		p.Template = &use
	}
	missing = f.missing(&s.To)
	for _, name := range missing {
		p.warn(
			"missing_variable",
			"%s has no value. A batch without it is refused if the template has {{%s}}, and shows nothing "+
				"where it is a part of Liquid.",
			name,
			name,
		)
	}
	to := s.To
	var keep []string
	for _, h := range to.Headers {
		keep = append(keep, models.Placeholders(h.Value)...)
	}
	wrong, err := f.Fill(ctx, &to, s.JSON, keep)
	if err != nil {
		return out, nil, err
	}
	if len(wrong) > 0 {
		var form problem.Form
		for _, w := range wrong {
			form.Wrong("/to"+w.Pointer, w.Code, "%s", w.Detail)
		}
		return out, nil, form.Err()
	}
	var c models.Content
	f.Content(&c)
	p.Subject, p.Text, p.HTML = to.Fill(c.Subject, nil), to.Fill(c.Text, nil), to.Fill(c.HTML, models.EscapeHTML)
	if f.Sender != "" {
		p.Headers = append(p.Headers, client.PreviewHeader{Name: "From", Value: f.Sender})
	}
	mailbox := mail.Address{Name: to.Name, Address: to.Email}
	p.Headers = append(
		p.Headers,
		client.PreviewHeader{Name: "To", Value: mailbox.String()},
		client.PreviewHeader{Name: "Subject", Value: p.Subject},
	)
	for _, h := range to.Headers {
		p.Headers = append(p.Headers, client.PreviewHeader{Name: h.Name, Value: to.Fill(h.Value, nil)})
	}
	p.check(c.HTML)
	return p.Preview, missing, nil
}

// sampleFiller returns the filler of a sample.
func (l *Library) sampleFiller(ctx context.Context, user string, s *Sample) (*Filler, error) {
	if s.Template != "" {
		if s.Source.TemplateContent != (client.TemplateContent{}) {
			var f problem.Form
			f.Wrong("/template", "conflict", "Send a template, or subject, html and text.")
			return nil, f.Err()
		}
		return l.Use(ctx, user, s.Template, s.Language)
	}
	var f problem.Form
	check(&client.NewTemplateVersion{TemplateSource: s.Source}, &s.Source, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	return newFiller(&s.Source, s.Language)
}

func (p *preview) warn(code, detail string, args ...any) {
	p.Warnings = append(p.Warnings, client.PreviewWarning{Code: code, Detail: fmt.Sprintf(detail, args...)})
}

// missing returns the variables that the template shows and the recipient lacks.
func (f *Filler) missing(r *models.Recipient) (names []string) {
	for _, part := range f.parts.list() {
		for _, name := range slices.Concat(part.Names, part.Outputs) {
			_, own := r.Value(name)
			_, def := f.defaults[name]
			if !own && !def && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

var (
	link     = regexp.MustCompile(`(?is)<(?:a|img)\s[^>]*?\b(?:href|src)\s*=\s*(?:"([^"]*)"|'([^']*)')`)
	reply    = regexp.MustCompile(`(?i)^(re|fwd?|aw|wg):`)
	exclaims = regexp.MustCompile(`!{2,}|\?{2,}|\${2,}`)
)

// maxLinks is how many links of a message are checked.
const maxLinks = 1000

// check adds warnings about the finished message. source is its HTML with placeholders.
func (p *preview) check(source string) {
	if n := len(p.HTML); n > gmailClip {
		p.warn("clipped", "The HTML has %d bytes. Gmail shows only the beginning of a message above %d.", n, gmailClip)
	}
	if p.HTML != "" && p.Text == "" {
		p.warn("no_text", "There is no text. Spam filters expect one beside HTML, and some readers show only that.")
	}
	bad := map[string]bool{}
	for _, m := range link.FindAllStringSubmatch(p.HTML, maxLinks) {
		if target := cmp.Or(m[1], m[2]); brokenLink(target) && !bad[target] {
			bad[target] = true
			p.warn(
				"broken_link",
				"The link %s leads nowhere: it needs a whole address like https://example.com.",
				problem.Quote(target),
			)
		}
	}
	for _, m := range link.FindAllStringSubmatch(source, maxLinks) {
		target := cmp.Or(m[1], m[2])
		if strings.HasPrefix(target, "{{") && !bad[target] && target != "{{"+models.UnsubscribeURL+"}}" {
			bad[target] = true
			p.warn(
				"link_from_variable",
				"A link consists of a variable from its beginning. The one who sets the variable decides where it leads.",
			)
		}
	}
	switch s := strings.TrimSpace(p.Subject); {
	case s == "":
		p.warn("empty_subject", "The subject is empty.")
	case reply.MatchString(s):
		p.warn("subject_like_reply", "The subject looks like that of a reply. Spam filters distrust that.")
	case exclaims.MatchString(s):
		p.warn("subject_like_spam", "The subject has several !, ? or $ in a row. Spam filters distrust that.")
	case shouts(s):
		p.warn("subject_like_spam", "The subject has only capital letters. Spam filters distrust that.")
	}
}

// brokenLink reports whether a link of a mail leads nowhere.
func brokenLink(target string) bool {
	target = strings.TrimSpace(target)
	if strings.HasPrefix(target, "#") && len(target) > 1 {
		return false
	}
	u, err := url.Parse(target)
	if err != nil || strings.Contains(target, "{{") {
		return true
	}
	switch u.Scheme {
	case "http", "https":
		return u.Host == ""
	case "":
		return true
	}
	return u.Opaque == "" // mailto:, tel:, cid:
}

// shouts reports whether a subject of some length has no small letter.
func shouts(s string) bool {
	letters := 0
	for _, r := range s {
		if unicode.IsLower(r) {
			return false
		}
		if unicode.IsUpper(r) {
			letters++
		}
	}
	return letters >= 8
}
