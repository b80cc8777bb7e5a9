package providers

import (
	"net/http"
	"net/url"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/service"
)

// listedView is the page of what a provider suppresses and we do not.
type listedView struct {
	Provider Provider
	List     []client.ProviderSuppression
	Next     string // URL of the next page, or ""
}

// Of returns what an entry is about, for the path of its question.
func (v *listedView) Of(e *client.ProviderSuppression) string {
	return "/providers/" + url.PathEscape(v.Provider.Name) + "/suppressions/" + url.PathEscape(e.List) + "/" +
		url.PathEscape(e.Email) + "/clear"
}

// listedAtProvider is GET /providers/{name}/suppressions, for operators.
func (p *Pages) listedAtProvider(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	providers, err := p.Now()
	if err != nil {
		return err
	}
	name, view := r.PathValue("name"), &listedView{}
	for i := range providers {
		if providers[i].Name == name {
			view.Provider = providers[i]
		}
	}
	at := service.Page{Cursor: r.URL.Query().Get("cursor")}
	list, err := p.service.Suppressions.ProviderSuppressions(r.Context(), v.Caller(), name, at)
	if err != nil {
		return err
	}
	view.List = list.Suppressions
	if list.Next != "" {
		view.Next = "/providers/" + url.PathEscape(name) + "/suppressions?" + url.Values{"cursor": {list.Next}}.Encode()
	}
	title := "Suppressed at " + view.Provider.Info.Title
	return p.web.Render(w, r, v, http.StatusOK, "listed", web.Page{Title: title, Data: view})
}

// askClear is GET /providers/{name}/suppressions/{list}/{email}/clear, for operators.
func (p *Pages) askClear(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	name, email := r.PathValue("name"), r.PathValue("email")
	if !p.web.Providers.Has(name) {
		return web.ErrNoPage
	}
	return p.web.Ask(w, r, v, &web.Question{
		Title: "Clear " + email + " at " + p.web.Providers.Named(name) + "?",
		Do:    "Clear",
		Back:  "/providers/" + url.PathEscape(name) + "/suppressions",
		Text: []string{
			"The address is removed from the provider's list " + r.PathValue("list") + ". Mail to it is delivered again.",
			"If the mailbox still does not exist, the bounces cost the reputation of all mail at this provider.",
		},
	})
}
