package mailgun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// Mailgun's lists (docs: "Suppressions") are in the order of addresses and cannot be selected by
// time. An unsubscription from some tags is one from the categories of these names. A tag that is no name
// of a category is left out.
var lists = []models.ProviderList{
	{Name: "bounces", Reason: models.HardBounce},
	{Name: "complaints", Reason: models.Complaint},
	{Name: "unsubscribes", Reason: models.Unsubscribe},
}

// category matches the tags that can be names of categories.
var category = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// ReadList implements models.ProviderLists. The cursor is the URL of the page.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	return kind.ReadList(&p.Base, q.List, func() (items []json.RawMessage, next string, err error) {
		path := p.path("/" + q.List + "?limit=1000")
		if q.Cursor != "" {
			path, err = p.Path(q.Cursor)
		}
		var in page
		if err == nil {
			err = p.Ask(ctx, http.MethodGet, path, nil, &in)
		}
		if len(in.Items) > 0 && in.Paging.Next != p.Root+path {
			next = in.Paging.Next
		}
		return in.Items, next, err
	}, entries)
}

// A listed is an entry of any of the lists.
type listed struct {
	Address parse.Str   `json:"address"`
	Created parse.Str   `json:"created_at"` // RFC 2822
	Code    parse.Str   `json:"code"`
	Error   parse.Str   `json:"error"`
	Tags    []parse.Str `json:"tags"`
}

// entries returns what an entry of a list says: one entry for each tag.
func entries(list models.ProviderList, e *listed) (out []models.Listed) {
	if list.Name == "bounces" {
		list.Reason = parse.ListedBounce(string(e.Code), string(e.Error))
	}
	one := kind.Entry(e.Address, e.Created, list.Reason, e.Error)
	if len(e.Tags) == 0 || slices.Contains(e.Tags, "*") {
		return one
	}
	for _, tag := range e.Tags {
		if len(one) > 0 && category.MatchString(string(tag)) {
			tagged := one[0]
			tagged.Category = string(tag)
			out = append(out, tagged)
		}
	}
	return out
}

// Unlist implements models.ProviderLists. An address is removed with all its tags.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	path := p.path("/" + list + "/" + url.PathEscape(strings.ToLower(address)))
	return p.Remove(ctx, list, http.MethodDelete, path, nil, nil)
}

// path returns a path below that of the domain.
func (p *Adapter) path(below string) string { return version + "/" + p.Sender + below }

const (
	lookupPage = 100       // events
	logsPause  = time.Hour // for which the Events API is used after the Logs API refused the key
)

// LookUp implements models.EventLookup. It queries the Logs API (docs: "Logs"), or the Events API (docs: "Events"),
// which is deprecated, if the other refuses the key or does not exist. The Events API must be read with a lag of half
// an hour. It is not documented that a log is complete, so that a query without a result proves nothing.
// The message id cannot be asked for: it is in the answer, which an unknown outcome lacks.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	err := models.ErrNoLookup
	if since := time.Since(time.Unix(0, p.logsRefused.Load())); since.Abs() > logsPause {
		if err = p.readLogs(ctx, q, post); errors.Is(err, models.ErrNoLookup) {
			p.logsRefused.Store(time.Now().UnixNano())
		}
	}
	if errors.Is(err, models.ErrNoLookup) {
		err = p.readEvents(ctx, q, post)
	}
	return err
}

// readLogs reads the Logs API. Its times are whole seconds, so that it may return events
// just outside the query.
func (p *Adapter) readLogs(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	var filter []any
	for attribute, value := range map[string]string{"domain": p.Sender, "recipient": q.Recipient} {
		if value != "" {
			filter = append(filter, map[string]any{"attribute": attribute, "comparator": "=",
				"values": []map[string]string{{"label": value, "value": value}}})
		}
	}
	pagination := map[string]any{"sort": "timestamp:asc", "limit": lookupPage}
	in := map[string]any{
		"start":      q.From.UTC().Format(time.RFC1123Z),
		"end":        q.To.Add(time.Second - 1).UTC().Format(time.RFC1123Z),
		"filter":     map[string]any{"AND": filter},
		"pagination": pagination,
	}
	for {
		var out page
		if err := p.Ask(ctx, http.MethodPost, "/v1/analytics/logs", in, &out); err != nil {
			return err
		}
		next := out.Pagination.Next
		if more, err := out.post(post); !more || next == "" || next == pagination["token"] {
			return err
		}
		pagination["token"] = next
	}
}

// readEvents reads the Events API.
func (p *Adapter) readEvents(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	form := url.Values{
		"begin":     {epoch(q.From)},
		"end":       {epoch(q.To)},
		"ascending": {"yes"},
		"limit":     {strconv.Itoa(lookupPage)},
	}
	if q.Recipient != "" {
		form.Set("recipient", q.Recipient)
	}
	for path := p.path("/events?" + form.Encode()); ; {
		var out page
		err := p.Ask(ctx, http.MethodGet, path, nil, &out)
		if err != nil {
			return err
		}
		if more, err := out.post(post); !more || out.Paging.Next == "" {
			return err
		}
		if path, err = p.Path(out.Paging.Next); err != nil {
			return err
		}
	}
}

// A page is one of logs, of events or of a list. Lists and events name the next page in another member than logs.
type page struct {
	Items              []json.RawMessage `json:"items"`
	Paging, Pagination struct{ Next string }
}

// post posts the items as webhooks hold them, and reports whether there may be more.
func (in *page) post(post func(body []byte) error) (more bool, err error) {
	for _, item := range in.Items {
		if err := post(slices.Concat([]byte(`{"event-data":`), item, []byte(`}`))); err != nil {
			return false, err
		}
	}
	return len(in.Items) > 0, nil
}

// epoch returns a time in Unix seconds with six decimals.
func epoch(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64) }

// Inspect implements inspect.Inspector. It reads the domain (GET /v3/domains/{domain}) and its webhooks. A sending key
// of the domain may read neither.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var d struct {
		Domain struct {
			State string `json:"state"`
		} `json:"domain"`
		Records []struct {
			Type  string `json:"record_type"`
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"sending_dns_records"`
	}
	err = p.Ask(ctx, http.MethodGet, version+"/domains/"+p.Sender, nil, &d)
	switch status, _ := kind.Status(err); {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return a, p.inspectSendingKey(ctx, &a)
	case status == http.StatusNotFound:
		p.unknownDomain(&a)
		return a, nil
	case err != nil:
		return a, err
	}
	a.Add(inspect.OK, "key", "is one of the account", "")
	a.Check("domain", p.Sender+" is verified", d.Domain.State == "active",
		p.Sender+" is "+d.Domain.State+", and may not send",
		"Publish its DNS records and press Verify at Mailgun (Sending → Domain settings → DNS records).")
	out := inspect.Domain{Name: p.Sender}
	for _, r := range d.Records {
		out.Records = append(out.Records, inspect.Record{Type: strings.ToUpper(r.Type), Name: r.Name, Value: r.Value})
	}
	a.Domains = append(a.Domains, out)
	if webhookURL != "" {
		p.inspectWebhooks(ctx, webhookURL, &a)
	}
	return a, nil
}

func (p *Adapter) unknownDomain(a *inspect.Account) {
	a.Add(inspect.Wrong, "domain", "Mailgun does not know "+p.Sender,
		"Add the domain at Mailgun (Sending → Domains). If it is in the EU, set base_url to https://api.eu.mailgun.net.")
}

// inspectSendingKey finds out whether a key that may not read the domain may send. Mailgun refuses a message without a
// recipient with 400 if the key may send, and with 401 otherwise.
func (p *Adapter) inspectSendingKey(ctx context.Context, a *inspect.Account) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, time.Time{})
	err := p.Post(ctx, models.Request{Method: http.MethodPost, URL: p.Root + p.path("/messages"),
		ContentType: "application/x-www-form-urlencoded", Body: []byte("text=test")}, nil)
	if err != nil {
		return fmt.Errorf("%s cannot be reached: %w", p.Title, err)
	}
	switch x.Status {
	case http.StatusBadRequest:
		a.Add(inspect.OK, "key", "may send mail", "")
		a.Add(inspect.Warning, "key", "is a sending key of the domain, which may not read logs, domain and webhooks",
			"Use a key of the account (Account settings → API security), so that lost webhooks can be looked up.")
		return nil
	case http.StatusNotFound:
		p.unknownDomain(a)
		return nil
	}
	return p.BadKey(a, &transport.RefusedError{Status: x.Status},
		"Create a key at Mailgun (Account settings → API security), and set it as api_key.")
}

func (p *Adapter) inspectWebhooks(ctx context.Context, url string, a *inspect.Account) {
	var set struct {
		Webhooks map[string]struct {
			URL  string   `json:"url"`
			URLs []string `json:"urls"`
		} `json:"webhooks"`
	}
	if err := p.Ask(ctx, http.MethodGet, version+"/domains/"+p.Sender+"/webhooks", nil, &set); err != nil {
		a.Add(inspect.Unknown, "webhooks", "cannot list them: "+err.Error(), "Look at Mailgun (Sending → Webhooks).")
		return
	}
	events.Inspect(a, url, "do not go to "+url+" for: ",
		"Add them at Mailgun (Sending → Webhooks) with the URL "+url+".", func(name string) bool {
			return set.Webhooks[name].URL == url || slices.Contains(set.Webhooks[name].URLs, url)
		})
}
