package sendgrid

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sendgrid/rest"
	sdk "github.com/sendgrid/sendgrid-go"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

var _ inspect.Inspector = (*Adapter)(nil)

// errRefused reports that SendGrid refuses the key, or the request for its scopes.
var errRefused = errors.New("SendGrid refuses the key")

// Inspect implements inspect.Inspector. It reads the scopes of the key (GET /v3/scopes), the authenticated domains
// (GET /v3/whitelabel/domains) and the settings of the webhook (GET /v3/user/webhooks/event/settings).
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (inspect.Account, error) {
	var a inspect.Account
	var key struct {
		Scopes []string `json:"scopes"`
	}
	if err := p.ask(ctx, "/v3/scopes", &key); errors.Is(err, errRefused) {
		a.Add(inspect.Wrong, "key", err.Error(),
			"Create a key at SendGrid (Settings → API Keys) with the permission Mail Send, and set it as api_key.")
		return a, nil
	} else if err != nil {
		return a, err
	}
	if slices.Contains(key.Scopes, "mail.send") {
		a.Add(inspect.OK, "key", "may send mail", "")
	} else {
		a.Add(inspect.Wrong, "key", "may not send mail",
			"Give it the permission Mail Send at SendGrid (Settings → API Keys).")
	}
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

// domain is an authenticated domain.
type domain struct {
	Domain string                `json:"domain"`
	Valid  bool                  `json:"valid"`
	DNS    map[string]*dnsRecord `json:"dns"`
}

type dnsRecord struct{ Type, Host, Data string }

func (p *Adapter) inspectDomains(ctx context.Context, a *inspect.Account) {
	var list []domain
	if err := p.ask(ctx, "/v3/whitelabel/domains?limit=50", &list); err != nil {
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
		if d.Valid {
			a.Add(inspect.OK, "domain", d.Domain+" is verified", "")
		} else {
			a.Add(inspect.Wrong, "domain", d.Domain+" is not verified",
				"Publish its DNS records and press Verify at SendGrid (Settings → Sender Authentication).")
		}
		out := inspect.Domain{Name: d.Domain}
		for _, r := range d.DNS {
			if r != nil {
				out.Records = append(out.Records, inspect.Record{Type: strings.ToUpper(r.Type), Name: r.Host, Value: r.Data})
			}
		}
		slices.SortFunc(out.Records, func(x, y inspect.Record) int { return cmp.Compare(x.Name, y.Name) })
		a.Domains = append(a.Domains, out)
	}
}

// wantedEvents are the events that Boxes asks for, by their names in the settings.
var wantedEvents = []string{
	"processed", "dropped", "deferred", "delivered", "bounce", "open", "click", "spam_report", "unsubscribe",
	"group_unsubscribe",
}

// inspectWebhooks compares the settings of the webhook with what Boxes asks for.
func (p *Adapter) inspectWebhooks(ctx context.Context, url string, a *inspect.Account) {
	var set map[string]any
	if err := p.ask(ctx, "/v3/user/webhooks/event/settings", &set); err != nil {
		a.Add(
			inspect.Unknown,
			"webhooks",
			"cannot read the settings of the webhook: "+err.Error(),
			"Give the key the permission Mail Settings → Event Notification (read), "+
				"or look at SendGrid (Settings → Mail Settings).",
		)
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
	var off []string
	for _, name := range wantedEvents {
		if set[name] != true {
			off = append(off, name)
		}
	}
	if len(off) > 0 {
		a.Add(inspect.Wrong, "webhooks", "these events are not posted: "+strings.Join(off, ", "),
			"Turn them on at SendGrid (Settings → Mail Settings → Event Webhook).")
		return
	}
	a.Add(inspect.OK, "webhooks", "go to "+url, "")
}

// ask reads from a path of the API.
func (p *Adapter) ask(ctx context.Context, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ctx, _ = transport.Record(ctx, time.Time{})
	path, query, _ := strings.Cut(path, "?")
	r := sdk.GetRequest(p.keys.Load().api, path, p.base)
	r.Method = rest.Get
	if name, value, ok := strings.Cut(query, "="); ok {
		r.QueryParams = map[string]string{name: value}
	}
	resp, err := p.rest.SendWithContext(ctx, r)
	if err != nil {
		return fmt.Errorf("SendGrid cannot be reached: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return json.Unmarshal([]byte(resp.Body), out)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w (%d)", errRefused, resp.StatusCode)
	}
	return fmt.Errorf("SendGrid answered %d", resp.StatusCode)
}
