package resend

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// lists are the suppressions by their origin. Those that the customer added hold only at Resend.
var lists = []models.ProviderList{
	{Name: "bounce", Reason: models.HardBounce},
	{Name: "complaint", Reason: models.Complaint},
	{Name: "manual"},
}

// page returns the items of the page after an entry of a list, and the ID of its last one; "": there are no more.
func (p *Adapter) page(ctx context.Context, path, after string) (items []json.RawMessage, next string, err error) {
	if after != "" {
		path += "&after=" + url.QueryEscape(after)
	}
	var in struct {
		Data []json.RawMessage `json:"data"`
		More bool              `json:"has_more"`
	}
	err = p.Ask(ctx, http.MethodGet, path, nil, &in)
	var last struct{ ID string }
	if in.More && len(in.Data) > 0 {
		parse.Into(in.Data[len(in.Data)-1], &last)
	}
	return in.Data, last.ID, err
}

// ReadList implements models.ProviderLists. Entries cannot be selected by time.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct {
		Email parse.Str
		At    parse.Str `json:"created_at"`
	}
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		return p.page(ctx, "/suppressions?limit=100&origin="+q.List, q.Cursor)
	}, func(list models.ProviderList, e *entry) []models.Listed {
		return kind.Entry(e.Email, e.At, list.Reason, "")
	})
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	return p.Remove(ctx, list, http.MethodDelete, "/suppressions/"+url.PathEscape(address), nil, nil)
}

// Inspect implements inspect.Inspector. It lists the domains and the webhooks, which a sending key may not.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	items, _, err := p.page(ctx, "/domains?limit=100", "")
	if status, body := kind.Status(err); status != 0 && strings.Contains(string(body), "restricted_api_key") {
		a.Add(inspect.OK, "key", "may send mail", "")
		a.Add(inspect.Warning, "key", "may only send, and not read domains, webhooks, suppressions and logs",
			"Use a key with full access (API Keys), so that lost webhooks can be looked up.")
		return a, nil
	}
	if err != nil {
		return a, p.BadKey(&a, err, "Create a key at Resend (API Keys), and set it as api_key.")
	}
	a.Add(inspect.OK, "key", "may send mail", "")
	for _, raw := range items {
		var d struct{ Name, Status string }
		parse.Into(raw, &d)
		a.Check("domain", d.Name+" is verified", d.Status == "verified", d.Name+" is not verified: "+d.Status,
			"Publish its DNS records and press Verify at Resend (Domains).")
	}
	if len(items) == 0 {
		a.Add(inspect.Wrong, "domains", "no domain is verified", "Add the domain that you send from at Resend (Domains).")
	}
	if webhookURL == "" {
		return a, nil
	}
	items, _, err = p.page(ctx, "/webhooks?limit=100", "")
	var set []string
	for _, raw := range items {
		var w struct {
			Endpoint, Status string
			Events           []string
		}
		if parse.Into(raw, &w); w.Endpoint == webhookURL && w.Status != "disabled" {
			set = append(set, w.Events...)
		}
	}
	events.Inspect(&a, webhookURL, "do not go to "+webhookURL+" for: ",
		"Add a webhook at Resend (Webhooks) with the URL "+webhookURL+" and these events.",
		func(name string) bool { return slices.Contains(set, name) })
	return a, err
}
