// Package templates has the pages of templates: their list, the editor with its preview, and their versions.
package templates

import (
	"bytes"
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
	"github.com/safedelivr/safedelivr/service/templates"
)

// Templates are the pages of this room.
var Templates = web.NewTemplates(files, nil)

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
	return web.Routes{Users: map[string]web.Handler{
		"GET /templates":                 p.list,
		"GET /templates/{name}":          p.template,
		"POST /templates/{name}":         p.saveTemplate,
		"POST /templates/{name}/preview": p.previewTemplate,
		"POST /templates/{name}/values":  p.showValues,
		"POST /templates/{name}/publish": p.publishTemplate,
		"POST /templates/{name}/archive": p.archiveTemplate,
	}}
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
	return p.web.Render(w, r, v, http.StatusOK, "templates", web.Page{Title: "Templates", Active: "templates", Data: view})
}

// templateView is the form of a template as it was entered, its errors, and its versions.
type templateView struct {
	Name, Subject, HTML, Text, Sender, Category string
	Defaults, Schema                            string // JSON
	Languages                                   []languageTab
	Shown                                       string // language of the tab that is open; "": the default
	NewLanguage                                 string
	AllowRaw                                    bool
	To, Vars, Language                          string // of the preview; Vars: what Values has not, as JSON
	Values                                      []sampleValue
	Version                                     int // which the form began with; 0: a new template
	Info                                        *client.TemplateInfo
	Versions                                    []client.TemplateVersion
	Changes                                     []change // between Version and Against
	Against                                     int
	Wrong                                       map[string]string
	Problem, Done                               string
	Uses                                        mail.TemplateUses
}

// template is GET /templates/{name}: the editor of a template, which may be a new one.
func (p *Pages) template(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	name := r.PathValue("name")
	view := &templateView{Name: name, To: "ann@example.com", Done: r.URL.Query().Get("done")}
	view.Values = []sampleValue{{"name", "Ann"}}
	number, _ := strconv.Atoi(r.URL.Query().Get("version")) // 0: the default
	t, err := p.service.Templates.Get(r.Context(), v.User, name, number)
	switch e := web.Refused(err); {
	case e != nil && e.Kind == service.NotFound && number == 0:
		return p.showTemplate(w, r, v, http.StatusOK, view)
	case err != nil:
		return err
	}
	view.fill(&t)
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

// fill fills the form with a version.
func (t *templateView) fill(v *client.Template) {
	s := &v.TemplateSource
	t.Version, t.Subject, t.HTML, t.Text = v.Version, s.Subject, s.HTML, s.Text
	t.Sender, t.Category, t.AllowRaw = s.Sender, s.Category, s.AllowRaw
	t.Defaults, t.Schema = indented(s.Defaults, len(s.Defaults)), indented(s.Schema, len(s.Schema))
	t.Languages = languageTabs(s.Languages)
}

// indented returns a value as JSON for people; "" if n is 0.
func indented(v any, n int) string {
	if n == 0 {
		return ""
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // it was decoded from JSON
	return strings.TrimSpace(b.String())
}

// textOfSource returns a version as text, to compare it with others.
func textOfSource(s *client.TemplateSource) string {
	var b strings.Builder
	for _, part := range []struct{ name, text string }{
		{"subject", s.Subject}, {"html", s.HTML}, {"text", s.Text}, {"sender", s.Sender}, {"category", s.Category},
		{"defaults", indented(s.Defaults, len(s.Defaults))}, {"schema", indented(s.Schema, len(s.Schema))},
		{"languages", indented(s.Languages, len(s.Languages))}, {"allow_raw", strconv.FormatBool(s.AllowRaw)},
	} {
		if part.text != "" && part.text != "false" {
			b.WriteString(part.name + ":\n" + part.text + "\n")
		}
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
	return p.web.Render(w, r, v, status, "template", web.Page{Title: t.Name, Active: "templates", Data: t})
}

// readTemplate reads the form, and reports mistakes in the fields that are JSON.
func readTemplate(w http.ResponseWriter, r *http.Request) (*templateView, client.TemplateSource, error) {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxContent)
	if err := r.ParseForm(); err != nil {
		return nil, client.TemplateSource{}, web.BadForm(err)
	}
	f := func(name string) string { return web.Lines(r.PostFormValue(name)) }
	t := &templateView{
		Name: r.PathValue("name"), Subject: f("subject"), HTML: f("html"), Text: f("text"), Sender: f("sender"),
		Category: f("category"), Defaults: f("defaults"), Schema: f("schema"),
		AllowRaw: r.PostFormValue("allow_raw") != "",
		To:       f("to"), Vars: f("vars"), Language: f("language"),
		Wrong: map[string]string{},
	}
	for i, value := range r.PostForm["value"][:min(len(r.PostForm["value"]), len(r.PostForm["variable"]))] {
		t.Values = append(t.Values, sampleValue{r.PostForm["variable"][i], web.Lines(value)})
	}
	t.readLanguages(r.PostForm)
	src := t.source()
	for name, field := range map[string]any{"defaults": &src.Defaults, "schema": &src.Schema} {
		if text := strings.TrimSpace(f(name)); text != "" && json.Unmarshal([]byte(text), field) != nil {
			t.Wrong[name] = "Enter a JSON object, or leave it empty."
		}
	}
	return t, src, nil
}

// source returns what the fields that are not JSON say.
func (t *templateView) source() client.TemplateSource {
	return client.TemplateSource{
		TemplateContent: client.TemplateContent{Subject: t.Subject, HTML: t.HTML, Text: t.Text},
		Sender:          t.Sender, Category: t.Category, AllowRaw: t.AllowRaw,
		Languages: languagesOf(t.Languages),
	}
}

// sampleValue is the value of a variable in the preview.
type sampleValue struct{ Name, Value string }

// askValues asks for a value of each variable that the template shows, and keeps those that were entered.
func (p *Pages) askValues(r *http.Request, v *web.Visitor, t *templateView) {
	source := t.source()
	_ = json.Unmarshal([]byte(t.Defaults), &source.Defaults) // a mistake is reported elsewhere
	to := models.Recipient{Email: "ann@example.com", Vars: WithExample(nil, t.Category, p.web.PublicURL())}
	sample := templates.Sample{Language: t.sampleLanguage(), Source: source, To: to}
	_, missing, err := p.service.Templates.Preview(r.Context(), v.User, sample)
	if err != nil { // the preview says what is wrong
		return
	}
	entered := map[string]string{}
	for _, value := range t.Values {
		entered[value.Name] = value.Value
	}
	t.Values = []sampleValue{{"name", entered["name"]}}
	for _, name := range missing {
		if name != "name" && name != models.UnsubscribeURL {
			t.Values = append(t.Values, sampleValue{name, entered[name]})
		}
	}
}

// showValues is POST /templates/{name}/values: the fields for the values of the preview, as a part of the page.
func (p *Pages) showValues(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, _, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	p.askValues(r, v, t)
	return p.web.WritePart(w, "template", "values", t)
}

// recipient returns the recipient of the preview, with the names of the variables that are
// JSON.
func (t *templateView) recipient() (r models.Recipient, isJSON []string) {
	vars, isJSON, err := JSONVars(t.Vars)
	if err != nil {
		t.Wrong["vars"] = "Enter a JSON object, or leave it empty."
	}
	for _, value := range t.Values {
		if _, ok := vars[value.Name]; !ok && value.Value != "" {
			vars[value.Name] = value.Value
		}
	}
	r = models.Recipient{Email: strings.TrimSpace(t.To), Vars: vars}
	r.Name = r.Vars["name"]
	return r, isJSON
}

// JSONVars returns the variables of a JSON object, and the names of those whose value is JSON and
// not a string.
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

// saveTemplate is POST /templates/{name}: it stores a version, and publishes it or sends it
// to one address if that button was pressed.
func (p *Pages) saveTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, src, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	do := r.PostFormValue("do")
	person, isJSON := t.recipient()
	if done := t.changeLanguages(do); done || len(t.Wrong) > 0 {
		status := http.StatusOK
		if len(t.Wrong) > 0 {
			status = http.StatusUnprocessableEntity
		}
		return p.showTemplate(w, r, v, status, t)
	}
	in := client.NewTemplateVersion{TemplateSource: src, Publish: do == "publish"}
	saved, err := p.service.Templates.AddVersion(r.Context(), v.User, t.Name, &in)
	if e := web.Refused(err); e != nil && e.Kind == service.NotFound {
		saved, err = p.service.Templates.Create(r.Context(), v.User, &client.NewTemplate{Name: t.Name, NewTemplateVersion: in})
	}
	if err == nil && do == "test" {
		return p.testTemplate(w, r, v, t, fmt.Sprintf("%s@%d", t.Name, saved.Version), &service.Recipient{
			Email: person.Email, Name: person.Name, Vars: person.Vars, JSON: isJSON,
		})
	}
	if err != nil {
		return p.refusedTemplate(w, r, v, t, err)
	}
	done := "saved"
	if do == "publish" {
		done = "published"
	}
	to := url.Values{"version": {strconv.Itoa(saved.Version)}, "done": {done}}
	if t.has(t.Shown) {
		to.Set("language", t.Shown)
	}
	return web.SeeOther(w, r, "/templates/"+url.PathEscape(t.Name)+"?"+to.Encode())
}

// refusedTemplate shows the form with what is wrong.
func (p *Pages) refusedTemplate(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, t *templateView, err error,
) error {
	e := web.Refused(err)
	if e == nil {
		return err
	}
	t.Problem = e.Detail
	for _, f := range e.Fields {
		field, part, _ := strings.Cut(strings.TrimPrefix(f.Pointer, "/"), "/")
		if field == "languages" && part != "" {
			t.wrongLanguage(part, &f)
			continue
		}
		if field == "template" || field == "from" || field == "name" {
			t.Problem += " " + web.Sentence(f.Detail)
			continue
		}
		t.Wrong[field] = strings.TrimSpace(t.Wrong[field] + " " + web.Sentence(f.Detail))
	}
	return p.showTemplate(w, r, v, e.Kind.Status(), t)
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
		return p.refusedTemplate(w, r, v, t, err)
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

// previewTemplate is POST /templates/{name}/preview: the message of the form as one recipient
// gets it, for the sandboxed frame beside the form.
func (p *Pages) previewTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	t, src, err := readTemplate(w, r)
	if err != nil {
		return err
	}
	to, isJSON := t.recipient()
	to.Vars = WithExample(to.Vars, t.Category, p.web.PublicURL())
	var wrong []string
	for name, text := range t.Wrong {
		wrong = append(wrong, name+": "+text)
	}
	slices.Sort(wrong)
	sample := templates.Sample{Language: t.sampleLanguage(), Source: src, To: to, JSON: isJSON}
	filled, more, hints, err := p.FillSample(r, v, sample)
	if err != nil {
		return err
	}
	view := Filled{Headers: filled.Headers, Wrong: append(wrong, more...), Hints: hints, Text: filled.Text}
	view.HTML = template.HTML(filled.HTML) //nolint:gosec // web.PreviewPolicy keeps it from running
	return view.Write(w)
}

// publishTemplate is POST /templates/{name}/publish.
func (p *Pages) publishTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	number, _ := strconv.Atoi(r.PostFormValue("version")) // 0 is no version
	if _, err := p.service.Templates.Publish(r.Context(), v.User, r.PathValue("name"), number); err != nil {
		return err
	}
	return web.SeeOther(w, r, "/templates/"+url.PathEscape(r.PathValue("name"))+"?done=published")
}

// archiveTemplate is POST /templates/{name}/archive.
func (p *Pages) archiveTemplate(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	if _, err := p.service.Templates.Archive(r.Context(), v.User, r.PathValue("name")); err != nil {
		return err
	}
	return web.SeeOther(w, r, "/templates/"+url.PathEscape(r.PathValue("name"))+"?done=archived")
}

// change is a line of a comparison: "+" is new, "-" is gone, "" is the same.
type change struct{ Sign, Text string }

// maxCompared is the number of lines of the largest text that is compared line by line.
const maxCompared = 2000

// changes compares two texts line by line: what is not in their longest common subsequence
// was added or removed.
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
