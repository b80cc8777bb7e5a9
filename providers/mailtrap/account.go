package mailtrap

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// lists are the suppressions. Each entry has a reason of its own.
var lists = []models.ProviderList{{Name: "suppressions", Reason: models.HardBounce}}

// suppressed are the reasons of entries that suppress an address here, too. An imported entry holds only at Mailtrap.
var suppressed = map[parse.Str]models.SuppressionReason{
	"hard bounce":    models.HardBounce,
	"spam complaint": models.Complaint,
	"unsubscription": models.Unsubscribe,
}

// ReadList implements models.ProviderLists. The size of a page is not documented, so that the last one is empty. An
// entry other than a bounce holds for a stream and a domain, which are its category.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct {
		Email      parse.Str
		Type       parse.Str
		Created    parse.Str `json:"created_at"`
		Stream     parse.Str `json:"sending_stream"`
		DomainName parse.Str `json:"domain_name"`
		Response   parse.Str `json:"message_esp_response"`
	}
	form := url.Values{"end_time": {q.To.UTC().Add(time.Second).Format(time.RFC3339)}}
	if !q.From.IsZero() {
		form.Set("start_time", q.From.UTC().Format(time.RFC3339))
	}
	if q.Cursor != "" {
		form.Set("last_id", q.Cursor)
	}
	return kind.ReadList(&p.Base, q.List, func() (items []json.RawMessage, next string, err error) {
		err = p.Ask(ctx, http.MethodGet, "/api/suppressions?"+form.Encode(), nil, &items)
		var last struct{ ID parse.Str }
		if len(items) > 0 {
			parse.Into(items[len(items)-1], &last)
		}
		if string(last.ID) == q.Cursor { // it follows itself
			last.ID = ""
		}
		return items, string(last.ID), err
	}, func(_ models.ProviderList, e *entry) []models.Listed {
		found := kind.Entry(e.Email, e.Created, suppressed[e.Type], e.Response)
		for i := range found {
			if found[i].Reason != models.HardBounce {
				stream := strings.TrimPrefix(string(e.Stream), "any")
				found[i].Category = strings.TrimSpace(stream + " " + string(e.DomainName))
			}
		}
		return found
	})
}

// Unlist implements models.ProviderLists. An address may have an entry for each stream and domain.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	var answer json.RawMessage
	err := p.Remove(ctx, list, http.MethodGet, "/api/suppressions?email="+url.QueryEscape(address), nil, &answer)
	var found []struct{ ID, Email parse.Str }
	parse.Into(answer, &found)
	for _, e := range found {
		if err == nil && strings.EqualFold(string(e.Email), address) {
			err = p.Remove(ctx, list, http.MethodDelete, "/api/suppressions/"+url.PathEscape(string(e.ID)), nil, nil)
		}
	}
	return err
}

// A logged is a message in the logs.
type logged struct {
	ID        parse.Str       `json:"message_id"`
	To        parse.Str       `json:"to"`
	Sent      parse.Str       `json:"sent_at"`
	Variables json.RawMessage `json:"custom_variables"`
	Events    []struct {
		Type    parse.Str `json:"event_type"`
		At      parse.Str `json:"created_at"`
		Details struct {
			Status   parse.Str `json:"email_service_provider_status"`
			Response parse.Str `json:"email_service_provider_response"`
			Category parse.Str `json:"bounce_category"`
			Reason   parse.Str `json:"reject_reason"`
		}
	}
}

// LookUp implements models.EventLookup. It searches the messages that were sent in the time of the query, by their
// category, and reads the events of those that are wanted. Mailtrap ignores filters that it does not know, so that the
// variables of each message decide.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	form := url.Values{"filters[sent_after]": {q.From.UTC().Format(time.RFC3339)},
		"filters[sent_before]": {q.Until().UTC().Add(time.Second).Format(time.RFC3339)}}
	if q.Recipient != "" {
		form.Set("filters[to][operator]", "ci_equal")
		form.Set("filters[to][value]", q.Recipient)
	}
	if q.Chunks == nil {
		return p.search(ctx, &q, form, post)
	}
	for chunk := range q.Chunks {
		form.Set("filters[category][operator]", "equal")
		form.Set("filters[category][value]", chunk.String())
		if err := p.search(ctx, &q, form, post); err != nil {
			return err
		}
	}
	return nil
}

// search reads all pages of a search.
func (p *Adapter) search(
	ctx context.Context, q *models.LookupQuery, form url.Values, post func(body []byte) error,
) error {
	return kind.Pages(func(cursor string) (string, error) {
		var page struct {
			Messages []logged
			Next     parse.Str `json:"next_page_cursor"`
		}
		if form.Del("search_after"); cursor != "" {
			form.Set("search_after", cursor)
		}
		err := p.Ask(ctx, http.MethodGet, "/api/email_logs?"+form.Encode(), nil, &page)
		for i := 0; i < len(page.Messages) && err == nil; i++ {
			var own kind.Ours
			parse.Into(page.Messages[i].Variables, &own)
			if log, _, why := parse.Ours(own.Log, own.Attempt); why == "" && q.Want(log.ChunkID()) {
				err = p.readMessage(ctx, &page.Messages[i], post)
			}
		}
		if len(page.Messages) == 0 {
			page.Next = ""
		}
		return string(page.Next), err
	})
}

// readMessage posts the events of a message as webhooks hold them, and that Mailtrap has it. That is known even if it
// has no details of the message yet.
func (p *Adapter) readMessage(ctx context.Context, m *logged, post func(body []byte) error) error {
	err := p.Ask(ctx, http.MethodGet, "/api/email_logs/"+url.PathEscape(string(m.ID)), nil, m)
	if status, _ := kind.Status(err); err != nil && status != http.StatusNotFound {
		return err
	}
	of := func(name, at parse.Str) map[string]any {
		return map[string]any{"event": name, "timestamp": at, "message_id": m.ID, "email": m.To,
			"custom_variables": m.Variables}
	}
	list := []map[string]any{of("enqueued", m.Sent)}
	for i := range m.Events {
		e, d := of(m.Events[i].Type, m.Events[i].At), &m.Events[i].Details
		e["response_code"], e["response"] = d.Status, d.Response
		e["bounce_category"], e["reason"] = d.Category, d.Reason
		list = append(list, e)
	}
	body, err := kind.JSON(map[string]any{"events": list})
	if err != nil {
		return err
	}
	return post(body)
}

// Inspect implements inspect.Inspector. It reads the domains and the webhooks.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var domains struct {
		Data []struct {
			Name       string `json:"domain_name"`
			Verified   bool   `json:"dns_verified"`
			Compliance string `json:"compliance_status"`
		}
	}
	if err := p.Ask(ctx, http.MethodGet, "/api/domains", nil, &domains); err != nil {
		return a, p.BadKey(&a, err, "Create an API token at Mailtrap (Settings → API Tokens) with admin access to the "+
			"domain and to its logs, and set it as api_key.")
	}
	a.Add(inspect.OK, "key", "is valid", "")
	for _, d := range domains.Data {
		a.Check("domain", d.Name+" is verified", d.Verified, d.Name+" is not verified",
			"Publish its DNS records at Mailtrap (Sending Domains).")
		if d.Compliance == "suspended" || d.Compliance == "non_compliant" {
			a.Add(inspect.Wrong, "domain", d.Name+" may not send: "+d.Compliance, "Ask Mailtrap's support.")
		}
	}
	if webhookURL == "" {
		return a, nil
	}
	var in struct {
		Data []struct {
			URL    string
			Active bool
			Format string   `json:"payload_format"`
			Events []string `json:"event_types"`
		}
	}
	if err := p.Ask(ctx, http.MethodGet, "/api/webhooks", nil, &in); err != nil {
		return a, err
	}
	var on []string
	for _, w := range in.Data {
		if w.URL == webhookURL && w.Active && w.Format != "jsonlines" {
			on = append(on, w.Events...)
		}
	}
	events.Inspect(&a, webhookURL, "do not go to "+webhookURL+" as JSON for: ",
		"Add a webhook at Mailtrap (Settings → Webhooks) with the URL "+webhookURL+", the format JSON and these events.",
		func(name string) bool { return slices.Contains(on, name) })
	return a, nil
}
