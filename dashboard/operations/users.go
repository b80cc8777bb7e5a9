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

// controlled leads to the page of the user that was opened, or back to the list.
func (p *Pages) controlled(w http.ResponseWriter, r *http.Request, _ *web.Visitor, done *web.Result) error {
	if done.Form.Get("do") == "open" {
		return web.SeeOther(w, r, "/operations/users/"+url.PathEscape(done.Form.Text("id")))
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

// showUser shows the page of a user.
func (p *Pages) showUser(w http.ResponseWriter, r *http.Request, v *web.Visitor, status int, form *web.Form) error {
	u, err := p.service.People.UserView(r.Context(), v.Caller(), r.PathValue("id"))
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

// showLimits shows the limits of a user or a key.
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
	if status == http.StatusOK {
		view.Form = web.NewForm(url.Values{})
		for _, l := range now.Limits {
			if l.Set {
				view.Form.Set(l.Limit, strconv.FormatInt(l.Value, 10))
			}
		}
	}
	return p.web.Render(w, r, v, status, "limits", web.Page{Title: "Limits of " + of, Data: view})
}
