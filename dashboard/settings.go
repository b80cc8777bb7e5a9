package dashboard

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/people"
)

// settingsView has what one of the pages of Settings shows.
type settingsView struct {
	Page      string // one of settingsPages
	Title     string
	Tabs      []tab
	Keys      []keyRow
	Revoked   int
	Form      keyForm
	Secret    string // secret of the key that was just created
	Again     bool   // the form was submitted before, and its key exists
	Once      string // of the form: submitting it twice creates one key
	Sessions  []openSession
	Providers []providerNow
	Limits    []limitRow
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

// keyRow is a key in the list.
type keyRow struct {
	client.Key
	Expired bool
}

// keyRows returns the keys that are not revoked, newest first, and the number of the others.
func keyRows(keys []client.Key, now time.Time) (rows []keyRow, revoked int) {
	for _, k := range slices.Backward(keys) {
		if !k.Revoked.IsZero() {
			revoked++
			continue
		}
		rows = append(rows, keyRow{Key: k, Expired: !k.Expires.IsZero() && now.After(k.Expires)})
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
func settings(d *Dashboard, name string) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		return d.showSettings(w, r, v, http.StatusOK, &settingsView{Page: name, Form: newKeyForm()})
	}
}

// firstSettings is GET /settings.
func firstSettings(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	seeOther(w, r, settingsPath(settingsPages[0].name))
	return nil
}

// setTabs sets the links to the pages of Settings, and the title.
func (s *settingsView) setTabs(operator bool) {
	for _, p := range settingsPages {
		s.Tabs = append(s.Tabs, tab{Text: p.title, To: settingsPath(p.name), Here: p.name == s.Page})
		if p.name == s.Page {
			s.Title = p.title
		}
	}
	for _, p := range settingsElsewhere {
		if operator || !p.operators {
			s.Tabs = append(s.Tabs, tab{Text: p.title, To: p.to})
		}
	}
}

// read reads what the page shows.
func (s *settingsView) read(d *Dashboard, r *http.Request, v *visitor) (err error) {
	switch ctx, who := r.Context(), v.caller(); s.Page {
	case "keys":
		var keys []client.Key
		keys, err = d.service.People.Keys(ctx, who)
		s.Keys, s.Revoked = keyRows(keys, time.Now())
		s.Once = newSecret()
	case "senders":
		s.May, err = d.service.People.AllowedSenders(ctx, who)
	case "limits":
		var used client.Limits
		used, err = d.service.Limits.Usage(ctx, who)
		s.Limits = limitRows(&used)
	case "times":
		if s.Times.Wrong == nil {
			s.Times, err = d.defaultsNow(ctx, who)
		}
	case "webhooks":
		s.Providers, err = d.providersNow()
	case "account":
		s.Sessions, err = d.sessions.list(ctx, v.User)
		for i := range s.Sessions {
			s.Sessions[i].Here = s.Sessions[i].ID == v.ID
		}
		s.Theme = theme(r)
	}
	return err
}

func (d *Dashboard) showSettings(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	view *settingsView,
) error {
	view.setTabs(v.Operator)
	if err := view.read(d, r, v); err != nil {
		return err
	}
	d.render(w, r, v, status, "settings", page{Title: view.Title, Active: "settings", Data: view})
	return nil
}

// createKey is POST /settings/keys. The response shows the key, once. It is not a
// redirect, because the secret must not be in a URL or be stored.
func (d *Dashboard) createKey(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return badForm(err)
	}
	f := keyForm{
		Name:     strings.TrimSpace(r.PostForm.Get("name")),
		Life:     r.PostForm.Get("life"),
		Networks: strings.TrimSpace(r.PostForm.Get("networks")),
		Scopes:   map[string]bool{},
	}
	var o models.KeyOptions
	for _, s := range r.PostForm["scope"] {
		f.Scopes[s] = true
		o.Scopes = append(o.Scopes, models.Scope(s))
	}
	if life := keyLives[f.Life]; life > 0 {
		o.Expires = time.Now().Add(life).UTC().Truncate(time.Second)
	}
	o.Networks = strings.FieldsFunc(f.Networks, func(c rune) bool { return strings.ContainsRune(" ,;\r\n\t", c) })
	f.Wrong = map[string]string{}
	if f.Name == "" {
		f.Wrong["name"] = "Enter a name that says what the key is for."
	}
	if len(o.Scopes) == 0 {
		f.Wrong["scopes"] = "Choose at least one permission."
	}
	if len(f.Wrong) > 0 {
		return d.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "keys", Form: f})
	}
	if again, err := d.submitted(r.Context(), v, r.PostForm.Get("once")); err != nil {
		return err
	} else if again {
		return d.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Again: true, Form: newKeyForm()})
	}
	_, secret, err := d.service.People.CreateKey(r.Context(), v.caller(), f.Name, o)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		f.Wrong = wrongFields(refused)
		return d.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Page: "keys", Form: f})
	}
	if err != nil {
		return err
	}
	return d.showSettings(w, r, v, http.StatusOK, &settingsView{Page: "keys", Secret: secret, Form: newKeyForm()})
}

// submitted reports whether a form with this secret was submitted before, and records that it
// is now. A form without a secret counts as new.
func (d *Dashboard) submitted(ctx context.Context, v *visitor, once string) (bool, error) {
	if len(once) != secretLength {
		return false, nil
	}
	mine := models.Claim{ID: models.NewBatchID(time.Now()), Hash: hashOf(once), At: time.Now().UTC()}
	for {
		won, err := d.store.Claim(ctx, "form."+v.User+"."+mine.Hash, mine, sessionIdle)
		if !errors.Is(err, models.ErrOutcomeUnknown) || ctx.Err() != nil {
			return won.ID != mine.ID, storeTrouble(err)
		}
	}
}

// wrongFields maps the fields of a form to the service's errors. The field is the
// first part of an error's pointer.
func wrongFields(e *service.Error) map[string]string {
	out := map[string]string{}
	for _, f := range e.Fields {
		field, _, _ := strings.Cut(strings.TrimPrefix(f.Pointer, "/"), "/")
		if out[field] == "" {
			out[field] = f.Detail
		} else if !strings.Contains(out[field], f.Detail) {
			out[field] += " " + f.Detail
		}
	}
	return out
}

// revokeKey is POST /settings/keys/{id}/revoke.
func (d *Dashboard) revokeKey(w http.ResponseWriter, r *http.Request, v *visitor) error {
	if err := d.service.People.RevokeKey(r.Context(), v.caller(), r.PathValue("id"), ""); err != nil {
		return err
	}
	seeOther(w, r, settingsPath("keys"))
	return nil
}

// endSession is POST /settings/account/sessions/{id}/end; the id may be "all".
func (d *Dashboard) endSession(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id := r.PathValue("id")
	if id == "all" {
		if _, _, err := d.service.People.EndSessions(r.Context(), v.caller(), v.User, "", service.Repeat{}); err != nil {
			return err
		}
		seeOther(w, r, "/login")
		return nil
	}
	open, err := d.sessions.list(r.Context(), v.User)
	if err != nil {
		return err
	}
	found := false
	for i := range open {
		if open[i].ID == id {
			found = true
			if err := d.sessions.end(r.Context(), v.User, open[i].ID); err != nil {
				return err
			}
		}
	}
	if !found {
		return errNoPage
	}
	seeOther(w, r, settingsPath("account")+"#sessions")
	return nil
}

// userView is the operators' page of a user.
type userView struct {
	client.User
	DisabledBy string // name
	Self       bool   // it is the visitor
	Keys       []keyRow
	Revoked    int
	Sessions   []openSession
	Form       userForm
}

// userPage is GET /operations/users/{id}, for operators.
func (d *Dashboard) userPage(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showUser(w, r, v, http.StatusOK, r.PathValue("id"), userForm{})
}

func (d *Dashboard) showUser(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	name string,
	form userForm,
) error {
	u, err := d.service.People.UserView(r.Context(), v.caller(), name)
	if err != nil {
		return err
	}
	view := &userView{User: u, DisabledBy: d.nameOf(r.Context(), u.DisabledBy), Self: u.ID == v.User, Form: form}
	keys, err := d.service.People.KeysOf(r.Context(), v.caller(), u.ID)
	if err != nil {
		return err
	}
	view.Keys, view.Revoked = keyRows(keys, time.Now())
	open, err := d.sessions.list(r.Context(), u.ID)
	if err != nil {
		return storeTrouble(err)
	}
	for i := range open {
		ended, err := d.service.People.SessionEnded(r.Context(), u.ID, open[i].UpTo)
		if err != nil {
			return err
		}
		if !ended {
			view.Sessions = append(view.Sessions, open[i])
		}
	}
	d.render(w, r, v, status, "user", page{Title: u.Name, Active: "operations", Data: view})
	return nil
}

// revokeKeyOf is POST /operations/users/{id}/keys/{key}/revoke, for operators.
func (d *Dashboard) revokeKeyOf(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	id, why := r.PathValue("id"), strings.TrimSpace(r.PostFormValue("reason"))
	if err := d.service.People.RevokeKeyOf(r.Context(), v.caller(), id, r.PathValue("key"), why); err != nil {
		return err
	}
	to := "/operations/users/" + url.PathEscape(id) + "#keys"
	if r.PostFormValue("page") == "keys" {
		to = "/operations/keys"
	}
	seeOther(w, r, to)
	return nil
}

// keysView is the operators' page of the API keys of all users.
type keysView struct {
	Keys  []keyRow
	Older string // cursor of the next page
	First bool
}

// keysPage is GET /operations/keys, for operators.
func (d *Dashboard) keysPage(w http.ResponseWriter, r *http.Request, v *visitor) error {
	cursor := r.URL.Query().Get("cursor")
	all, err := d.service.People.AllKeys(r.Context(), v.caller(), service.Page{Limit: keysListed, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &keysView{Older: all.Next, First: cursor == ""}
	now := time.Now()
	for _, k := range all.Keys {
		view.Keys = append(view.Keys, keyRow{Key: k, Expired: !k.Expires.IsZero() && now.After(k.Expires)})
	}
	d.render(w, r, v, http.StatusOK, "keys", page{Title: "API keys", Active: "operations", Data: view})
	return nil
}

const keysListed = 100

// limitsView is the page of the limits of a user or of a key, for operators.
type limitsView struct {
	User models.User
	Key  *client.Key // nil: of the user
	Rows []limitRow
	Why  string
	// Wrong has the errors of the form by field.
	Wrong map[string]string
}

// limitRow is one limit, and its field in the form.
type limitRow struct {
	client.LimitUse
	Words string
	Text  string // in the form: empty if it is not set
}

func limitRows(v *client.Limits) []limitRow {
	var out []limitRow
	for _, l := range v.Limits {
		row := limitRow{LimitUse: l, Words: limitWords[models.Limit(l.Limit)]}
		if l.Set {
			row.Text = strconv.FormatInt(l.Value, 10)
		}
		out = append(out, row)
	}
	return out
}

// limits is GET /operations/users/{id}/limits and GET /operations/users/{id}/keys/{key}/limits, for operators.
func (d *Dashboard) limits(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showLimits(w, r, v, http.StatusOK, &limitsView{}, nil)
}

// showLimits shows the limits of a user or a key. texts are the values of the form; nil: those
// in effect.
func (d *Dashboard) showLimits(
	w http.ResponseWriter,
	r *http.Request,
	v *visitor,
	status int,
	view *limitsView,
	texts map[models.Limit]string,
) error {
	now, err := d.service.Limits.LimitsOf(r.Context(), v.caller(), r.PathValue("id"), r.PathValue("key"))
	if err != nil {
		return err
	}
	if view.User, err = d.service.People.User(r.Context(), v.caller(), now.User); err != nil {
		return err
	}
	of := view.User.Name
	if now.Key != "" {
		keys, err := d.service.People.KeysOf(r.Context(), v.caller(), now.User)
		if err != nil {
			return err
		}
		for i := range keys {
			if keys[i].ID == now.Key {
				view.Key, of = &keys[i], cmp.Or(keys[i].Name, keys[i].ID)
			}
		}
	}
	view.Rows = limitRows(&now)
	for i := range view.Rows {
		if texts != nil {
			view.Rows[i].Text = texts[models.Limit(view.Rows[i].Limit)]
		}
	}
	d.render(w, r, v, status, "limits", page{Title: "Limits of " + of, Active: "operations", Data: view})
	return nil
}

// setLimits is POST to the path of limits, for operators. An empty field takes the default; a key has none.
func (d *Dashboard) setLimits(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return badForm(err)
	}
	view := &limitsView{Why: strings.TrimSpace(r.PostForm.Get("why")), Wrong: map[string]string{}}
	limits, texts := models.Limits{}, map[models.Limit]string{}
	for _, l := range models.AllLimits() {
		text := strings.TrimSpace(r.PostForm.Get(string(l)))
		texts[l] = text
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			view.Wrong[string(l)] = "Enter a whole number, 0 for no limit, or leave the field empty."
		}
		limits[l] = n
	}
	if len(view.Wrong) > 0 {
		return d.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	_, err := d.service.Limits.SetLimits(r.Context(), v.caller(), r.PathValue("id"), r.PathValue("key"), limits, view.Why)
	var refused *service.Error
	if errors.As(err, &refused) && len(refused.Fields) > 0 {
		view.Wrong = wrongFields(refused)
		return d.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	if err != nil {
		return err
	}
	seeOther(w, r, r.URL.Path)
	return nil
}

// requestsView is the request log of an API key.
type requestsView struct {
	client.RequestPage
	Older string // URL of the next page
	First bool
}

// requests is GET /keys/{id}/requests.
func (d *Dashboard) requests(w http.ResponseWriter, r *http.Request, v *visitor) error {
	path, cursor := "/keys/"+r.PathValue("id")+"/requests", r.URL.Query().Get("cursor")
	found, err := d.service.People.Requests(r.Context(), v.caller(), r.PathValue("id"), service.Page{Limit: 100, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &requestsView{RequestPage: found, First: cursor == ""}
	if found.Next != "" {
		view.Older = path + "?cursor=" + found.Next
	}
	d.render(w, r, v, http.StatusOK, "requests", page{Title: "API requests", Active: "settings", Data: view})
	return nil
}
