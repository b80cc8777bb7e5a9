package operations

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/settings"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// userForm is the form about a user and its errors.
type userForm struct {
	Name, Senders, Why string
	Wrong              map[string]string
}

// controlUser is POST /operations/users, for operators: it sets the senders of a user, or
// pauses, resumes, disables, enables or logs out the user, or opens the user's page.
func (p *Pages) controlUser(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxForm)
	f := func(name string) string { return strings.TrimSpace(r.PostFormValue(name)) }
	form, who := userForm{Name: f("name"), Senders: f("senders"), Why: f("reason")}, v.Caller()
	var err error
	page := f("page") == "user" // the form is on the user's page, or leads there
	switch f("do") {
	case "open":
		page = true
		_, err = p.service.People.User(r.Context(), who, form.Name)
	case "senders":
		_, _, err = p.service.People.SetSenders(r.Context(), who, form.Name, web.Words(form.Senders), form.Why, service.Repeat{})
	case "pause", "resume":
		do := map[string]models.CommandKind{"pause": models.PauseUser, "resume": models.ResumeUser}[f("do")]
		_, _, err = p.service.People.Control(r.Context(), who, do, form.Name, form.Why, service.Repeat{})
	case "disable", "enable":
		do := map[string]models.CommandKind{"disable": models.DisableUser, "enable": models.EnableUser}[f("do")]
		_, _, err = p.service.People.Switch(r.Context(), who, do, form.Name, form.Why, service.Repeat{})
	case "end-sessions":
		_, _, err = p.service.People.EndSessions(r.Context(), who, form.Name, form.Why, service.Repeat{})
	default:
		return web.ErrNoPage
	}
	form.Wrong = web.WrongFields(err)
	switch refused := web.Refused(err); {
	case refused != nil && refused.Kind == service.NotFound:
		form.Wrong = map[string]string{"name": "No user has this name or ID."}
	case form.Wrong != nil:
		form.Wrong["reason"] = form.Wrong["why"] // its name in the form
	case err != nil:
		return err
	case page:
		return web.SeeOther(w, r, "/operations/users/"+url.PathEscape(form.Name))
	default:
		return web.SeeOther(w, r, "/operations/users")
	}
	if f("page") == "user" {
		return p.showUser(w, r, v, http.StatusUnprocessableEntity, form.Name, form)
	}
	return p.showOperations(w, r, v, http.StatusUnprocessableEntity, "users", blockForm{}, form)
}

// userView is the operators' page of a user.
type userView struct {
	client.User
	DisabledBy string // name
	Self       bool   // it is the visitor
	Keys       []settings.KeyRow
	Revoked    int
	Sessions   []web.OpenSession
	Form       userForm
}

// userPage is GET /operations/users/{id}, for operators.
func (p *Pages) userPage(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	return p.showUser(w, r, v, http.StatusOK, r.PathValue("id"), userForm{})
}

func (p *Pages) showUser(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, name string, form userForm,
) error {
	u, err := p.service.People.UserView(r.Context(), v.Caller(), name)
	if err != nil {
		return err
	}
	view := &userView{User: u, DisabledBy: p.web.NameOf(r.Context(), u.DisabledBy), Self: u.ID == v.User, Form: form}
	keys, err := p.service.People.KeysOf(r.Context(), v.Caller(), u.ID)
	if err != nil {
		return err
	}
	view.Keys, view.Revoked = settings.KeyRows(keys, time.Now())
	open, err := p.web.Sessions.List(r.Context(), u.ID)
	if err != nil {
		return web.StoreTrouble(err)
	}
	for i := range open {
		ended, err := p.service.People.SessionEnded(r.Context(), u.ID, open[i].UpTo)
		if err != nil {
			return err
		}
		if !ended {
			view.Sessions = append(view.Sessions, open[i])
		}
	}
	return p.web.Render(w, r, v, status, "user", web.Page{Title: u.Name, Active: "operations", Data: view})
}

// revokeKeyOf is POST /operations/users/{id}/keys/{key}/revoke, for operators.
func (p *Pages) revokeKeyOf(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxForm)
	id, why := r.PathValue("id"), strings.TrimSpace(r.PostFormValue("reason"))
	if err := p.service.People.RevokeKeyOf(r.Context(), v.Caller(), id, r.PathValue("key"), why); err != nil {
		return err
	}
	to := "/operations/users/" + url.PathEscape(id) + "#keys"
	if r.PostFormValue("page") == "keys" {
		to = "/operations/keys"
	}
	return web.SeeOther(w, r, to)
}

// keysView is the operators' page of the API keys of all users.
type keysView struct {
	Keys  []settings.KeyRow
	Older string // cursor of the next page
	First bool
}

// keysPage is GET /operations/keys, for operators.
func (p *Pages) keysPage(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	cursor := r.URL.Query().Get("cursor")
	all, err := p.service.People.AllKeys(r.Context(), v.Caller(), service.Page{Limit: keysListed, Cursor: cursor})
	if err != nil {
		return err
	}
	view := &keysView{Older: all.Next, First: cursor == ""}
	now := time.Now()
	for _, k := range all.Keys {
		view.Keys = append(view.Keys, settings.KeyRow{Key: k, Expired: !k.Expires.IsZero() && now.After(k.Expires)})
	}
	return p.web.Render(w, r, v, http.StatusOK, "keys", web.Page{Title: "API keys", Active: "operations", Data: view})
}

const keysListed = 100

// limitsView is the page of the limits of a user or of a key, for operators.
type limitsView struct {
	User models.User
	Key  *client.Key // nil: of the user
	Rows []settings.LimitRow
	Why  string
	// Wrong has the errors of the form by field.
	Wrong map[string]string
}

// showLimitsOf is GET /operations/users/{id}/limits and GET /operations/users/{id}/keys/{key}/limits, for operators.
func (p *Pages) showLimitsOf(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	return p.showLimits(w, r, v, http.StatusOK, &limitsView{}, nil)
}

// showLimits shows the limits of a user or a key. texts are the values of the form; nil: those
// in effect.
func (p *Pages) showLimits(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, view *limitsView,
	texts map[models.Limit]string,
) error {
	now, err := p.service.Limits.LimitsOf(r.Context(), v.Caller(), r.PathValue("id"), r.PathValue("key"))
	if err != nil {
		return err
	}
	if view.User, err = p.service.People.User(r.Context(), v.Caller(), now.User); err != nil {
		return err
	}
	of := view.User.Name
	if now.Key != "" {
		keys, err := p.service.People.KeysOf(r.Context(), v.Caller(), now.User)
		if err != nil {
			return err
		}
		for i := range keys {
			if keys[i].ID == now.Key {
				view.Key, of = &keys[i], cmp.Or(keys[i].Name, keys[i].ID)
			}
		}
	}
	view.Rows = settings.LimitRows(&now)
	for i := range view.Rows {
		if texts != nil {
			view.Rows[i].Text = texts[models.Limit(view.Rows[i].Limit)]
		}
	}
	return p.web.Render(w, r, v, status, "limits", web.Page{Title: "Limits of " + of, Active: "operations", Data: view})
}

// setLimits is POST to the path of limits, for operators. An empty field takes the default; a key has none.
func (p *Pages) setLimits(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, web.MaxForm)
	if err := r.ParseForm(); err != nil {
		return web.BadForm(err)
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
		return p.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	_, err := p.service.Limits.SetLimits(r.Context(), v.Caller(), r.PathValue("id"), r.PathValue("key"), limits, view.Why)
	if view.Wrong = web.WrongFields(err); view.Wrong != nil {
		return p.showLimits(w, r, v, http.StatusUnprocessableEntity, view, texts)
	}
	if err != nil {
		return err
	}
	return web.SeeOther(w, r, r.URL.Path)
}
