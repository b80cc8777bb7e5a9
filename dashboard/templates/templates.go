// Package templates has the pages of templates: their list, the editor with its preview, and their versions.
package templates

import (
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/templates"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Pages are the pages of templates.
type Pages struct {
	web     *web.Frame
	service *service.Service
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service) *Pages {
	return &Pages{web: frame, service: svc}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavSend, To: "/templates", Icon: "page", Text: "Templates"}},
		Users: map[string]web.Handler{
			"GET /templates":                 p.list,
			"GET /templates/{name}":          p.template,
			"POST /templates/{name}/preview": p.previewTemplate,
			"POST /templates/{name}/values":  p.showValues,
		},
		Calls: map[string]web.Call{
			"POST /templates/{name}": {
				Operation: "addTemplateVersion", Own: ownFields, Handler: p.saveTemplate, To: "/templates/{name}?did=saved",
				Done: "Saved as a draft. Batches use it when it is published.",
			},
			"POST /templates/{name}/publish": {
				Operation: "publishTemplate", To: "/templates/{name}?did=published", Done: "Published.",
			},
			"POST /templates/{name}/archive": {
				Operation: "archiveTemplate", To: "/templates/{name}?did=archived",
				Done: "Archived: batches cannot use it until a version is published.",
			},
		},
	}
}

// NeedsCategory says how the placeholder of the link to unsubscribe gets a value.
const NeedsCategory = "Set a category: then each recipient gets a link."

// WithExample returns variables with an example of the link to unsubscribe, if the mail has a category.
func WithExample(vars map[string]string, category, base string) map[string]string {
	if _, own := vars[models.UnsubscribeURL]; own || category == "" {
		return vars
	}
	out := map[string]string{models.UnsubscribeURL: base + "/unsubscribe/example"}
	maps.Copy(out, vars)
	return out
}

// templatesView is a page of the list of templates.
type templatesView struct {
	Templates []client.TemplateInfo
	Next      string // URL of the next page, or ""
}

// list is GET /templates.
func (p *Pages) list(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	if name := strings.TrimSpace(r.URL.Query().Get("new")); name != "" {
		return web.SeeOther(w, r, "/templates/"+url.PathEscape(name))
	}
	list, next, err := p.service.Templates.List(r.Context(), v.User, 0, r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	view := templatesView{Templates: list}
	if next != "" {
		view.Next = "/templates?cursor=" + url.QueryEscape(next)
	}
	return p.web.Render(w, r, v, http.StatusOK, "templates", web.Page{Title: "Templates", Data: view})
}

// templateView is the form of a template, and its versions.
type templateView struct {
	Name     string
	Form     *web.Form
	Shown    string // language of the tab that is open; "": the default
	Values   []sampleValue
	Version  int // which the form began with; 0: a new template
	Info     *client.TemplateInfo
	Versions []client.TemplateVersion
	Changes  []change // between Version and Against
	Against  int
	Uses     mail.TemplateUses
}

// template is GET /templates/{name}: the editor of a template, which may be a new one.
func (p *Pages) template(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	name := r.PathValue("name")
	view := &templateView{Name: name}
	view.Form = web.NewForm(url.Values{"to": {sampleAddress}})
	view.Values = []sampleValue{{"name", exampleOf("name")}}
	number, _ := strconv.Atoi(r.URL.Query().Get("version")) // 0: the default
	t, err := p.service.Templates.Get(r.Context(), v.User, name, number)
	switch e := web.Refused(err); {
	case e != nil && e.Kind == service.NotFound && number == 0:
		return p.showTemplate(w, r, v, http.StatusOK, view)
	case err != nil:
		return err
	}
	view.Version = t.Version
	maps.Copy(view.Form.Values, operation.FormOf(&t.TemplateSource))
	if code := r.URL.Query().Get("language"); view.has(code) {
		view.Shown = code
	}
	if view.Against, _ = strconv.Atoi(r.URL.Query().Get("against")); view.Against > 0 {
		old, err := p.service.Templates.Get(r.Context(), v.User, name, view.Against)
		if err != nil {
			return err
		}
		view.Changes = changes(textOfSource(&old.TemplateSource), textOfSource(&t.TemplateSource))
	}
	return p.showTemplate(w, r, v, http.StatusOK, view)
}

// textOfSource returns a version as text, to compare it with others.
func textOfSource(s *client.TemplateSource) string {
	var b strings.Builder
	parts := operation.FormOf(s)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		b.WriteString(name + ":\n" + parts.Get(name) + "\n")
	}
	return b.String()
}

// showTemplate shows the form with the versions of the template.
func (p *Pages) showTemplate(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, t *templateView,
) error {
	if list, _, err := p.service.Templates.Versions(r.Context(), v.User, t.Name, 0, ""); err == nil {
		t.Versions = list
		info, err := p.service.Templates.Get(r.Context(), v.User, t.Name, 0)
		if err != nil {
			return err
		}
		t.Info = &info.TemplateInfo
		if t.Uses, err = p.service.Mail.TemplateUses(r.Context(), v.Caller(), t.Name); err != nil {
			return err
		}
	}
	p.askValues(r, v, t)
	return p.web.Render(w, r, v, status, "template", web.Page{Title: t.Name, Data: t})
}

// ownFields are the fields of the form that are not of the template: those of the preview, and what is shown.
var ownFields = []string{"do", "shown", "new_language", "to", "vars", "language", "variable", "value"}

// readTemplate reads the form.
func readTemplate(w http.ResponseWriter, r *http.Request) (*templateView, error) {
	form, err := web.ReadForm(w, r, web.MaxContent, ownFields...)
	t := &templateView{Name: r.PathValue("name"), Form: form, Shown: form.Get("shown")}
	for i, value := range form.Values["value"][:min(len(form.Values["value"]), len(form.Values["variable"]))] {
		t.Values = append(t.Values, sampleValue{form.Values["variable"][i], web.Lines(value)})
	}
	return t, err
}

// source returns the template of the form, and the mistakes in fields that are not what they must be.
func (t *templateView) source() (client.TemplateSource, error) {
	var in client.NewTemplateVersion
	err := t.Form.Read(&in)
	return in.TemplateSource, err
}

// sampleAddress is the recipient of a preview for whom no other is entered.
const sampleAddress = "ann@example.com"

// sampleValue is the value of a variable in the preview.
type sampleValue struct{ Name, Value string }

// askValues asks for a value of each variable that the template shows. It keeps those that were entered, and has an
// example for each new one.
func (p *Pages) askValues(r *http.Request, v *web.Visitor, t *templateView) {
	source, _ := t.source() // a mistake is reported elsewhere
	to := models.Recipient{Email: sampleAddress, Vars: WithExample(nil, source.Category, p.web.PublicURL())}
	sample := templates.Sample{Language: t.sampleLanguage(), Source: source, To: to}
	_, missing, err := p.service.Templates.Preview(r.Context(), v.User, sample)
	if err != nil { // the preview says what is wrong
		return
	}
	entered := map[string]string{}
	for _, value := range t.Values {
		entered[value.Name] = value.Value
	}
	t.Values = nil
	ask := func(name string) {
		value, ok := entered[name]
		if !ok {
			value = exampleOf(name)
		}
		t.Values = append(t.Values, sampleValue{name, value})
	}
	ask("name")
	for _, name := range missing {
		if name != "name" && name != models.UnsubscribeURL {
			ask(name)
		}
	}
}

// examples are values for variables whose names contain these words, the first of them that fits.
var examples = []struct{ word, value string }{
	{"email", sampleAddress}, {"url", "https://example.com/"}, {"link", "https://example.com/"},
	{"date", "2026-12-24"}, {"last", "Smith"}, {"name", "Ann"}, {"first", "Ann"}, {"city", "Vienna"},
	{"price", "19.99"}, {"total", "19.99"}, {"amount", "19.99"}, {"code", "4711"}, {"number", "17"}, {"order", "17"},
	{"count", "3"},
}

// exampleOf returns a value for the preview: the name itself if nothing is known about it.
func exampleOf(name string) string {
	for _, e := range examples {
		if strings.Contains(strings.ToLower(name), e.word) {
			return e.value
		}
	}
	return name
}

// showValues is POST /templates/{name}/values: the fields for the values of the preview, as a part of the page.
func (p *Pages) showValues(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	p.askValues(r, v, t)
	return p.web.WritePart(w, "template", "values", t)
}

// recipient returns the recipient of the preview, with the names of the variables that are JSON.
func (t *templateView) recipient() (r models.Recipient, isJSON []string, err error) {
	vars, isJSON, err := JSONVars(t.Form.Get("vars"))
	var f problem.Form
	if err != nil {
		f.Wrong("/vars", "wrong_type", "vars must be an object.")
	}
	for _, value := range t.Values {
		if _, ok := vars[value.Name]; !ok && value.Value != "" {
			vars[value.Name] = value.Value
		}
	}
	return models.Recipient{Email: t.Form.Text("to"), Name: vars["name"], Vars: vars}, isJSON, f.Err()
}

// JSONVars returns the variables of a JSON object, and the names of those whose value is JSON and not a string.
func JSONVars(text string) (vars map[string]string, isJSON []string, err error) {
	var raw map[string]json.RawMessage
	if text = strings.TrimSpace(text); text != "" {
		err = json.Unmarshal([]byte(text), &raw)
	}
	vars = map[string]string{}
	for name, value := range raw {
		var s string
		if json.Unmarshal(value, &s) != nil {
			isJSON, s = append(isJSON, name), string(value)
		}
		vars[name] = s
	}
	return vars, isJSON, err
}

// saveTemplate is POST /templates/{name}: it stores a version, and publishes it or sends it to one address if that
// button was pressed.
func (p *Pages) saveTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	do := t.Form.Get("do")
	if done, err := t.changeLanguages(do); done || err != nil {
		return p.orRefused(w, r, v, t, err)
	}
	person, isJSON, err := t.recipient()
	if err != nil {
		return p.orRefused(w, r, v, t, err)
	}
	stored, err := p.web.Do(r, v.Caller(), t.Form)
	if e := web.Refused(err); e != nil && e.Kind == service.NotFound {
		t.Form.Set("name", t.Name)
		stored, err = p.web.Run(r, v.Caller(), t.Form, p.web.Operations["createTemplate"])
	}
	if err != nil {
		return p.orRefused(w, r, v, t, err)
	}
	saved := stored.Out.(client.Template) //nolint:forcetypeassert // the answer of both
	did := "saved"
	switch {
	case do == "test":
		return p.testTemplate(w, r, v, t, fmt.Sprintf("%s@%d", t.Name, saved.Version), &service.Recipient{
			Email: person.Email, Name: person.Name, Vars: person.Vars, JSON: isJSON,
		})
	case t.Form.Get("publish") != "":
		did = "published"
	}
	to := url.Values{"version": {strconv.Itoa(saved.Version)}, "did": {did}}
	if t.has(t.Shown) {
		to.Set("language", t.Shown)
	}
	return web.SeeOther(w, r, "/templates/"+url.PathEscape(t.Name)+"?"+to.Encode())
}

// orRefused shows the form, with the mistakes that an error lists if there is one, and opens the tab of the first
// language that has one.
func (p *Pages) orRefused(w http.ResponseWriter, r *http.Request, v *web.Visitor, t *templateView, err error) error {
	show := func(status int) error {
		for _, code := range t.Languages() {
			if t.Form.Mistaken("languages/" + code) {
				t.Shown = code
				break
			}
		}
		return p.showTemplate(w, r, v, status, t)
	}
	if err == nil {
		return show(http.StatusOK)
	}
	return t.Form.Refused(err, show)
}

// testTemplate sends a version to one address, as a batch does.
func (p *Pages) testTemplate(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, t *templateView, ref string, to *service.Recipient,
) error {
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	in.Batch = intake.Batch{Template: ref, Language: t.sampleLanguage()}
	if err := in.Read(intake.Of(*to)); err != nil {
		return err
	}
	a, _, err := p.service.Accept(r.Context(), v.Caller(), in, service.Repeat{})
	if err != nil {
		return p.orRefused(w, r, v, t, err)
	}
	return web.SeeOther(w, r, "/batches/"+a.ID.String())
}

// templatePreview is the page in the frame beside the form.
var templatePreview = template.Must(
	template.New("template preview").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Preview</title>
<style>.sd{font:14px/1.5 system-ui,sans-serif;color:#1b1c1a;background:#f3f3ef;border-bottom:1px solid #ddd;
padding:10px 14px;margin:-8px -8px 12px;overflow-wrap:anywhere}.sd .w{color:#b42318}.sd .m{color:#565853}.sd .h{color:#8a5300}
.sd.x{margin:16px -8px 12px;border-top:1px solid #ddd;font-weight:600}
.t{font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere}html{background:#fff;color:#1b1c1a}
</style><div class="sd">{{range .Headers}}<div>{{.Name}}: {{.Value}}</div>{{end}}
{{if .Count}}<div class="m">{{.Row}} of {{.Count}}</div>{{end}}{{with .Times}}<div class="m">{{.}}</div>{{end}}
{{range .Wrong}}<div class="w">{{.}}</div>{{end}}
{{if .Hints}}<details class="h"><summary>{{len .Hints}} {{if eq (len .Hints) 1}}hint{{else}}hints{{end}}</summary>
{{range .Hints}}<div>{{.}}</div>{{end}}</details>{{end}}</div>
{{.HTML}}{{with .Text}}{{if $.HTML}}<div class="sd x">Text</div>{{end}}<div class="t">{{.}}</div>{{end}}</html>`),
)

// Filled is the preview of a message from a template.
type Filled struct {
	Headers    []client.PreviewHeader
	Wrong      []string
	Hints      []string // what may be wrong; the message is sent all the same
	Row, Count int      // of the recipients of Compose; Count 0: it is shown to one
	Times      string
	HTML       template.HTML
	Text       string
}

func (f *Filled) Write(w http.ResponseWriter) error {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", web.PreviewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	return templatePreview.Execute(w, f)
}

// FillSample fills a template for a recipient. wrong has its mistakes, and hints what else may be wrong.
func (p *Pages) FillSample(
	r *http.Request, v *web.Visitor, s templates.Sample,
) (filled client.Preview, wrong, hints []string, err error) {
	filled, missing, err := p.service.Templates.Preview(r.Context(), v.User, s)
	switch e := web.Refused(err); {
	case e != nil && e.Kind == service.Invalid:
		for _, f := range e.Fields {
			wrong = append(wrong, strings.TrimPrefix(f.Pointer, "/")+": "+f.Detail)
		}
	case err != nil:
		return filled, nil, nil, err
	}
	for _, name := range missing {
		if name == models.UnsubscribeURL {
			hints = append(hints, NeedsCategory)
		} else {
			hints = append(hints, "No sample value for "+name+". Recipients need one.")
		}
	}
	for _, warning := range filled.Warnings[min(len(missing), len(filled.Warnings)):] {
		hints = append(hints, warning.Detail)
	}
	return filled, wrong, hints, nil
}

// previewTemplate is POST /templates/{name}/preview: the message of the form as one recipient gets it, for the
// sandboxed frame beside the form.
func (p *Pages) previewTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	to, isJSON, wrongVars := t.recipient()
	src, wrongSource := t.source()
	var wrong []string
	for _, err := range []error{wrongVars, wrongSource} {
		if e := web.Refused(err); e != nil {
			for _, f := range e.Fields {
				wrong = append(wrong, f.Detail)
			}
		}
	}
	to.Vars = WithExample(to.Vars, src.Category, p.web.PublicURL())
	sample := templates.Sample{Language: t.sampleLanguage(), Source: src, To: to, JSON: isJSON}
	filled, more, hints, err := p.FillSample(r, v, sample)
	if err != nil {
		return err
	}
	view := Filled{Headers: filled.Headers, Wrong: append(wrong, more...), Hints: hints, Text: filled.Text}
	if src.Subject == "" && src.HTML == "" && src.Text == "" { // as the form of a new template begins
		view = Filled{Hints: []string{"Write a subject and a body. They are shown here as a recipient gets them."}}
	}
	view.HTML = template.HTML(filled.HTML) //nolint:gosec // web.PreviewPolicy keeps it from running
	return view.Write(w)
}

// change is a line of a comparison: "+" is new, "-" is gone, "" is the same.
type change struct{ Sign, Text string }

// maxCompared is the number of lines of the largest text that is compared line by line.
const maxCompared = 2000

// changes compares two texts line by line: what is not in their longest common subsequence was added or removed.
func changes(before, after string) []change {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	if len(a) > maxCompared || len(b) > maxCompared {
		return []change{{"", fmt.Sprintf("The versions have more than %d lines and are not compared.", maxCompared)}}
	}
	longest := make([][]int16, len(a)+1) // of the rest of both from a line on
	for i := range longest {
		longest[i] = make([]int16, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for k := len(b) - 1; k >= 0; k-- {
			if a[i] == b[k] {
				longest[i][k] = longest[i+1][k+1] + 1
			} else {
				longest[i][k] = max(longest[i+1][k], longest[i][k+1])
			}
		}
	}
	var out []change
	i, k := 0, 0
	for i < len(a) || k < len(b) {
		switch {
		case i < len(a) && k < len(b) && a[i] == b[k]:
			out, i, k = append(out, change{"", a[i]}), i+1, k+1
		case k == len(b) || i < len(a) && longest[i+1][k] >= longest[i][k+1]:
			out, i = append(out, change{"-", a[i]}), i+1
		default:
			out, k = append(out, change{"+", b[k]}), k+1
		}
	}
	return out
}
