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

// lists are the suppressions by their origin. Those that somebody added by hand hold only at Resend.
var lists = []models.ProviderList{
	{Name: "bounce", Reason: models.HardBounce},
	{Name: "complaint", Reason: models.Complaint},
	{Name: "manual"},
}

// A page is one of any list of the API (docs: "Pagination").
type page struct {
	Data []json.RawMessage `json:"data"`
	More bool              `json:"has_more"`
}

// page reads the page of a list after an entry, and returns the ID of its last entry; "": there are no more.
func (p *Adapter) page(ctx context.Context, path, after string) (in page, next string, err error) {
	if after != "" {
		path += "&after=" + url.QueryEscape(after)
	}
	err = p.Ask(ctx, http.MethodGet, path, nil, &in)
	var last struct {
		ID string `json:"id"`
	}
	if in.More && len(in.Data) > 0 {
		parse.Into(in.Data[len(in.Data)-1], &last)
	}
	return in, last.ID, err
}

// ReadList implements models.ProviderLists. Entries cannot be selected by time.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (out models.ListPage, err error) {
	list, err := p.List(q.List)
	var in page
	next := ""
	if err == nil {
		in, next, err = p.page(ctx, "/suppressions?limit=100&origin="+q.List, q.Cursor)
	}
	if err != nil {
		return out, kind.ListError(q.List, err)
	}
	type entry struct {
		Email   parse.Str `json:"email"`
		Created parse.Str `json:"created_at"`
	}
	out = kind.Page(in.Data, func(e *entry) []models.Listed {
		at, ok := parse.Time(e.Created)
		if !ok || e.Email == "" {
			return nil
		}
		return []models.Listed{{Email: string(e.Email), Reason: list.Reason, At: at}}
	})
	out.Next = next
	return out, nil
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	if _, err := p.List(list); err != nil {
		return kind.ListError(list, err)
	}
	return p.Remove(ctx, list, http.MethodDelete, "/suppressions/"+url.PathEscape(address), nil, nil)
}

// Inspect implements inspect.Inspector. It lists the domains and the webhooks, which a sending key may not.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	in, _, err := p.page(ctx, "/domains?limit=100", "")
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
	for _, raw := range in.Data {
		var d struct{ Name, Status string }
		parse.Into(raw, &d)
		a.Check("domain", d.Name+" is verified", d.Status == "verified", d.Name+" is not verified: "+d.Status,
			"Publish its DNS records and press Verify at Resend (Domains).")
	}
	if len(in.Data) == 0 {
		a.Add(inspect.Wrong, "domains", "no domain is verified", "Add the domain that you send from at Resend (Domains).")
	}
	if webhookURL == "" {
		return a, nil
	}
	in, _, err = p.page(ctx, "/webhooks?limit=100", "")
	var set []string
	for _, raw := range in.Data {
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
