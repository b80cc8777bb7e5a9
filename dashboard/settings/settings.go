// Package settings has the pages of Settings: keys, senders, limits, sending hours, webhook addresses and the account.
package settings

import (
	"context"
	"embed"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/people"
)

// views are the templates of this room.
var views = web.NewTemplates(files, nil)

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
		"POST /settings/times":                     p.setDefaults,
		"POST /settings/account/sessions/{id}/end": p.endSession,
		"GET /keys/{id}/requests":                  p.requests,
	}
	for _, page := range settingsPages {
		routes["GET "+settingsPath(page.name)] = p.settings(page.name)
	}
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavRun, To: "/settings/keys", Icon: "key", Text: "Settings"}},
		Users:     routes,
		Calls: map[string]web.Call{
			"POST /settings/keys":                     {Operation: "createKey", Handler: p.createKey},
			"POST /settings/keys/{key}/revoke":        {Operation: "revokeKey", As: web.Mine, To: settingsPath("keys")},
			"POST /settings/account/sessions/all/end": {Operation: "endSessions", As: web.Mine, To: "/login"},
		},
	}
}

// settingsView has what one of the pages of Settings shows.
type settingsView struct {
	Page      string // one of settingsPages
	Title     string
	Tabs      []web.Tab
	Keys      []KeyRow
	Revoked   int
	Form      *web.Form
	Secret    string // secret of the key that was just created
	Again     bool   // the form was submitted before, and its key exists
	Once      string // of the form: submitting it twice creates one key
	Sessions  []web.OpenSession
	Providers []providers.Provider
	Limits    []LimitRow
	Theme     string
	Weekdays  []string
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

// newKeyForm returns the form of a new key.
func newKeyForm() *web.Form {
	return web.NewForm(url.Values{"scopes": {string(models.ScopeSend), string(models.ScopeRead)}})
}

// settings returns the handler of a page of Settings.
func (p *Pages) settings(name string) web.Handler {
	return func(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
		return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: name})
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
		if s.Form == nil {
			s.Form = newKeyForm()
		}
	case "senders":
		s.May, err = p.people.AllowedSenders(ctx, who)
	case "limits":
		var used client.Limits
		used, err = p.limits.Usage(ctx, who)
		s.Limits = LimitRows(&used)
	case "times":
		s.Weekdays = weekdays
		if s.Form == nil {
			s.Form, err = p.defaultsNow(ctx, who)
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
	return p.web.Render(w, r, v, status, "settings", web.Page{Title: view.Title, Data: view})
}

// createKey is POST /settings/keys. The response shows the key, once. It is not a redirect, because the secret must not
// be in a URL or be stored.
func (p *Pages) createKey(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	form, err := web.ReadForm(w, r, web.MaxForm)
	if err != nil {
		return err
	}
	if len(form.Values["scopes"]) == 0 { // boxes cannot leave out the list, which would have the default
		form.Set("scopes", "none")
	}
	if again, err := p.web.Submitted(r.Context(), v, form.Get("once")); err != nil {
		return err
	} else if again {
		return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Again: true})
	}
	made, err := p.web.Do(r, web.Mine(r, v, form), form)
	if err != nil {
		return form.Refused(err, func(status int) error {
			return p.showSettings(w, r, v, status, &settingsView{Page: "keys", Form: form})
		})
	}
	secret := made.Out.(client.CreatedKey).Secret //nolint:forcetypeassert // its answer
	return p.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Secret: secret})
}

// endSession is POST /settings/account/sessions/{id}/end.
func (p *Pages) endSession(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id := r.PathValue("id")
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
	return p.web.Render(w, r, v, http.StatusOK, "requests",
		web.Page{Title: "API requests", Data: view})
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

// defaults are the fields of the form of the defaults of a user's batches.
type defaults struct {
	intake.Times
	client.Reason
}

// weekdays are the days of a window.
var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// defaultsNow returns the form with the defaults that are in effect.
func (p *Pages) defaultsNow(ctx context.Context, who service.Caller) (*web.Form, error) {
	v, err := p.people.Defaults(ctx, who, who.User)
	times := intake.Times{TimeZone: v.Zone, Window: intake.WindowOf(v.Window)}
	if times.TimeZone == "" && times.Window != nil {
		times.TimeZone = times.Window.Zone
	}
	return web.NewForm(operation.FormOf(&times)), err
}

// setDefaults is POST /settings/times.
func (p *Pages) setDefaults(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	form, err := web.ReadForm(w, r, web.MaxForm)
	if err != nil {
		return err
	}
	var to defaults
	if err = form.Read(&to); err == nil {
		_, err = p.people.SetDefaults(r.Context(), v.Caller(), v.User, to.Times, to.Why)
	}
	if err != nil {
		return form.Refused(err, func(status int) error {
			return p.showSettings(w, r, v, status, &settingsView{Page: "times", Form: form})
		})
	}
	return web.SeeOther(w, r, settingsPath("times"))
}

// LimitRow is one limit.
type LimitRow struct {
	client.LimitUse
	Words string
}

// LimitRows returns the limits with their words.
func LimitRows(v *client.Limits) []LimitRow {
	out := make([]LimitRow, len(v.Limits))
	for i, l := range v.Limits {
		out[i] = LimitRow{LimitUse: l, Words: limitWords[models.Limit(l.Limit)]}
	}
	return out
}
