package mailgun

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

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
	err = p.Ask(ctx, http.MethodGet, version+"/domains/"+p.domain, nil, &d)
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
	a.Check("domain", p.domain+" is verified", d.Domain.State == "active",
		p.domain+" is "+d.Domain.State+", and may not send",
		"Publish its DNS records and press Verify at Mailgun (Sending → Domain settings → DNS records).")
	out := inspect.Domain{Name: p.domain}
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
	a.Add(inspect.Wrong, "domain", "Mailgun does not know "+p.domain,
		"Add the domain at Mailgun (Sending → Domains). If it is in the EU, set base_url to https://api.eu.mailgun.net.")
}

// inspectSendingKey finds out whether a key that may not read the domain may send: a message without a recipient is
// refused with 400 if the key may send, and with 401 otherwise.
func (p *Adapter) inspectSendingKey(ctx context.Context, a *inspect.Account) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, time.Time{})
	err := p.Post(ctx, &models.Request{Method: http.MethodPost, URL: p.base + "/" + p.domain + "/messages",
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
	if err := p.Ask(ctx, http.MethodGet, version+"/domains/"+p.domain+"/webhooks", nil, &set); err != nil {
		a.Add(inspect.Unknown, "webhooks", "cannot list the webhooks: "+err.Error(), "Look at Mailgun (Sending → Webhooks).")
		return
	}
	events.Inspect(a, url, "do not go to "+url+" for: ",
		"Add them at Mailgun (Sending → Webhooks) with the URL "+url+".", func(name string) bool {
			return set.Webhooks[name].URL == url || slices.Contains(set.Webhooks[name].URLs, url)
		})
}
