package mailgun

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	sdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/providers/internal/inspect"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

var _ inspect.Inspector = (*Adapter)(nil)

// Inspect implements inspect.Inspector. It reads the domain (GET /v3/domains/{domain}) and its webhooks. A sending key
// of the domain may read neither.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (inspect.Account, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var a inspect.Account
	mg := p.keys.Load().sdk
	d, err := mg.GetDomain(recorded(ctx), p.domain)
	switch status := statusOf(err); {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return a, p.inspectSendingKey(ctx, &a)
	case status == http.StatusNotFound:
		a.Add(inspect.Wrong, "domain", "Mailgun does not know "+p.domain,
			"Add the domain at Mailgun (Sending → Domains). If it is in the EU, set base_url to https://api.eu.mailgun.net.")
		return a, nil
	case err != nil && status == 0:
		return a, fmt.Errorf("Mailgun cannot be reached: %w", err) //nolint:staticcheck // a name
	case err != nil:
		return a, fmt.Errorf("Mailgun answered %d", status) //nolint:staticcheck // a name
	}
	a.Add(inspect.OK, "key", "is one of the account", "")
	if d.Domain.State == "active" {
		a.Add(inspect.OK, "domain", p.domain+" is verified", "")
	} else {
		a.Add(inspect.Wrong, "domain", p.domain+" is "+d.Domain.State+", and may not send",
			"Publish its DNS records and press Verify at Mailgun (Sending → Domain settings → DNS records).")
	}
	out := inspect.Domain{Name: p.domain}
	for _, r := range d.SendingDNSRecords {
		out.Records = append(out.Records, inspect.Record{Type: strings.ToUpper(r.RecordType), Name: r.Name, Value: r.Value})
	}
	a.Domains = append(a.Domains, out)
	if webhookURL != "" {
		p.inspectWebhooks(ctx, webhookURL, &a)
	}
	return a, nil
}

// inspectSendingKey finds out whether a key that may not read the domain may send: a message without a recipient is
// refused with 400 if the key may send, and with 401 otherwise.
func (p *Adapter) inspectSendingKey(ctx context.Context, a *inspect.Account) error {
	address := p.base + "/" + p.domain + "/messages"
	r, err := http.NewRequestWithContext(recorded(ctx), http.MethodPost, address, strings.NewReader("text=test"))
	if err != nil {
		return err
	}
	r.SetBasicAuth("api", p.keys.Load().api)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := p.client.HTTP.Do(r)
	if err != nil {
		return fmt.Errorf("Mailgun cannot be reached: %w", err) //nolint:staticcheck // a name
	}
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusBadRequest:
		a.Add(inspect.OK, "key", "may send mail", "")
		a.Add(inspect.Warning, "key", "is a sending key of the domain, which may not read logs, domain and webhooks",
			"Use a key of the account (Account settings → API security), so that lost webhooks can be looked up.")
	case http.StatusNotFound:
		a.Add(inspect.Wrong, "domain", "Mailgun does not know "+p.domain,
			"Add the domain at Mailgun (Sending → Domains). If it is in the EU, set base_url to https://api.eu.mailgun.net.")
	case http.StatusUnauthorized, http.StatusForbidden:
		a.Add(inspect.Wrong, "key", fmt.Sprintf("Mailgun refuses the key (%d)", resp.StatusCode),
			"Create a key at Mailgun (Account settings → API security), and set it as api_key.")
	default:
		return fmt.Errorf("Mailgun answered %d", resp.StatusCode) //nolint:staticcheck // a name
	}
	return nil
}

// webhookTypes are the webhooks that Boxes asks for.
var webhookTypes = []string{
	"accepted", "clicked", "complained", "delivered", "opened", "permanent_fail", "temporary_fail", "unsubscribed",
}

func (p *Adapter) inspectWebhooks(ctx context.Context, url string, a *inspect.Account) {
	set, err := p.keys.Load().sdk.ListWebhooks(recorded(ctx))
	if err != nil {
		a.Add(inspect.Unknown, "webhooks", fmt.Sprintf("cannot list the webhooks: Mailgun answered %d", statusOf(err)),
			"Look at Mailgun (Sending → Webhooks).")
		return
	}
	var off []string
	for _, kind := range webhookTypes {
		if !slices.Contains(set[kind], url) {
			off = append(off, kind)
		}
	}
	if len(off) > 0 {
		a.Add(inspect.Wrong, "webhooks", "do not go to "+url+" for: "+strings.Join(off, ", "),
			"Add them at Mailgun (Sending → Webhooks) with the URL "+url+".")
		return
	}
	a.Add(inspect.OK, "webhooks", "go to "+url, "")
}

// recorded returns a context for one request: the client wants to record each exchange.
func recorded(ctx context.Context) context.Context {
	ctx, _ = transport.Record(ctx, time.Time{})
	return ctx
}

// statusOf returns the status of an answer that the SDK did not expect, or 0.
func statusOf(err error) int {
	var e *sdk.UnexpectedResponseError
	if errors.As(err, &e) {
		return e.Actual
	}
	return 0
}
