package compose

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service/drafts"
)

// draftsView is the list of drafts.
type draftsView struct {
	Drafts []drafts.Info
	Most   int // drafts that a user may have
}

// listDrafts is GET /drafts.
func (p *Pages) listDrafts(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	list, err := p.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	view := draftsView{list, drafts.MaxDrafts}
	return p.web.Render(w, r, v, http.StatusOK, "drafts", web.Page{Title: "Drafts", Active: "compose", Data: view})
}

// savedDraft is the answer to a script that saves a draft.
type savedDraft struct {
	ID      string `json:"id,omitempty"`
	Version int    `json:"version,omitempty"`
	Code    string `json:"code,omitempty"` // of the error
	Problem string `json:"problem,omitempty"`
}

// saveDraft is POST /drafts: it stores the form of Compose without its files. A script gets JSON.
func (p *Pages) saveDraft(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	saved, err := p.service.Drafts.Save(r.Context(), v.User, c.Draft)
	refused := web.Refused(err)
	if err != nil && refused == nil {
		return err
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		out, status := savedDraft{ID: saved.ID, Version: saved.Version}, http.StatusOK
		if refused != nil {
			out, status = savedDraft{Code: refused.Code, Problem: refused.Detail}, refused.Kind.Status()
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		return json.NewEncoder(w).Encode(out)
	}
	if refused != nil {
		c.Problem = "The draft was not saved. " + refused.Detail
		return p.showCompose(w, r, v, refused.Kind.Status(), c)
	}
	return web.SeeOther(w, r, "/compose?"+url.Values{"draft": {saved.ID}, "saved": {"yes"}}.Encode())
}

// deleteDraft is POST /drafts/{id}/delete.
func (p *Pages) deleteDraft(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	id := r.PathValue("id")
	list, err := p.service.Drafts.List(r.Context(), v.User)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(i drafts.Info) bool { return i.ID == id }) {
		return web.ErrNoPage
	}
	if err := p.service.Drafts.Delete(r.Context(), v.User, id); err != nil {
		return err
	}
	return web.SeeOther(w, r, "/drafts")
}
