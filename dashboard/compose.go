package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// maxCompose bounds what the form may bring; who sends to more uses the API.
const maxCompose = 16 << 20

// composeView is the form, as it was typed, and what is wrong with it.
type composeView struct {
	From, ReplyTo, Subject, HTML, Text, To, Test string
	Row                                          int    // whose mail is previewed, from 1
	Part                                         string // html or text
	Once                                         string // names this form, so that sending it twice sends once
	Wrong                                        map[string]string
	Problem                                      string
	Batch                                        string // of the problem: the id to ask for
	Curl                                         string
	Base                                         string
	May                                          service.Sending // as whom the visitor may send
}

// compose is GET /compose.
func (d *Dashboard) compose(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showCompose(w, r, v, http.StatusOK, &composeView{Row: 1, Part: "html", Once: newSecret()})
}

func (d *Dashboard) showCompose(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	view *composeView,
) (err error) {
	if view.May, err = d.service.Sending(r.Context(), v.caller()); err != nil {
		return err
	}
	view.Base = d.public.String()
	d.render(w, r, v, status, "compose", page{Title: "Compose", Active: "compose", Data: view})
	return nil
}

// readCompose reads the form. An uploaded file stands for what was typed as
// recipients.
func readCompose(w http.ResponseWriter, r *http.Request) (*composeView, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxCompose)
	err := r.ParseMultipartForm(maxCompose) //nolint:gosec // bounded in the line above
	if err != nil && !errors.Is(err, http.ErrNotMultipart) {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return nil, service.Fail(
				service.TooLarge,
				"too_large",
				"This form takes 16 MiB. Send larger batches through the API: it takes them as a stream.",
			)
		}
		return nil, service.Fail(service.Malformed, "bad_form", "The form cannot be read.").Because(err)
	}
	f := r.PostFormValue
	c := &composeView{
		From:    f("from"),
		ReplyTo: f("reply_to"),
		Subject: f("subject"),
		HTML:    lines(f("html")),
		Text:    lines(f("text")),
		To:      lines(f("to")),
		Test:    strings.TrimSpace(f("test")),
		Part:    f("part"),
		Once:    f("once"),
		Wrong:   map[string]string{},
	}
	c.Row, _ = strconv.Atoi(f("row")) // what is no number becomes the first
	c.Row = max(1, c.Row)
	if c.Part != "text" {
		c.Part = "html"
	}
	if len(c.Once) != secretLength {
		c.Once = newSecret()
	}
	if file, _, err := r.FormFile("file"); err == nil {
		defer func() { _ = file.Close() }()
		var b bytes.Buffer
		if _, err := b.ReadFrom(file); err != nil {
			return nil, service.Fail(service.Malformed, "bad_form", "The file cannot be read.").Because(err)
		}
		if b.Len() > 0 {
			c.To = lines(strings.TrimPrefix(b.String(), "\ufeff"))
		}
	}
	return c, nil
}

// lines gives text the line ends that people's other programs expect. What comes
// back from a page that shows it is the same again.
func lines(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\ufffd").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// send is POST /compose: what is done says the button.
func (d *Dashboard) send(w http.ResponseWriter, r *http.Request, v *visitor) error {
	c, err := readCompose(w, r)
	if err != nil {
		return err
	}
	list := parseList(c.To)
	switch r.PostFormValue("do") {
	case "curl":
		c.Curl = curlOf(d.public.String(), c, list)
		return d.showCompose(w, r, v, http.StatusOK, c)
	case "test":
		if c.Test == "" {
			c.Wrong["test"] = "Give the address that the test mail goes to."
			return d.showCompose(w, r, v, http.StatusUnprocessableEntity, c)
		}
		one := listed{Email: c.Test}
		if row := list.at(c.Row); row != nil {
			one.Vars = row.Vars
		}
		list = list.only(one)
	}
	accepted, err := d.accept(r, v, c, list)
	var refused *service.Error
	if errors.As(err, &refused) && refused.Kind != service.Internal {
		c.Problem, c.Batch = refused.Detail, refused.BatchID
		if len(refused.Fields) > 0 {
			c.Problem = "It was not sent. What has to be mended stands beside the fields."
			c.wrong(refused, list, r.PostFormValue("do") == "test")
		}
		// The form keeps its name: pressed again it is a repeat, which sends once also
		// where it is not known whether this one was kept. What is mended has another hash.
		return d.showCompose(w, r, v, statuses[refused.Kind], c)
	}
	if err != nil {
		return err
	}
	seeOther(w, r, "/batches/"+accepted.ID.String())
	return nil
}

// accept hands the form to the service. The same form with the same content is
// sent once, however often the button is pressed.
func (d *Dashboard) accept(r *http.Request, v *visitor, c *composeView, list *addressList) (service.Accepted, error) {
	in := d.service.NewIntake()
	defer in.Close()
	for name, value := range map[string]string{"from": c.From, "reply_to": c.ReplyTo, "subject": c.Subject, "html": c.HTML, "text": c.Text} {
		if value == "" {
			continue
		}
		in.SetText(name, value)
		if err := in.AddContent(len(value)); err != nil {
			return service.Accepted{}, err
		}
	}
	if list.Problem != "" {
		in.Unreadable("to")
		in.Wrong("/to", "bad_list", "%s", list.Problem)
	}
	for i := range list.Rows {
		if err := in.Add(&service.Recipient{Email: list.Rows[i].Email, Name: list.Rows[i].Name, Vars: list.Rows[i].Vars}); err != nil {
			return service.Accepted{}, err
		}
	}
	do, row := r.PostFormValue("do"), ""
	if do == "test" {
		row = strconv.Itoa(c.Row) // its variables fill the mail
	}
	hash := hashOf(strings.Join([]string{do, row, c.From, c.ReplyTo, c.Subject, c.HTML, c.Text, c.To, c.Test}, "\x00"))
	a, _, err := d.service.Accept(
		r.Context(),
		v.caller(),
		in,
		service.Repeat{Key: c.Once + hash, Route: "compose", Hash: hash},
	)
	return a, err
}

// wrong puts what the service found wrong beside the fields; of recipients it
// names the lines.
func (c *composeView) wrong(e *service.Error, list *addressList, test bool) {
	to := "to"
	if test {
		to = "test"
	}
	told := 0
	for _, f := range e.Fields {
		parts := strings.Split(strings.TrimPrefix(f.Pointer, "/"), "/")
		text := sentence(f.Detail)
		field := parts[0]
		if field == "to" {
			field = to
			if told++; told > 10 {
				continue
			}
			if len(parts) > 1 && !test {
				if n, err := strconv.Atoi(parts[1]); err == nil && n < len(list.Rows) {
					text = "Line " + strconv.Itoa(list.Rows[n].Line) + ": " + text
				}
			}
		}
		if c.Wrong[field] != "" {
			c.Wrong[field] += " "
		}
		c.Wrong[field] += text
	}
	if told > 10 {
		c.Wrong[to] += " And more like these."
	}
}

// previewPage is what the frame beside the form shows.
var previewPage = template.Must(
	template.New("preview").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Preview</title>
<style>.sd{font:14px/1.5 system-ui,sans-serif;color:#1b1c1a;background:#f3f3ef;border-bottom:1px solid #ddd;padding:10px 14px;margin:-8px -8px 12px;overflow-wrap:anywhere}
.sd b{font-weight:600}.sd .m{color:#565853}.sd .w{color:#b42318}.t{font:15px/1.5 system-ui,sans-serif;white-space:pre-wrap;overflow-wrap:anywhere}html{background:#fff;color:#1b1c1a}</style>
<div class="sd"><div><b>{{.Subject}}</b></div><div class="m">{{if .To}}to {{.To}}{{else}}nobody yet{{end}}{{if .Count}} · {{.Row}} of {{.Count}}{{end}}</div>
{{range .Missing}}<div class="w">{{"{{"}}{{.}}{{"}}"}} has no value here</div>{{end}}{{if .Missing}}{{with .Columns}}<div class="m">the columns are {{range $i, $c := .}}{{if $i}}, {{end}}{{"{{"}}{{$c}}{{"}}"}}{{end}}</div>{{end}}{{end}}{{with .Problem}}<div class="w">{{.}}</div>{{end}}</div>
{{if .Text}}<div class="t">{{.Text}}</div>{{else}}{{.HTML}}{{end}}</html>`),
)

// preview is POST /compose/preview: the mail as one recipient gets it, for the
// sandboxed frame beside the form.
func (d *Dashboard) preview(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	c, err := readCompose(w, r)
	if err != nil {
		return err
	}
	list := parseList(c.To)
	to := models.Recipient{}
	if row := list.at(c.Row); row != nil {
		to = row.recipient()
	}
	view := map[string]any{
		"Row":     min(c.Row, max(1, len(list.Rows))),
		"Count":   len(list.Rows),
		"Columns": list.Columns,
		"Problem": list.Problem,
		"To":      to.Email,
	}
	var missing []string
	fill := func(s string, escape func(string) string) string {
		return models.Rewrite(s, func(name string) string {
			value, ok := to.Value(name)
			if !ok {
				if !slices.Contains(missing, name) {
					missing = append(missing, name)
				}
				return "{{" + name + "}}"
			}
			return escape(value)
		})
	}
	plain := func(s string) string { return s }
	view["Subject"] = fill(c.Subject, plain)
	text, html := fill(c.Text, plain), fill(c.HTML, template.HTMLEscapeString)
	if c.Part == "text" || html == "" {
		view["Text"] = text
	}
	view["HTML"] = template.HTML(html) //nolint:gosec // meant to be seen as what it is; previewPolicy takes its teeth
	view["Missing"] = missing
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", previewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	return previewPage.Execute(w, view)
}

// curlRecipients is how many recipients the curl line holds at most.
const curlRecipients = 20

// curlOf writes the same batch as a line for a shell.
func curlOf(base string, c *composeView, list *addressList) string {
	type to struct {
		Email string            `json:"email"`
		Name  string            `json:"name,omitempty"`
		Vars  map[string]string `json:"vars,omitempty"`
	}
	body := struct {
		From    string `json:"from"`
		ReplyTo string `json:"reply_to,omitempty"`
		Subject string `json:"subject"`
		HTML    string `json:"html,omitempty"`
		Text    string `json:"text,omitempty"`
		To      []to   `json:"to"`
	}{From: c.From, ReplyTo: c.ReplyTo, Subject: c.Subject, HTML: c.HTML, Text: c.Text, To: []to{}}
	for _, row := range list.Rows[:min(len(list.Rows), curlRecipients)] {
		body.To = append(body.To, to{row.Email, row.Name, row.Vars})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(body) // our own type always encodes
	return "curl " + base + "/v1/batches \\\n  -H \"Authorization: Bearer $KEY\" \\\n  -H 'Content-Type: application/json' \\\n  --data-binary @- <<'JSON'\n" + b.String() + "JSON"
}
