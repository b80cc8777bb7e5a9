package brevo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// lists are the blocked contacts. Each entry has a reason of its own.
var lists = []models.ProviderList{{Name: "blockedContacts", Reason: models.HardBounce}}

// blocked are the reasons of entries that suppress an address here, too. An entry that the customer or the API added
// holds only at Brevo.
var blocked = map[parse.Str]models.SuppressionReason{
	"hardBounce":           models.HardBounce,
	"contactFlaggedAsSpam": models.Complaint,
	"unsubscribedViaEmail": models.Unsubscribe,
	"unsubscribedViaMA":    models.Unsubscribe,
}

const (
	pageSize = 100  // of the blocked contacts, and of the log if it ignores the size
	logSize  = 2500 // of the log
	logDays  = 90   // that it has
)

// ReadList implements models.ProviderLists. Entries are selected by days, of a zone that is not known. An entry holds
// for one sender, so that its category is his address, but a mailbox that does not exist has none for anybody.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct {
		Email, SenderEmail, BlockedAt parse.Str
		Reason                        struct{ Code, Message parse.Str }
	}
	offset, err := strconv.Atoi(cmp.Or(q.Cursor, "0"))
	if err != nil || offset < 0 {
		return models.ListPage{}, fmt.Errorf("%w: the cursor is no page of the list", models.ErrInvalid)
	}
	form := url.Values{"limit": {strconv.Itoa(pageSize)}, "offset": {strconv.Itoa(offset)}, "sort": {"asc"}}
	if !q.From.IsZero() {
		form.Set("startDate", q.From.UTC().Add(-24*time.Hour).Format(time.DateOnly))
		form.Set("endDate", q.To.UTC().Add(24*time.Hour).Format(time.DateOnly))
	}
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		var in struct{ Contacts []json.RawMessage }
		err := p.Ask(ctx, http.MethodGet, "/v3/smtp/blockedContacts?"+form.Encode(), nil, &in)
		if len(in.Contacts) < pageSize {
			return in.Contacts, "", err
		}
		return in.Contacts, strconv.Itoa(offset + pageSize), err
	}, func(_ models.ProviderList, e *entry) []models.Listed {
		found := kind.Entry(e.Email, e.BlockedAt, blocked[e.Reason.Code], e.Reason.Message)
		for i := range found {
			if found[i].Reason != models.HardBounce {
				found[i].Category = string(e.SenderEmail)
			}
		}
		return found
	})
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	return p.Remove(ctx, list, http.MethodDelete, "/v3/smtp/blockedContacts/"+url.PathEscape(address), nil, nil)
}

// LookUp implements models.EventLookup. It asks for each wanted attempt by its tag. Events without our tag are left
// out: the filter by tags is not documented well, and could be ignored.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	days := min(int(time.Since(q.From).Hours()/24)+2, logDays)
	form := url.Values{"limit": {strconv.Itoa(logSize)}, "days": {strconv.Itoa(days)}, "sort": {"asc"}}
	if q.Recipient != "" {
		form.Set("email", q.Recipient)
	}
	for _, tag := range tags(&q) {
		if tag != "" {
			form.Set("tags", `["`+tag+`"]`)
		}
		if err := p.read(ctx, &q, form, post); err != nil {
			return err
		}
	}
	return nil
}

// read posts the wanted events of all pages of the log. A page may have fewer events than it is asked for.
func (p *Adapter) read(ctx context.Context, q *models.LookupQuery, form url.Values, post func([]byte) error) error {
	var page, last struct{ Events []entry }
	for offset := 0; ; offset += len(page.Events) {
		form.Set("offset", strconv.Itoa(offset))
		last.Events, page.Events = page.Events, nil
		if err := p.Ask(ctx, http.MethodGet, "/v3/smtp/statistics/events?"+form.Encode(), nil, &page); err != nil {
			return err
		}
		if len(page.Events) > 0 && slices.Equal(page.Events, last.Events) {
			return fmt.Errorf("%w: a page of the log follows itself", models.ErrInvalid)
		}
		for i := range page.Events {
			if body := page.Events[i].webhook(q); body != nil {
				if err := post(body); err != nil {
					return err
				}
			}
		}
		if len(page.Events) < pageSize {
			return nil
		}
	}
}

// tags returns the tags of the attempts that a query wants, or "" for all events.
func tags(q *models.LookupQuery) (out []string) {
	for _, chunk := range slices.SortedFunc(maps.Keys(q.Chunks), models.ID.Compare) {
		if len(q.Attempts[chunk]) == 0 {
			return []string{""}
		}
		for _, n := range q.Attempts[chunk] {
			out = append(out, kind.Tag(chunk, n))
		}
	}
	if q.Chunks == nil {
		return []string{""}
	}
	return out
}

// An entry is an event in the log.
type entry struct {
	Event, Email, Date, MessageID, Reason, Link, Tag parse.Str
}

// webhook returns an entry as webhooks hold it, or nil if it is not wanted.
func (e *entry) webhook(q *models.LookupQuery) []byte {
	at, ok := parse.Time(e.Date)
	tag := ourTag(e.Tag, nil)
	chunk, _, why := parse.OurTag(tag)
	if !ok || at.Before(q.From) || at.After(q.To) || why != "" || !q.Want(chunk) {
		return nil
	}
	body, err := kind.JSON(map[string]any{"event": e.Event, "email": e.Email, "message-id": e.MessageID,
		"reason": e.Reason, "link": e.Link, "ts_epoch": at.UnixMilli(), "tags": []string{tag}})
	if err != nil {
		return nil
	}
	return body
}

// Inspect implements inspect.Inspector. It reads the account, the domains and the webhooks.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var account struct{ Relay struct{ Enabled bool } }
	if err := p.Ask(ctx, http.MethodGet, "/v3/account", nil, &account); err != nil {
		return a, p.BadKey(&a, err, "Create a key at Brevo (SMTP & API → API keys), allow the address of this server "+
			"(Security → Authorised IPs), and set it as api_key.")
	}
	a.Check("key", "may send mail", account.Relay.Enabled, "is of an account that may not send transactional mail yet",
		"Ask Brevo to activate transactional email.")
	var domains struct {
		Domains []struct {
			Name          string `json:"domain_name"`
			Authenticated bool
		}
	}
	if err := p.Ask(ctx, http.MethodGet, "/v3/senders/domains", nil, &domains); err != nil {
		return a, err
	}
	for _, d := range domains.Domains {
		a.Check("domain", d.Name+" is authenticated", d.Authenticated, d.Name+" is not authenticated",
			"Publish its DNS records at Brevo (Senders, Domains & Dedicated IPs).")
	}
	if webhookURL == "" {
		return a, nil
	}
	var in struct {
		Webhooks []struct {
			URL    string
			Events []string
			Auth   *struct{ Type string }
		}
	}
	err = p.Ask(ctx, http.MethodGet, "/v3/webhooks?type=transactional", nil, &in)
	if status, _ := kind.Status(err); err != nil && status != http.StatusNotFound { // there is none
		return a, err
	}
	var hooks []kind.Hook
	for _, w := range in.Webhooks {
		if slices.Contains(w.Events, "sent") { // its other name
			w.Events = append(w.Events, "request")
		}
		hooks = append(hooks, kind.Hook{URL: w.URL, Events: w.Events, Secret: w.Auth != nil})
	}
	events.InspectHooks(&a, webhookURL, hooks,
		"Add a webhook at Brevo (Transactional → Settings → Webhook) with the URL "+webhookURL+" and these events.",
		"Set the authentication of the webhook to what webhook_key has.")
	return a, nil
}
