package ses

import (
	"context"
	"encoding/json"
	"fmt"
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

// lists are the suppression list of the account in a region by its reasons. Amazon's list for all accounts cannot be
// read.
var lists = []models.ProviderList{
	{Name: "BOUNCE", Reason: models.HardBounce},
	{Name: "COMPLAINT", Reason: models.Complaint},
}

const suppressions = "/v2/email/suppression/addresses"

// ReadList implements models.ProviderLists.
func (p *Adapter) ReadList(ctx context.Context, q models.ListQuery) (models.ListPage, error) {
	type entry struct {
		EmailAddress   parse.Str
		LastUpdateTime parse.Str
	}
	return kind.ReadList(&p.Base, q.List, func() ([]json.RawMessage, string, error) {
		at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) } // the bounds are not selected
		form := url.Values{"Reason": {q.List}, "PageSize": {"1000"}, "EndDate": {at(q.To.Add(time.Second))}}
		if !q.From.IsZero() {
			form.Set("StartDate", at(q.From.Add(-time.Second)))
		}
		if q.Cursor != "" {
			form.Set("NextToken", q.Cursor)
		}
		var in struct {
			SuppressedDestinationSummaries []json.RawMessage
			NextToken                      string
		}
		err := p.Ask(ctx, http.MethodGet, suppressions+"?"+form.Encode(), nil, &in)
		return in.SuppressedDestinationSummaries, in.NextToken, err
	}, func(list models.ProviderList, e *entry) []models.Listed {
		return kind.Entry(e.EmailAddress, e.LastUpdateTime, list.Reason, "")
	})
}

// Unlist implements models.ProviderLists. An address has one reason: with another one it is not on the list.
func (p *Adapter) Unlist(ctx context.Context, list, address string) error {
	path := suppressions + "/" + strings.ReplaceAll(url.QueryEscape(address), "+", "%20")
	var in struct{ SuppressedDestination struct{ Reason string } }
	err := p.Remove(ctx, list, http.MethodGet, path, nil, &in)
	if reason := in.SuppressedDestination.Reason; err != nil || reason != "" && reason != list {
		return err
	}
	return p.Remove(ctx, list, http.MethodDelete, path, nil, nil)
}

// Inspect implements inspect.Inspector. It reads the account, its identities, and where the configuration set reports
// events. Which URLs have subscribed to a topic is known only to Amazon SNS.
func (p *Adapter) Inspect(ctx context.Context, webhookURL string) (a inspect.Account, err error) {
	var in struct {
		ProductionAccessEnabled, SendingEnabled bool
		EnforcementStatus                       string
		SendQuota                               struct{ Max24HourSend, MaxSendRate, SentLast24Hours float64 }
	}
	err = p.Ask(ctx, http.MethodGet, "/v2/email/account", nil, &in)
	if _, body := kind.Status(err); strings.Contains(string(body), "not authorized to perform") {
		a.Add(inspect.Warning, "key", "may not read the account, and perhaps only send",
			"Allow its user ses:GetAccount, ses:List* and ses:Get*, so that mistakes are found.")
		return a, nil
	}
	if err != nil {
		return a, p.BadKey(&a, err, "Create an access key at Amazon (IAM → Users), and set both parts.")
	}
	q := in.SendQuota
	a.Add(inspect.OK, "key", fmt.Sprintf("may read the account: %g of %g mails a day (-1: no limit), %g a second",
		q.SentLast24Hours, q.Max24HourSend, q.MaxSendRate), "")
	a.Check("account", "may send to everybody", in.ProductionAccessEnabled,
		"is in the sandbox: it sends only to verified addresses", "Request production access at Amazon SES.")
	a.Check("account", "may send", in.SendingEnabled && in.EnforcementStatus != "SHUTDOWN",
		"sending is off; Amazon's enforcement says "+in.EnforcementStatus, "See the account dashboard of Amazon SES.")
	if in.EnforcementStatus == "PROBATION" {
		a.Add(inspect.Warning, "account", "is under review by Amazon", "See the account dashboard of Amazon SES.")
	}
	if err := p.inspectIdentities(ctx, &a); err != nil || webhookURL == "" {
		return a, err
	}
	return a, p.inspectSet(ctx, &a, webhookURL)
}

// inspectIdentities finds out which domains and addresses may be senders.
func (p *Adapter) inspectIdentities(ctx context.Context, a *inspect.Account) error {
	var in struct {
		EmailIdentities []struct {
			IdentityName   string
			SendingEnabled bool
		}
	}
	err := p.Ask(ctx, http.MethodGet, "/v2/email/identities?PageSize=1000", nil, &in)
	for _, d := range in.EmailIdentities {
		a.Check("domain", d.IdentityName+" is verified", d.SendingEnabled, d.IdentityName+" may not send: it is not verified",
			"Publish its DNS records (Amazon SES → Identities).")
	}
	if err == nil && len(in.EmailIdentities) == 0 {
		a.Add(inspect.Wrong, "domains", "no domain is verified", "Add the one of the sender (Amazon SES → Identities).")
	}
	return err
}

// inspectSet finds out which events go to the topics.
func (p *Adapter) inspectSet(ctx context.Context, a *inspect.Account, webhookURL string) error {
	if p.set == "" {
		a.Add(inspect.Warning, "webhooks", "only the default configuration set of a domain reports events",
			"Set configuration_set.")
		return nil
	}
	var in struct {
		EventDestinations []struct {
			Enabled            bool
			MatchingEventTypes []string
			SNSDestination     struct{ TopicArn string } `json:"SnsDestination"`
		}
	}
	err := p.Ask(ctx, http.MethodGet, "/v2/email/configuration-sets/"+p.set+"/event-destinations", nil, &in)
	if status, _ := kind.Status(err); status == http.StatusNotFound {
		a.Add(inspect.Wrong, "webhooks", "there is no configuration set "+p.set, "Create it at Amazon SES.")
		return nil
	}
	var on []string
	for _, d := range in.EventDestinations {
		if d.Enabled && slices.Contains(p.Keys().Webhook, d.SNSDestination.TopicArn) {
			on = append(on, d.MatchingEventTypes...)
		}
	}
	events.Inspect(a, webhookURL, "the configuration set "+p.set+" does not report to the topics: ",
		"Add an event destination to it with a topic of topics, and subscribe "+webhookURL+" to that by HTTPS.",
		func(name string) bool { return slices.Contains(on, name) })
	return err
}
