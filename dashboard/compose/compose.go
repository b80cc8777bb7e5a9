// Package compose has the pages on which mail is written: Compose, with its preview, and drafts.
package compose

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	pages "github.com/safedelivr/safedelivr/dashboard/templates"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/drafts"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Pages are the pages on which mail is written.
type Pages struct {
	web       *web.Frame
	service   *service.Service
	templates *pages.Pages
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service, templates *pages.Pages) *Pages {
	return &Pages{web: frame, service: svc, templates: templates}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavSend, To: "/compose", Icon: "pen", Text: "Compose"}},
		Users: map[string]web.Handler{
			"GET /compose":             p.compose,
			"POST /compose":            p.send,
			"POST /compose/preview":    p.preview,
			"POST /compose/columns":    p.showColumns,
			"POST /compose/summary":    p.showSummary,
			"GET /drafts":              p.listDrafts,
			"POST /drafts":             p.saveDraft,
			"POST /drafts/{id}/delete": p.deleteDraft,
		},
	}
}

// composeView is the form as it was entered, and what it says of the batch.
type composeView struct {
	Form *web.Form
	intake.Batch
	wrong          error // of fields that are not what they must be
	To, Vars, Test string
	Mapping        mapping // what the columns of the recipients are
	Skip           bool    // leave out rows with mistakes
	Files          []composedFile
	Draft          drafts.Draft
	Saved          bool   // the draft was saved by its button
	New            bool   // the form does not go on with what the tab has kept
	Row            int    // number of the previewed recipient, from 1
	Part           string // html or text
	Do             string // the button that was pressed
	Once           string // idempotency key: submitting the form twice sends once
	Problem        string
	About          string // batch that the problem is about, or ""
	Curl           string
	Base           string
	May            people.AllowedSenders // senders that the visitor may use
	Templates      []string              // names that can be chosen
	Drafts         int                   // number of drafts of the visitor
	Note           string                // about the file
	Tested         service.Accepted      // the test message that was just accepted
	Ask            *planView             // what would happen; nil if nothing is asked
	Sent           string                // hash that the form was confirmed with
	Sure           string                // hash of the form that Ask is about

	List        *columnsView
	Card        []summaryRow
	Check       bool // ask before anything is sent
	BrowserZone bool // the time zone is that of the browser

	uploaded []byte // the file with recipients
}

// askFrom is the number of recipients from which on the form asks before it sends. It always asks if some mail is sent
// later.
const askFrom = 11

// compose is GET /compose: an empty form, or a draft.
func (p *Pages) compose(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c := &composeView{Row: 1, Part: "html", Once: web.NewSecret(), Form: web.NewForm(url.Values{})}
	if id := r.URL.Query().Get("draft"); id != "" {
		draft, err := p.service.Drafts.Get(r.Context(), v.User, id)
		if err != nil {
			return err
		}
		fields := url.Values{}
		for name, text := range draft.Fields {
			fields.Set(name, text)
		}
		c.setFields(fields)
		c.Draft, c.Saved = draft, r.URL.Query().Get("saved") != ""
	}
	if c.Form.Get(intake.TimeZone) == "" {
		defaults, err := p.service.People.Defaults(r.Context(), v.Caller(), v.User)
		if err != nil {
			return err
		}
		c.Form.Set(intake.TimeZone, cmp.Or(defaults.Zone, "UTC"))
		c.BrowserZone = defaults.Zone == ""
	}
	c.Draft.Editor, c.New = web.NewSecret(), r.URL.Query().Get("new") != ""
	return p.showCompose(w, r, v, http.StatusOK, c)
}

func (p *Pages) showCompose(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, c *composeView,
) (err error) {
	if c.May, err = p.service.People.AllowedSenders(r.Context(), v.Caller()); err != nil {
		return err
	}
	list, _, err := p.service.Templates.List(r.Context(), v.User, maxTemplates, "")
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].State == client.TemplatePublished {
			c.Templates = append(c.Templates, list[i].Name)
		}
	}
	if c.Template != "" && !slices.Contains(c.Templates, c.Template) {
		c.Templates = append(c.Templates, c.Template)
	}
	saved, err := p.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	c.Drafts, c.Base = len(saved), p.web.PublicURL()
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	if c.List, err = c.look(in); err != nil {
		return err
	}
	if c.Card, err = p.summaryOf(r, v, c, nil); err != nil {
		return err
	}
	if c.Draft.ID == "" {
		c.Draft.ID = drafts.NewID()
	}
	return p.web.Render(w, r, v, status, "compose", web.Page{Title: "Compose", Editor: true, Data: c})
}

// maxTemplates is the number of templates that can be chosen from.
const maxTemplates = 500

// send is POST /compose. The button that was pressed says what to do.
func (p *Pages) send(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	c, err := readCompose(w, r, in)
	if err != nil {
		return err
	}
	list := parseList(c.To, c.Mapping)
	switch c.Do {
	case "curl":
		c.Curl = curlOf(p.web.PublicURL(), c, list)
		return p.showCompose(w, r, v, http.StatusOK, c)
	case "check":
		c.Check, c.Do = true, "send"
	case "test":
		one := listed{Email: c.Test}
		if row := list.at(c.Row); row != nil {
			one.Vars = row.Vars
		}
		list = list.only(one)
	}
	hash := c.hash(list)
	accepted, err := p.accept(r, v, c, in, list, hash)
	switch refused := web.Refused(err); {
	case refused != nil:
		c.Problem, c.About = refused.Detail, refused.BatchID
		if len(refused.Fields) > 0 {
			c.Problem = "Not sent. Fix the highlighted fields and try again."
		}
		// The form keeps its key. If the outcome of this request is unknown, the same
		// content submitted again is a repeat; corrected content has another hash.
		return c.Form.Refused(c.placed(refused, list), func(status int) error {
			return p.showCompose(w, r, v, status, c)
		})
	case err != nil:
		return err
	case c.Ask != nil:
		c.Sure = hash
		return p.showCompose(w, r, v, http.StatusOK, c)
	case c.Do == "test":
		c.Tested, c.Once = accepted, web.NewSecret()
		return p.showCompose(w, r, v, http.StatusOK, c)
	}
	if err := p.service.Drafts.Delete(r.Context(), v.User, c.Draft.ID); err != nil {
		p.web.Log.Warn("the draft of a message that was sent is not deleted", "batch_id", accepted.ID.String(), "err", err)
	}
	return web.SeeOther(w, r, "/batches/"+accepted.ID.String())
}

// hash returns the hash of all that decides what is sent to a list.
func (c *composeView) hash(list *addressList) string {
	all := []string{c.Do, mapping(list.Headings).String()}
	for _, name := range slices.Sorted(maps.Keys(c.Form.Values)) {
		text := web.Lines(strings.Join(c.Form.Values[name], "\n"))
		test := name == "row" && c.Do == "test" // its variables fill the message
		if text != "" && name != "columns" && (test || !slices.Contains(passing, name)) {
			all = append(all, name, text)
		}
	}
	for i := range c.Files {
		all = append(all, c.Files[i].Name, c.Files[i].kind, c.Files[i].sum)
	}
	return web.HashOf(strings.Join(all, "\x00"))
}

// accept hands the form to the service. The same form with the same content is
// sent once, no matter how often it is submitted. A form with many recipients or times is sent
// when it comes a second time with the hash of the first; before that, c.Ask says what would happen.
func (p *Pages) accept(
	r *http.Request, v *web.Visitor, c *composeView, in *intake.Intake, list *addressList, hash string,
) (a service.Accepted, err error) {
	if err := p.fill(r, v, c, in, list); err != nil {
		return service.Accepted{}, err
	}
	asks := len(list.Rows) >= askFrom || in.HasOwnTimes() || in.Rejected() > 0 || c.DeliverAt != "" && c.Do != "test"
	if c.Check || asks && c.Sent != hash {
		plan, err := p.service.NewTrial(v.Caller()).DryRun(r.Context(), in)
		if err != nil { // with mistakes there is nothing to confirm
			return service.Accepted{}, err
		}
		c.Ask = planOf(&plan)
		c.Ask.Card, err = p.summaryOf(r, v, c, &plan)
		return service.Accepted{}, err
	}
	a, _, err = p.service.Accept(
		r.Context(), v.Caller(), in, service.Repeat{Key: c.Once + hash, Route: "compose", Hash: hash},
	)
	return a, err
}

// fill fills a batch with the form.
func (p *Pages) fill(r *http.Request, v *web.Visitor, c *composeView, in *intake.Intake, list *addressList) error {
	if c.wrong != nil {
		return c.wrong
	}
	b := &in.Batch
	*b = c.Batch
	content, category := models.Content{Subject: c.Subject, HTML: c.HTML, Text: c.Text}, c.Category
	if c.Template == "" {
		b.Language = ""
	} else {
		b.Subject, b.HTML, b.Text = "", "", ""
		// An error of the template is found below.
		if t, err := p.service.Templates.Use(r.Context(), v.User, c.Template, c.Language); err == nil {
			t.Content(&content)
			category = cmp.Or(category, t.Category)
		}
	}
	if category != "" && wantsUnsubscribe(&content) {
		b.Unsubscribe = new(true) // urgent mail has no link by default
	}
	if c.Do == "test" { // it goes to one address only, at once
		b.Together, b.CC, b.BCC, b.Times = false, nil, nil, intake.Times{}
	} else if c.Skip {
		in.Permit()
	}
	if err := in.AddContent(len(b.Subject) + len(b.HTML) + len(b.Text)); err != nil {
		return err
	}
	c.attach(in, content.HTML)
	if list.Problem != "" {
		in.Unreadable("to")
		in.Wrong("/to", "bad_list", "%s", list.Problem)
	}
	shared, isJSON, err := pages.JSONVars(c.Vars)
	if err != nil {
		in.Wrong("/vars", "wrong_type", "vars must be an object.")
	}
	if structured := func(name string) bool { return intake.IsStructured(shared[name]) }; c.Template == "" &&
		slices.ContainsFunc(isJSON, structured) {
		in.Wrong("/vars", "wrong_type", intake.NeedsTemplate)
		isJSON = slices.DeleteFunc(isJSON, structured) // said once, and not for each recipient
	}
	in.SetColumns(list.Headings)
	return in.Read(list.recipients(in, shared, isJSON))
}

// wantsUnsubscribe reports whether a message has the placeholder of the link to unsubscribe.
func wantsUnsubscribe(c *models.Content) bool {
	return slices.ContainsFunc([]string{c.Subject, c.HTML, c.Text}, func(part string) bool {
		return slices.Contains(models.Placeholders(part), models.UnsubscribeURL)
	})
}

// withShared returns the variables of a recipient, with those of every recipient where its own
// are missing or empty, and the names of those that are JSON.
func withShared(own, shared map[string]string, isJSON []string) (vars map[string]string, names []string) {
	if len(shared) == 0 {
		return own, nil
	}
	vars = maps.Clone(shared)
	for name, text := range own {
		if _, ok := shared[name]; text != "" || !ok {
			vars[name] = text
		}
	}
	for _, name := range isJSON {
		if own[name] == "" {
			names = append(names, name)
		}
	}
	return vars, names
}

// shownRecipients is how many mistakes in recipients the form shows.
const shownRecipients = 10

// placed returns an error whose mistakes are in fields of the form. Those in recipients name their lines.
func (c *composeView) placed(e *service.Error, list *addressList) error {
	out, shown := *e, 0
	out.Fields = nil
	for _, f := range e.Fields {
		parts := strings.Split(f.Pointer+"/", "/")
		switch {
		case parts[1] == intake.Unsubscribe:
			f.Pointer = "/category"
		case parts[1] == "to" && c.Do == "test":
			f.Pointer = "/test"
		case parts[1] == "to":
			if shown++; shown > shownRecipients {
				f.Detail = "There are more errors like these."
			} else if n, err := strconv.Atoi(parts[2]); err == nil && n < len(list.Rows) {
				f.Detail = "Line " + strconv.Itoa(list.Rows[n].Line) + ": " + f.Detail
			}
		}
		out.Fields = append(out.Fields, f)
	}
	return &out
}

// curlRecipients is the maximum number of recipients in the curl command.
const curlRecipients = 20

// curlOf returns a curl command that sends the same batch without its attachments.
func curlOf(base string, c *composeView, list *addressList) string {
	type to struct {
		client.Recipient
		DeliverAt string `json:"deliver_at,omitempty"` // as it was typed
	}
	body := struct {
		client.NewBatch
		DeliverAt string `json:"deliver_at,omitempty"`
		To        []to   `json:"to"`
	}{NewBatch: client.NewBatch{
		From: c.From, Template: c.Template, Category: c.Category, Tags: c.Tags, Lane: client.Lane(c.Lane),
		TrackOpens: c.TrackOpens, TrackClicks: c.TrackClicks, CC: c.CC, BCC: c.BCC, Together: c.Together, ReplyTo: c.ReplyTo,
	}, DeliverAt: c.DeliverAt, To: []to{}}
	body.TimeZone = c.TimeZone
	if c.Template == "" {
		body.Subject, body.HTML, body.Text = c.Subject, c.HTML, c.Text
	} else {
		body.Language = c.Language
	}
	shared, isJSON, _ := pages.JSONVars(c.Vars) // sending reports the error
	for _, row := range list.Rows[:min(len(list.Rows), curlRecipients)] {
		texts, names := withShared(row.Vars, shared, isJSON)
		vars := map[string]any{}
		for name, text := range texts {
			vars[name] = text
		}
		for _, name := range names {
			vars[name] = json.RawMessage(texts[name])
		}
		body.To = append(body.To, to{
			client.Recipient{Email: row.Email, Name: row.Name, Vars: vars, TimeZone: row.Times.TimeZone}, row.Times.DeliverAt,
		})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(body) // strings and valid JSON always encode
	return "curl " + base + "/v1/batches \\\n" +
		"  -H \"Authorization: Bearer $KEY\" \\\n" +
		"  -H 'Content-Type: application/json' \\\n" +
		"  --data-binary @- <<'JSON'\n" + b.String() + "JSON"
}
