package dashboard

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// settingsView is what one user sets.
type settingsView struct {
	Keys     []keyRow
	Revoked  int
	Form     keyForm
	Secret   string // of the key that was just made
	Sessions []openSession
	Accounts []AccountInfo
	Base     string
	Theme    string
}

// keyRow is a key in the list.
type keyRow struct {
	models.Key
	Expired bool
}

// keyForm is what was typed to make a key, and what is wrong with it.
type keyForm struct {
	Name  string
	Wrong map[string]string // by field
}

const maxKeyName = 100

// settings is GET /settings.
func (d *Dashboard) settings(w http.ResponseWriter, r *http.Request, v *visitor) error {
	return d.showSettings(w, r, v, http.StatusOK, &settingsView{})
}

func (d *Dashboard) showSettings(w http.ResponseWriter, r *http.Request, v *visitor, status int, view *settingsView) error {
	keys, err := d.service.Keys(r.Context(), v.caller())
	if err != nil {
		return err
	}
	now := time.Now()
	for _, k := range slices.Backward(keys) {
		if !k.Revoked.IsZero() {
			view.Revoked++
			continue
		}
		view.Keys = append(view.Keys, keyRow{Key: k, Expired: !k.Expires.IsZero() && now.After(k.Expires)})
	}
	if view.Sessions, err = d.sessions.list(r.Context(), v.User); err != nil {
		return err
	}
	for i := range view.Sessions {
		view.Sessions[i].Here = view.Sessions[i].ID == v.ID
	}
	view.Accounts, view.Base, view.Theme = d.accounts, d.public.String(), theme(r)
	d.render(w, r, v, status, "settings", page{Title: "Settings", Active: "settings", Data: view})
	return nil
}

// createKey is POST /settings/keys. The answer shows the key, once; it is no
// redirect, since the secret may stand in no address and nowhere else.
func (d *Dashboard) createKey(w http.ResponseWriter, r *http.Request, v *visitor) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return service.Fail(service.Malformed, "bad_form", "The form cannot be read.").Because(err)
	}
	f := keyForm{Name: strings.TrimSpace(r.PostForm.Get("name")), Wrong: map[string]string{}}
	switch {
	case f.Name == "":
		f.Wrong["name"] = "Give it a name, so that you know later what it is for."
	case len(f.Name) > maxKeyName:
		f.Wrong["name"] = "A name has at most 100 letters."
	}
	if len(f.Wrong) > 0 {
		return d.showSettings(w, r, v, http.StatusUnprocessableEntity, &settingsView{Form: f})
	}
	_, secret, err := d.service.CreateKey(r.Context(), v.caller(), f.Name, models.KeyOptions{})
	if err != nil {
		return err
	}
	return d.showSettings(w, r, v, http.StatusOK, &settingsView{Secret: secret})
}

// revokeKey is POST /settings/keys/{id}/revoke.
func (d *Dashboard) revokeKey(w http.ResponseWriter, r *http.Request, v *visitor) error {
	if err := d.service.RevokeKey(r.Context(), v.caller(), r.PathValue("id")); err != nil {
		return err
	}
	http.Redirect(w, r, "/settings#keys", http.StatusSeeOther)
	return nil
}

// endSession is POST /settings/sessions/{id}/end; the id may be "all".
func (d *Dashboard) endSession(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id := r.PathValue("id")
	open, err := d.sessions.list(r.Context(), v.User)
	if err != nil {
		return err
	}
	found := false
	for i := range open {
		if id == "all" || open[i].ID == id {
			found = true
			if err := d.sessions.end(r.Context(), v.User, open[i].ID); err != nil {
				return err
			}
		}
	}
	if !found {
		return errNoPage
	}
	http.Redirect(w, r, "/settings#sessions", http.StatusSeeOther)
	return nil
}
