package compose

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	pages "github.com/safedelivr/safedelivr/dashboard/templates"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/templates"
)

// previewPage is the page in the frame beside the form.
var previewPage = template.Must(
	template.New("preview").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Preview</title>
<style>
.sd{font:14px/1.5 system-ui,sans-serif;color:#1b1c1a;background:#f3f3ef;border-bottom:1px solid #ddd;
padding:10px 14px;margin:-8px -8px 12px;overflow-wrap:anywhere}
.sd b{font-weight:600}.sd .m{color:#565853}.sd .w{color:#b42318}.sd .h{color:#8a5300}
.t{font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere}
html{background:#fff;color:#1b1c1a}
</style>
<div class="sd"><div><b>{{.Subject}}</b></div>
<div class="m">{{if .To}}to {{.To}}{{else}}No recipients yet{{end}}{{if .Count}} · {{.Row}} of {{.Count}}{{end}}</div>
{{with .Times}}<div class="m">{{.}}</div>{{end}}
{{with .Hint}}<div class="h">{{.}}</div>{{end}}
{{range .Missing}}<div class="w">{{"{{"}}{{.}}{{"}}"}} has no value for this recipient</div>{{end}}
{{if .Missing}}{{with .Columns}}<div class="m">columns:
{{range $i, $c := .}}{{if $i}}, {{end}}{{"{{"}}{{$c}}{{"}}"}}{{end}}</div>{{end}}{{end}}
{{if .More}}<div class="w">More placeholders have no value</div>{{end}}
{{range .Malformed}}<div class="w">{{.}}</div>{{end}}
{{with .Problem}}<div class="w">{{.}}</div>{{end}}</div>
{{if .Text}}<div class="t">{{.Text}}</div>{{else}}{{.HTML}}{{end}}</html>`),
)

// maxMissing is the number of placeholders without a value that a preview lists.
const maxMissing = 20

// preview is POST /compose/preview: the message as one recipient gets it, for the sandboxed frame beside the form.
func (p *Pages) preview(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	list := parseList(c.To, c.Mapping)
	to := models.Recipient{}
	if row := list.at(c.Row); row != nil {
		to = row.recipient()
	}
	shared, isJSON, err := pages.JSONVars(c.Vars)
	if err != nil && list.Problem == "" {
		list.Problem = "vars must be an object."
	}
	to.Vars, isJSON = withShared(to.Vars, shared, isJSON)
	category := c.Category
	if t, err := p.service.Templates.Use(r.Context(), v.User, c.Template, c.Language); c.Template != "" && err == nil {
		category = cmp.Or(category, t.Category)
	}
	to.Vars = pages.WithExample(to.Vars, category, p.web.PublicURL())
	if c.Template != "" {
		return p.previewFilled(w, r, v, c, list, templates.Sample{
			Template: c.Template, Language: c.Language, To: to, JSON: isJSON,
		})
	}
	times, err := p.timesOf(r, v, c, list.at(c.Row))
	if err != nil {
		return err
	}
	view := map[string]any{
		"Row":     min(c.Row, max(1, len(list.Rows))),
		"Count":   len(list.Rows),
		"Columns": list.Columns,
		"Problem": list.Problem,
		"To":      to.Email,
		"Times":   times,
	}
	c.fillPreview(&to, view)
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", web.PreviewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	return previewPage.Execute(w, view)
}

// fillPreview sets the content of a preview for a recipient, and what is wrong with its placeholders.
func (c *composeView) fillPreview(to *models.Recipient, view map[string]any) {
	var missing []string
	more := false
	fill := func(s string, escape func(name, value string) string) string {
		return models.Rewrite(s, func(name string) string {
			value, ok := to.Value(name)
			if !ok {
				if name == models.UnsubscribeURL {
					view["Hint"] = pages.NeedsCategory
					return "{{" + name + "}}"
				}
				switch listed := slices.Contains(missing, name); {
				case !listed && len(missing) < maxMissing:
					missing = append(missing, name)
				case !listed:
					more = true
				}
				return "{{" + name + "}}"
			}
			return escape(name, value)
		})
	}
	plain := func(_, value string) string { return value }
	view["Subject"] = fill(c.Subject, plain)
	text, html := fill(c.Text, plain), fill(c.HTML, models.EscapeHTML)
	if c.Part == "text" || html == "" {
		view["Text"] = text
	}
	view["HTML"] = template.HTML(html) //nolint:gosec // web.PreviewPolicy keeps it from running
	view["Missing"] = missing
	view["More"] = more
	var malformed []string
	for _, part := range []string{c.Subject, c.Text, c.HTML} {
		if text := intake.MalformedPlaceholder(part); text != "" {
			malformed = append(malformed, text)
		}
	}
	view["Malformed"] = malformed
}

// scheduleOf returns when a message with times is sent, and the mistakes in them.
func (p *Pages) scheduleOf(
	r *http.Request, v *web.Visitor, c *composeView, given *intake.Times,
) (models.Schedule, []service.FieldError, error) {
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	in.Batch.Times = c.Times
	return in.ScheduleOf(given, time.Now())
}

// timesOf says when the message to a recipient is sent; "" if that is at once.
func (p *Pages) timesOf(r *http.Request, v *web.Visitor, c *composeView, row *listed) (string, error) {
	given, line := c.Times, ""
	if row != nil && row.Times != (intake.Times{}) {
		given, line = row.Times, fmt.Sprintf("Line %d: ", row.Line)
	} else if c.DeliverAt == "" {
		return "", nil
	}
	s, wrong, err := p.scheduleOf(r, v, c, &given)
	switch {
	case err != nil:
		return "", err
	case len(wrong) > 0:
		return line + wrong[0].Detail, nil
	}
	text := "sent at once"
	if !s.DeliverAt.IsZero() {
		text = "sent at " + s.DeliverAt.UTC().Format("2 Jan 2006, 15:04:05 UTC")
	}
	text += " (" + strings.TrimSpace(given.DeliverAt+" "+given.TimeZone) + ")"
	if s.Window != nil {
		text += ", only " + s.Window.String()
	}
	return text, nil
}

// previewFilled writes the preview of a message from a template.
func (p *Pages) previewFilled(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, c *composeView, list *addressList, sample templates.Sample,
) error {
	filled, wrong, hints, err := p.templates.FillSample(r, v, sample)
	if err != nil {
		return err
	}
	if list.Problem != "" {
		wrong = append(wrong, list.Problem)
	}
	view := pages.Filled{Headers: filled.Headers, Wrong: wrong, Hints: hints, Count: len(list.Rows)}
	if view.Times, err = p.timesOf(r, v, c, list.at(c.Row)); err != nil {
		return err
	}
	if view.Row = min(c.Row, max(1, len(list.Rows))); c.Part == "text" || filled.HTML == "" {
		view.Text = filled.Text
	} else {
		view.HTML = template.HTML(filled.HTML) //nolint:gosec // web.PreviewPolicy keeps it from running
	}
	return view.Write(w)
}

// planView is what would happen to a batch, for the question before it is sent.
type planView struct {
	Recipients int64
	Text       []planLine
	OwnTimes   *client.OwnTimes // nil: all messages are sent at the same time
	LeftOut    int64            // rows with mistakes
	Mistakes   []string         // the first of them
	Card       []summaryRow
}

// planLine is a statement, and how long it holds; zero: unknown.
type planLine struct {
	Text  string
	Until time.Time
}

// routeShare matches a share in the text of a route.
var routeShare = regexp.MustCompile(`\b(\d+) %`)

func planOf(p *service.DryRun) *planView {
	out := &planView{Recipients: int64(p.Recipients), OwnTimes: p.OwnTimes}
	if p.Rejected != nil {
		out.LeftOut, out.Mistakes = int64(p.Rejected.Count), mistakesOf(p.Rejected.First)
	}
	say := func(text string, until time.Time) { out.Text = append(out.Text, planLine{text, until}) }
	if n := int64(p.Duplicates); n > 0 {
		say(web.Num(n)+" "+web.Plural(n, "line repeats", "lines repeat")+" an address. Each address gets one message",
			time.Time{})
	}
	for i := range p.Routes {
		r := &p.Routes[i]
		until := time.Time{}
		if r.Waits != nil && r.LastUntil.IsZero() {
			until = r.Waits.Until
		}
		say(web.Are(int64(r.Recipients))+" "+routeShare.ReplaceAllString(r.Text, "$1\u202f%"), until)
	}
	if p.Seconds != nil {
		least := time.Duration(*p.Seconds * float64(time.Second))
		say("At the limits of the providers this takes at least "+web.Took(least), time.Time{})
	}
	if c := p.Cost; c != nil {
		say(costWords(c), time.Time{})
	}
	return out
}

// costWords says what a batch costs.
func costWords(c *client.Cost) string {
	text := "At the configured prices it costs " + amount(c.Currency, c.Least)
	if c.Most > c.Least {
		text += " to " + amount(c.Currency, c.Most) + ", depending on the providers"
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(c.Providers)) {
			parts = append(parts, name+" "+amount(c.Currency, c.Providers[name]))
		}
		if len(parts) > 0 {
			text += "; as it would be sent now: " + strings.Join(parts, ", ")
		}
	}
	return text
}

// amount formats an amount of money, with more digits if it is small. A script shows it in the format of the reader's
// language.
func amount(currency string, n float64) string {
	digits := 2
	if n > 0 && n < 0.1 {
		digits = 4
	}
	whole, rest, _ := strings.Cut(strconv.FormatFloat(n, 'f', digits, 64), ".")
	return currency + "\u00a0" + web.Num(whole) + "." + rest
}
