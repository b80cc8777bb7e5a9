// Package settings has the pages of Settings: keys, senders, limits, sending hours, webhook addresses and the account.
package settings

import (
	"cmp"
	"context"
	"embed"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
)

// Templates are the pages of this room.
var Templates = web.NewTemplates(files, nil)

//go:embed *.html
var files embed.FS

// Pages are the pages of Settings.
type Pages struct {
	web       *web.Frame
	people    *people.People
	limits    *people.Limits
	providers *providers.Pages
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service, pages *providers.Pages) *Pages {
	return &Pages{web: frame, people: svc.People, limits: svc.Limits, providers: pages}
}

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	routes := map[string]web.Handler{
		"GET /settings":                            firstSettings,
		"POST /settings/keys":                      p.createKey,
		"POST /settings/times":                     p.setDefaults,
		"POST /settings/keys/{id}/revoke":          p.revokeKey,
		"POST /settings/account/sessions/{id}/end": p.endSession,
		"GET /keys/{id}/requests":                  p.requests,
	}
	for _, page := range settingsPages {
		routes["GET "+settingsPath(page.name)] = p.settings(page.name)
	}
	return web.Routes{Users: routes}
}

// settingsView has what one of the pages of Settings shows.
type settingsView struct {
	Page      string // one of settingsPages
	Title     string
	Tabs      []web.Tab
	Keys      []KeyRow
	Revoked   int
	Form      keyForm
	Secret    string // secret of the key that was just created
	Again     bool   // the form was submitted before, and its key exists
	Once      string // of the form: submitting it twice creates one key
	Sessions  []web.OpenSession
	Providers []providers.Provider
	Limits    []LimitRow
	Theme     string
	Times     defaultsForm
	May       people.AllowedSenders // senders that the visitor may use
}

// settingsPages are the pages of Settings by the last part of their paths.
var settingsPages = []struct{ name, title string }{
	{"keys", "API keys"},
	{"senders", "Senders and domains"},
	{"limits", "Limits"},
	{"times", "Sending hours"},
	{"webhooks", "Webhook addresses"},
	{"account", "Account"},
}

// settingsElsewhere are pages that people look for in Settings and that have their place in the menu.
var settingsElsewhere = []struct {
	title, to string
	operators bool
}{
	{"Endpoints", "/endpoints", false},
	{"People", "/operations/users", true},
}

// settingsPath returns the path of a page of Settings.
func settingsPath(name string) string { return "/settings/" + name }

// KeyRow is a key in the list.
type KeyRow struct {
	client.Key
	Expired bool
}

// KeyRows returns the keys that are not revoked, newest first, and the number of the others.
func KeyRows(keys []client.Key, now time.Time) (rows []KeyRow, revoked int) {
	for _, k := range slices.Backward(keys) {
		if !k.Revoked.IsZero() {
			revoked++
			continue
		}
		rows = append(rows, KeyRow{Key: k, Expired: !k.Expires.IsZero() && now.After(k.Expires)})
	}
	return rows, revoked
}

// keyForm is the form of a new key and its errors.
type keyForm struct {
	Name, Life, Networks string
	Scopes               map[string]bool
	Wrong                map[string]string // errors by field
}

func newKeyForm() keyForm {
	return keyForm{Scopes: map[string]bool{string(models.ScopeSend): true, string(models.ScopeRead): true}}
}

// keyLives maps the choices in the form to lifetimes of a key.
var keyLives = map[string]time.Duration{
	"30":  30 * 24 * time.Hour,
	"90":  90 * 24 * time.Hour,
	"365": 365 * 24 * time.Hour,
}

// settings returns the handler of a page of Settings.
func (p *Pages) settings(name string) web.Handler {
	return func(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
		return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: name, Form: newKeyForm()})
	}
}

// firstSettings is GET /settings.
func firstSettings(w http.ResponseWriter, r *http.Request, _ *web.Visitor) error {
	return web.SeeOther(w, r, settingsPath(settingsPages[0].name))
}

// setTabs sets the links to the pages of Settings, and the title.
func (s *settingsView) setTabs(operator bool) {
	for _, p := range settingsPages {
		s.Tabs = append(s.Tabs, web.Tab{Text: p.title, To: settingsPath(p.name), Here: p.name == s.Page})
		if p.name == s.Page {
			s.Title = p.title
		}
	}
	for _, p := range settingsElsewhere {
		if operator || !p.operators {
			s.Tabs = append(s.Tabs, web.Tab{Text: p.title, To: p.to})
		}
	}
}

// readSettings reads what a page of Settings shows.
func (p *Pages) readSettings(r *http.Request, v *web.Visitor, s *settingsView) (err error) {
	switch ctx, who := r.Context(), v.Caller(); s.Page {
	case "keys":
		var keys []client.Key
		keys, err = p.people.Keys(ctx, who)
		s.Keys, s.Revoked = KeyRows(keys, time.Now())
		s.Once = web.NewSecret()
	case "senders":
		s.May, err = p.people.AllowedSenders(ctx, who)
	case "limits":
		var used client.Limits
		used, err = p.limits.Usage(ctx, who)
		s.Limits = LimitRows(&used)
	case "times":
		if s.Times.Wrong == nil {
			s.Times, err = p.defaultsNow(ctx, who)
		}
	case "webhooks":
		s.Providers, err = p.providers.Now()
	case "account":
		s.Sessions, err = p.web.Sessions.List(ctx, v.User)
		for i := range s.Sessions {
			s.Sessions[i].Here = s.Sessions[i].ID == v.ID
		}
		s.Theme = web.Theme(r)
	}
	return err
}

func (p *Pages) showSettings(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, view *settingsView,
) error {
	view.setTabs(v.Operator)
	if err := p.readSettings(r, v, view); err != nil {
		return err
	}
	return p.web.Render(w, r, v, status, "settings", web.Page{Title: view.Title, Active: "settings", Data: view})
}

// createKey is POST /settings/keys. The response shows the key, once. It is not a
// redirect, because the secret must not be in a URL or be stored.
func (p *Pages) createKey(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxForm)
	if err := r.ParseForm(); err != nil {
		return web.BadForm(err)
	}
	f := keyForm{
		Name: strings.TrimSpace(r.PostForm.Get("name")), Life: r.PostForm.Get("life"),
		Networks: strings.TrimSpace(r.PostForm.Get("networks")), Scopes: map[string]bool{},
	}
	var o models.KeyOptions
	for _, s := range r.PostForm["scope"] {
		f.Scopes[s] = true
		o.Scopes = append(o.Scopes, models.Scope(s))
	}
	if life := keyLives[f.Life]; life > 0 {
		o.Expires = time.Now().Add(life).UTC().Truncate(time.Second)
	}
	o.Networks = web.Words(f.Networks)
	f.Wrong = map[string]string{}
	if f.Name == "" {
		f.Wrong["name"] = "Enter a name that says what the key is for."
	}
	if len(o.Scopes) == 0 {
		f.Wrong["scopes"] = "Choose at least one permission."
	}
	if len(f.Wrong) > 0 {
		return p.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "keys", Form: f})
	}
	if again, err := p.web.Submitted(r.Context(), v, r.PostForm.Get("once")); err != nil {
		return err
	} else if again {
		return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Again: true, Form: newKeyForm()})
	}
	_, secret, err := p.people.CreateKey(r.Context(), v.Caller(), f.Name, o)
	if f.Wrong = web.WrongFields(err); f.Wrong != nil {
		return p.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "keys", Form: f})
	}
	if err != nil {
		return err
	}
	return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Secret: secret, Form: newKeyForm()})
}

// revokeKey is POST /settings/keys/{id}/revoke.
func (p *Pages) revokeKey(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	if err := p.people.RevokeKey(r.Context(), v.Caller(), r.PathValue("id"), ""); err != nil {
		return err
	}
	return web.SeeOther(w, r, settingsPath("keys"))
}

// endSession is POST /settings/account/sessions/{id}/end; the id may be "all".
func (p *Pages) endSession(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id := r.PathValue("id")
	if id == "all" {
		if _, _, err := p.people.EndSessions(r.Context(), v.Caller(), v.User, "", service.Repeat{}); err != nil {
			return err
		}
		return web.SeeOther(w, r, "/login")
	}
	open, err := p.web.Sessions.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(open, func(s web.OpenSession) bool { return s.ID == id }) {
		return web.ErrNoPage
	}
	if err := p.web.Sessions.End(r.Context(), v.User, id); err != nil {
		return err
	}
	return web.SeeOther(w, r, settingsPath("account")+"#sessions")
}

// requestsView is the request log of an API key.
type requestsView struct {
	client.RequestPage
	Older string // URL of the next page
	First bool
}

// requests is GET /keys/{id}/requests.
func (p *Pages) requests(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	path, cursor := "/keys/"+r.PathValue("id")+"/requests", r.URL.Query().Get("cursor")
	found, err := p.people.Requests(r.Context(), v.Caller(), r.PathValue("id"), service.Page{Limit: 100, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &requestsView{RequestPage: found, First: cursor == ""}
	if found.Next != "" {
		view.Older = path + "?cursor=" + found.Next
	}
	return p.web.Render(w, r, v, http.StatusOK, "requests", web.Page{Title: "API requests", Active: "settings", Data: view})
}

// limitWords describes limits in words.
var limitWords = map[models.Limit]string{
	models.RequestsPerSecond: "Requests per second",
	models.RequestsAtOnce:    "Requests at once",
	models.RecipientsPerHour: "Recipients per hour",
	models.RecipientsPerDay:  "Recipients per day",
	models.BatchesPerDay:     "Batches per day",
	models.StoredBatches:     "Batches stored",
	models.StoredBytes:       "Bytes stored",
	models.SpoolBytes:        "Bytes being uploaded",

	models.UrgentRecipientsPerHour: "Urgent recipients per hour",
}

// defaultsForm has the fields of the defaults of a user's batches, as they were typed.
type defaultsForm struct {
	TimeZone, From, To, Weekdays string
	Strict                       bool
	Wrong                        map[string]string // mistakes by field
}

// defaultsNow returns the form with the defaults that are in effect.
func (p *Pages) defaultsNow(ctx context.Context, who service.Caller) (f defaultsForm, err error) {
	v, err := p.people.Defaults(ctx, who, who.User)
	f.TimeZone = v.Zone
	if w := intake.WindowOf(v.Window); w != nil {
		f.From, f.To, f.Weekdays, f.Strict = w.From, w.To, strings.Join(w.Weekdays, ", "), w.Strict
		f.TimeZone = cmp.Or(f.TimeZone, w.Zone)
	}
	return f, err
}

// setDefaults is POST /settings/times.
func (p *Pages) setDefaults(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	why, _ := web.Answered(w, r)
	f := defaultsForm{
		TimeZone: strings.TrimSpace(r.PostFormValue("time_zone")),
		From:     strings.TrimSpace(r.PostFormValue("from")),
		To:       strings.TrimSpace(r.PostFormValue("until")),
		Weekdays: strings.TrimSpace(r.PostFormValue("weekdays")),
		Strict:   r.PostFormValue("strict") != "",
	}
	times := intake.Times{TimeZone: f.TimeZone}
	if f.From != "" || f.To != "" {
		days := strings.FieldsFunc(strings.ToLower(f.Weekdays), func(c rune) bool { return c == ',' || c == ' ' })
		times.Window = &intake.Window{From: f.From, To: f.To, Weekdays: days, Strict: f.Strict}
	}
	_, err := p.people.SetDefaults(r.Context(), v.Caller(), v.User, times, why)
	if f.Wrong = web.WrongFields(err); f.Wrong != nil {
		return p.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "times", Times: f})
	}
	if err != nil {
		return err
	}
	return web.SeeOther(w, r, settingsPath("times"))
}

// LimitRow is one limit, and its field in the form.
type LimitRow struct {
	client.LimitUse
	Words string
	Text  string // in the form: empty if it is not set
}

// LimitRows returns the limits with their words.
func LimitRows(v *client.Limits) []LimitRow {
	var out []LimitRow
	for _, l := range v.Limits {
		row := LimitRow{LimitUse: l, Words: limitWords[models.Limit(l.Limit)]}
		if l.Set {
			row.Text = strconv.FormatInt(l.Value, 10)
		}
		out = append(out, row)
	}
	return out
}
