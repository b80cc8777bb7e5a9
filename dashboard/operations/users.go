package operations

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/settings"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// userForms are the operations on a user that are no verbs, by the value of the button.
var userForms = map[string]string{"open": "getUser", "senders": "setSenders"}

// controlUser is POST /operations/users, for operators: it sets the senders of a user, or
// pauses, resumes, disables, enables or logs out the user, or opens the user's page.
func (p *Pages) controlUser(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	form, err := web.ReadForm(w, r, web.MaxForm, "do", "page")
	if err != nil {
		return err
	}
	do, id, onPage := form.Get("do"), form.Text("id"), form.Get("page") == "user"
	name := cmp.Or(userForms[do], p.web.Operations.Verb("users", do))
	if name == "" {
		return web.ErrNoPage
	}
	if do != "senders" { // the fields of the other buttons
		form.Own("senders")
	}
	if do == "open" {
		form.Own("why")
	}
	_, _, err = p.web.Operations.Do(r, v.Caller(), name, form)
	if err != nil {
		return form.Refused(err, func(status int) error {
			if onPage {
				return p.showUser(w, r, v, status, id, form)
			}
			return p.showOperations(w, r, v, status, "users", form)
		})
	}
	if onPage || do == "open" {
		return web.SeeOther(w, r, "/operations/users/"+url.PathEscape(id))
	}
	return web.SeeOther(w, r, "/operations/users")
}

// userView is the operators' page of a user.
type userView struct {
	client.User
	DisabledBy string // name
	Self       bool   // it is the visitor
	Keys       []settings.KeyRow
	Revoked    int
	Sessions   []web.OpenSession
	Form       *web.Form
}

// userPage is GET /operations/users/{id}, for operators.
func (p *Pages) userPage(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	return p.showUser(w, r, v, http.StatusOK, r.PathValue("id"), &web.Form{})
}

func (p *Pages) showUser(
	w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, name string, form *web.Form,
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
	return p.web.Render(w, r, v, status, "user", web.Page{Title: u.Name, Data: view})
}

// revokeKeyOf is POST /operations/users/{id}/keys/{key}/revoke, for operators.
func (p *Pages) revokeKeyOf(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	_, form, err := p.web.Operations.Command(w, r, v.Caller(), "revokeKey", "page")
	if err != nil {
		return err
	}
	to := "/operations/users/" + url.PathEscape(r.PathValue("id")) + "#keys"
	if form.Get("page") == "keys" {
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
	return p.web.Render(w, r, v, http.StatusOK, "keys", web.Page{Title: "API keys", Data: view})
}

const keysListed = 100

// limitsView is the page of the limits of a user or of a key, for operators.
type limitsView struct {
	User models.User
	Key  *client.Key // nil: of the user
	Rows []settings.LimitRow
	Form *web.Form
}

// showLimitsOf is GET /operations/users/{id}/limits and GET /operations/users/{id}/keys/{key}/limits, for operators.
func (p *Pages) showLimitsOf(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	return p.showLimits(w, r, v, http.StatusOK, nil)
}

// showLimits shows the limits of a user or a key. The form is nil at first.
func (p *Pages) showLimits(w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, form *web.Form) error {
	now, err := p.service.Limits.LimitsOf(r.Context(), v.Caller(), r.PathValue("id"), r.PathValue("key"))
	if err != nil {
		return err
	}
	view := &limitsView{Rows: settings.LimitRows(&now), Form: form}
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
	if form == nil {
		view.Form = web.NewForm(url.Values{})
		for _, l := range now.Limits {
			if l.Set {
				view.Form.Set(l.Limit, strconv.FormatInt(l.Value, 10))
			}
		}
	}
	return p.web.Render(w, r, v, status, "limits", web.Page{Title: "Limits of " + of, Data: view})
}

// setLimits is POST to the path of limits, for operators. An empty field takes the default; a key has none.
func (p *Pages) setLimits(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	do := "setUserLimits"
	if r.PathValue("key") != "" {
		do = "setKeyLimits"
	}
	if _, form, err := p.web.Operations.Command(w, r, v.Caller(), do); err != nil {
		return form.Refused(err, func(status int) error { return p.showLimits(w, r, v, status, form) })
	}
	return web.SeeOther(w, r, r.URL.Path)
}
