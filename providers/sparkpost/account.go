package sparkpost

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// lists are the suppressions by their source. Entries that the customer or SparkPost itself added hold only there.
var lists = []models.ProviderList{
	{Name: "Bounce Rule", Reason: models.HardBounce},
	{Name: "Spam Complaint", Reason: models.Complaint},
	{Name: "List Unsubscribe", Reason: models.Unsubscribe},
	{Name: "Unsubscribe Link", Reason: models.Unsubscribe},
	{Name: "Manually Added"},
	{Name: "Compliance"},
}

const (
	api          = "/api/v1/"
	suppressions = api + "suppression-list"
	layout       = "2006-01-02T15:04:05Z"
)

// An entry is one of the suppression list. An address may be there once for each type and mailing list.
type entry struct {
	Recipient, Type, Source, Description, Created, Updated parse.Str

	ListID parse.Str `json:"list_id"`
}

// page reads a page of a resource and returns the path of the next one; "": there are no more.
func (p *Adapter) page(ctx context.Context, path string) (items []json.RawMessage, next string, err error) {
	if !strings.HasPrefix(path, api) {
		return nil, "", models.ErrInvalid // the key must not go elsewhere
	}
	var in struct {
		Results []json.RawMessage
		Links   json.RawMessage
	}
	err = p.Ask(ctx, http.MethodGet, path, nil, &in)
	var link struct{ Next string }
	parse.Into(in.Links, &link)
	var links []struct{ Href, Rel string } // as the suppression list has them
	parse.Into(in.Links, &links)
	for _, l := range links {
		if l.Rel == "next" {
			link.Next = l.Href
		}
	}
	return in.Results, link.Next, err
}

// ReadList implements models.ProviderLists.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		if q.Cursor != "" {
			return p.page(ctx, q.Cursor)
		}
		form := url.Values{"sources": {q.List}, "cursor": {"initial"}, "per_page": {"1000"},
			"to": {q.To.UTC().Add(time.Second).Format(layout)}}
		if !q.From.IsZero() {
			form.Set("from", q.From.UTC().Format(layout))
		}
		return p.page(ctx, suppressions+"?"+form.Encode())
	}, func(list models.ProviderList, e *entry) []models.Listed {
		if list.Reason == models.HardBounce {
			list.Reason = parse.ListedBounce("", string(e.Description))
		}
		out := kind.Entry(e.Recipient, e.Updated, list.Reason, e.Description)
		for i := range out {
			if out[i].Category = string(e.ListID); e.ListID == "" && e.Type == "non_transactional" &&
				list.Reason == models.Unsubscribe {
				out[i].Category = string(e.Type)
			}
		}
		return out
	})
}

// Unlist implements models.ProviderLists. It removes the entries of this list alone.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	var in struct{ Results []entry }
	path := suppressions + "/" + url.PathEscape(address)
	err := p.Remove(ctx, list, http.MethodGet, path, nil, &in)
	for _, e := range in.Results {
		if err == nil && string(e.Source) == list {
			err = p.Remove(ctx, list, http.MethodDelete, path+"?list_id="+url.QueryEscape(string(e.ListID)),
				map[string]parse.Str{"type": e.Type}, nil)
		}
	}
	return err
}

const (
	lookupWindow = 10 * 24 * time.Hour // for which events are kept
	maxURI       = 3500                // 4,096 are documented
	maxPages     = 1000                // that a look-up reads
)

// LookUp implements models.EventLookup. It searches by the time of events, and by the chunks that are wanted, unless
// they are too many for a query.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	now := time.Now()
	from, to := models.LaterOf(q.From, now.Add(time.Minute-lookupWindow)), models.EarlierOf(q.To, now).Add(time.Second)
	if !from.Before(to) {
		return nil
	}
	form := url.Values{"from": {from.UTC().Format(layout)}, "to": {to.UTC().Format(layout)}, "cursor": {"initial"},
		"per_page": {"1000"}}
	if !strings.Contains(q.Recipient, ",") && q.Recipient != "" {
		form.Set("recipients", q.Recipient)
	}
	var chunks []string
	for chunk := range q.Chunks {
		chunks = append(chunks, campaign(chunk))
	}
	if all := strings.Join(chunks, ","); all != "" && len(all) < maxURI {
		form.Set("campaigns", all)
	}
	next := api + "events/message?" + form.Encode()
	for range maxPages {
		items, after, err := p.page(ctx, next)
		if err != nil {
			return err
		}
		if next = after; len(items) == 0 {
			return nil
		}
		body := kind.Writer{}
		body.Begin('[')
		for _, raw := range items {
			body.Begin('{').Key("msys").Begin('{').Key("message_event")
			body = append(body, raw...)
			body.End('}').End('}')
		}
		if err := post(*body.End(']')); err != nil || next == "" {
			return err
		}
	}
	return fmt.Errorf("look up events: %w: more than %d pages", models.ErrPartialLogs, maxPages)
}

// Inspect implements inspect.Inspector. It lists the sending domains and the webhooks.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	items, _, err := p.page(ctx, api+"sending-domains")
	if err != nil {
		return a, p.BadKey(&a, err, "Create a key at SparkPost (API Keys) that may use transmissions, events, suppression "+
			"lists, sending domains and webhooks, and set it as api_key.")
	}
	a.Add(inspect.OK, "key", "may read sending domains", "")
	for _, raw := range items {
		var d struct {
			Domain string
			Status struct {
				Owned bool   `json:"ownership_verified"`
				Legal string `json:"compliance_status"`
			}
		}
		parse.Into(raw, &d)
		a.Check("domain", d.Domain+" is verified", d.Status.Owned && d.Status.Legal == "valid", d.Domain+" is not verified",
			"Publish its DNS records and verify it at SparkPost (Sending Domains).")
	}
	if len(items) == 0 {
		a.Add(inspect.Wrong, "domains", "no domain is verified", "Add the domain that you send from at SparkPost.")
	}
	if webhookURL == "" {
		return a, nil
	}
	items, _, err = p.page(ctx, api+"webhooks")
	var hooks []kind.Hook
	for _, raw := range items {
		var w struct {
			Target string
			Active *bool
			Events []string
			Auth   string            `json:"auth_type"`
			Own    map[string]string `json:"custom_headers"`
		}
		if parse.Into(raw, &w); w.Active == nil || *w.Active {
			hooks = append(hooks, kind.Hook{URL: w.Target, Events: w.Events, Secret: w.Auth == "basic" || len(w.Own) > 0})
		}
	}
	events.InspectHooks(&a, webhookURL, hooks,
		"Add a webhook at SparkPost (Webhooks) with the URL "+webhookURL+" and these events.",
		"Set basic auth of the webhook to what webhook_key has.")
	return a, err
}
