package sendgrid

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// The Suppressions API lists 500 entries at most. Pages are numbers of entries. A page that is read while entries are
// removed may leave some out; the next reading from the beginning finds them.
const (
	listPage     = 500
	suppressions = "/v3/suppression/"
)

// lists are the suppression lists. SendGrid goes on to deliver to addresses that were blocked.
var lists = []models.ProviderList{
	{Name: "bounces", Reason: models.HardBounce},
	{Name: "invalid_emails", Reason: models.HardBounce},
	{Name: "spam_reports", Reason: models.Complaint},
	{Name: "unsubscribes", Reason: models.Unsubscribe},
	{Name: "blocks"},
}

// ReadList implements models.ProviderLists. Its times are whole seconds, and both count.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct{ Email, Created, Reason, Status parse.Str }
	return kind.ReadList(&p.Base, q.List, func() (items []json.RawMessage, next string, err error) {
		form := url.Values{"limit": {strconv.Itoa(listPage)}, "end_time": {strconv.FormatInt(q.To.Unix()+1, 10)}}
		if !q.From.IsZero() {
			form.Set("start_time", strconv.FormatInt(q.From.Unix(), 10))
		}
		offset, err := strconv.Atoi(cmp.Or(q.Cursor, "0"))
		if err != nil || offset < 0 {
			return nil, "", models.ErrInvalid
		}
		form.Set("offset", strconv.Itoa(offset))
		err = p.Ask(ctx, http.MethodGet, suppressions+q.List+"?"+form.Encode(), nil, &items)
		if len(items) >= listPage {
			next = strconv.Itoa(offset + len(items))
		}
		return items, next, err
	}, func(list models.ProviderList, e *entry) []models.Listed {
		if list.Name == "bounces" {
			list.Reason = parse.ListedBounce(string(e.Status), string(e.Reason))
		}
		return kind.Entry(e.Email, e.Created, list.Reason, e.Reason)
	})
}

// Unlist implements models.ProviderLists.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	path := suppressions + list
	if list == "unsubscribes" {
		path = "/v3/asm/suppressions/global"
	}
	return p.Remove(ctx, list, http.MethodDelete, path+"/"+url.PathEscape(address), nil, nil)
}

// The Email Logs API (twilio/sendgrid-oai, spec/json/tsg_logs_v3.json): POST /v3/logs lists
// messages by the time at which they were accepted, without pages, and
// GET /v3/logs/{sg_message_id} returns the events of one. It covers 30 days and needs a key
// that may read it. No lag is documented, and not that a list is complete: a query without a result proves nothing.
//
// The message id cannot be asked for: it is in the answer, which an unknown outcome lacks.
const (
	logsEndpoint = "/v3/logs"
	maxListed    = 1000 // messages of one answer
	lookupWindow = 30 * 24 * time.Hour
)

var statuses = []string{"processed", "delivered", "deferred", "dropped", "bounced", "blocked"}

// LookUp implements models.EventLookup. If there are more messages in the time of the query than SendGrid lists, it
// halves the time, and then asks for each status alone. The messages of one request share an id, so that LookUp reads
// one of them to see whether the request's chunk is wanted.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	from := models.LaterOf(q.From, time.Now().Add(-lookupWindow)).UTC().Truncate(time.Second)
	to := q.Until().UTC().Add(time.Second - 1).Truncate(time.Second)
	l := lookup{Adapter: p, query: q, post: post, wanted: map[string]bool{}}
	return l.span(ctx, from, to)
}

type lookup struct {
	*Adapter
	query  models.LookupQuery
	post   func(body []byte) error
	wanted map[string]bool // by id of a request, as far as it is known
}

type summary struct {
	ID string `json:"sg_message_id"`
	To string `json:"to_email"`
}

// span reads the messages that were accepted in [from, to), which are whole seconds.
func (l *lookup) span(ctx context.Context, from, to time.Time) error {
	if !from.Before(to) {
		return nil
	}
	list, err := l.list(ctx, from, to, "")
	if err != nil {
		return err
	}
	if len(list) < maxListed {
		return l.read(ctx, list)
	}
	if half := to.Sub(from) / 2; half >= time.Second {
		middle := from.Add(half.Truncate(time.Second))
		if err := l.span(ctx, from, middle); err != nil {
			return err
		}
		return l.span(ctx, middle, to)
	}
	for _, status := range statuses {
		list, err := l.list(ctx, from, to, status)
		if err != nil {
			return err
		}
		if err := l.read(ctx, list); err != nil {
			return err
		}
		if len(list) >= maxListed {
			return fmt.Errorf("%w: too many messages in one second", models.ErrPartialLogs) // what was found counts
		}
	}
	return nil
}

// list returns the messages that were accepted in [from, to) and have a status; "": any.
func (l *lookup) list(ctx context.Context, from, to time.Time, status string) ([]summary, error) {
	query := fmt.Sprintf(`sg_message_id_created_at >= TIMESTAMP "%s" AND sg_message_id_created_at < TIMESTAMP "%s"`,
		from.Format(time.RFC3339), to.Format(time.RFC3339))
	// How quotes are escaped is not documented. Without the condition there are only more
	// messages.
	if to := l.query.Recipient; to != "" && !strings.ContainsAny(to, `"\`) {
		query += ` AND to_email = "` + to + `"`
	}
	if status != "" {
		query += ` AND status IN ('` + status + `')`
	}
	in := map[string]any{"query": query, "limit": maxListed}
	var out struct {
		Messages []summary `json:"messages"`
	}
	err := l.Ask(ctx, http.MethodPost, logsEndpoint, in, &out)
	return out.Messages, err
}

// read posts the events of messages.
func (l *lookup) read(ctx context.Context, list []summary) error {
	for _, m := range list {
		request, _, _ := strings.Cut(m.ID, ".")
		wanted, known := l.wanted[request]
		if known && !wanted || l.query.Recipient != "" && !strings.EqualFold(m.To, l.query.Recipient) {
			continue
		}
		var details logged
		err := l.Ask(ctx, http.MethodGet, logsEndpoint+"/"+url.PathEscape(m.ID), nil, &details)
		if errors.Is(err, models.ErrNoLookup) { // that message ended meanwhile
			continue
		} else if err != nil {
			return err
		}
		body := details.body()
		if !known {
			ours := l.Parse(body).Events
			l.wanted[request] = len(ours) > 0 && l.query.Want(ours[0].Log.ChunkID())
		}
		if l.wanted[request] {
			if err := l.post(body); err != nil {
				return err
			}
		}
	}
	return nil
}

// A logged is a message with its events. The custom arguments are a member of the
// message, of each event, or of both.
type logged struct {
	Args   json.RawMessage              `json:"custom_args"`
	Events []map[string]json.RawMessage `json:"events"`
}

// body returns the events as Parse reads them, the oldest first.
func (m *logged) body() []byte {
	slices.Reverse(m.Events)
	for _, e := range m.Events {
		if len(e["custom_args"]) == 0 && len(m.Args) > 0 {
			e["custom_args"] = m.Args
		}
	}
	body, _ := kind.JSON(m.Events)
	return body
}

// Inspect implements inspect.Inspector. It reads the scopes of the key (GET /v3/scopes), the authenticated domains
// (GET /v3/whitelabel/domains) and the settings of the webhook (GET /v3/user/webhooks/event/settings).
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var key struct {
		Scopes []string `json:"scopes"`
	}
	if err := p.Ask(ctx, http.MethodGet, "/v3/scopes", nil, &key); err != nil {
		return a, p.BadKey(&a, err,
			"Create a key at SendGrid (Settings → API Keys) with the permission Mail Send, and set it as api_key.")
	}
	a.Check("key", "may send mail", slices.Contains(key.Scopes, "mail.send"), "may not send mail",
		"Give it the permission Mail Send at SendGrid (Settings → API Keys).")
	now := time.Now()
	if _, err := (&lookup{Adapter: p}).list(ctx, now.Add(-time.Second), now, ""); errors.Is(err, models.ErrNoLookup) {
		a.Add(inspect.Warning, "key", "may not read Email Logs, so that only webhooks settle unknown outcomes",
			"Give it the permission Email Logs (read) if your plan has it.")
	}
	p.inspectDomains(ctx, &a)
	if webhookURL != "" {
		p.inspectWebhooks(ctx, webhookURL, &a)
	}
	return a, nil
}

func (p *Adapter) inspectDomains(ctx context.Context, a *inspect.Account) {
	var list []struct {
		Domain string
		Valid  bool
		DNS    map[string]struct{ Type, Host, Data string }
	}
	if err := p.Ask(ctx, http.MethodGet, "/v3/whitelabel/domains?limit=50", nil, &list); err != nil {
		a.Add(inspect.Unknown, "domains", "cannot list the sender domains: "+err.Error(),
			"Give the key the permission Sender Authentication (read), "+
				"or look at SendGrid (Settings → Sender Authentication).")
		return
	}
	if len(list) == 0 {
		a.Add(inspect.Wrong, "domains", "no domain is authenticated",
			"Authenticate the domain that you send from at SendGrid (Settings → Sender Authentication).")
	}
	for _, d := range list {
		a.Check("domain", d.Domain+" is verified", d.Valid, d.Domain+" is not verified",
			"Publish its DNS records and press Verify at SendGrid (Settings → Sender Authentication).")
		out := inspect.Domain{Name: d.Domain}
		for _, r := range d.DNS {
			out.Records = append(out.Records, inspect.Record{Type: strings.ToUpper(r.Type), Name: r.Host, Value: r.Data})
		}
		slices.SortFunc(out.Records, func(x, y inspect.Record) int { return cmp.Compare(x.Name, y.Name) })
		a.Domains = append(a.Domains, out)
	}
}

// inspectWebhooks compares the settings of the webhook with the events.
func (p *Adapter) inspectWebhooks(ctx context.Context, url string, a *inspect.Account) {
	var set map[string]any
	if err := p.Ask(ctx, http.MethodGet, "/v3/user/webhooks/event/settings", nil, &set); err != nil {
		a.Add(inspect.Unknown, "webhooks", "cannot read the settings of the webhook: "+err.Error(),
			"Give the key the permission Mail Settings → Event Notification (read), "+
				"or look at SendGrid (Settings → Mail Settings).")
		return
	}
	where := "Set it at SendGrid (Settings → Mail Settings → Event Webhook) to " + url + "."
	switch at, _ := set["url"].(string); {
	case set["enabled"] != true:
		a.Add(inspect.Wrong, "webhooks", "the Event Webhook is off", where)
		return
	case at != url:
		a.Add(inspect.Wrong, "webhooks", "the Event Webhook goes to "+at, where)
		return
	}
	events.Inspect(a, url, "these events are not posted: ",
		"Turn them on at SendGrid (Settings → Mail Settings → Event Webhook).",
		func(name string) bool { return set[name] == true })
}
