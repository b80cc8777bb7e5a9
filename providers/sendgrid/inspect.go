package sendgrid

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
)

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

// domain is an authenticated domain.
type domain struct {
	Domain string `json:"domain"`
	Valid  bool   `json:"valid"`
	DNS    map[string]*struct{ Type, Host, Data string }
}

func (p *Adapter) inspectDomains(ctx context.Context, a *inspect.Account) {
	var list []domain
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
			if r != nil {
				out.Records = append(out.Records, inspect.Record{Type: strings.ToUpper(r.Type), Name: r.Host, Value: r.Data})
			}
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
