// Package mailgun imitates Mailgun: messages, events, suppression lists, webhooks and their subscriptions of the v3
// API, for one sending domain, and the Logs API.
package mailgun

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxListed = 1000 // entries of a page
	tokenSize = 50   // characters
	maxURLs   = 3    // per type
	maxForm   = 1 << 20
)

// say returns the answer {"message":"..."}.
func say(status int, format string, args ...any) provider.Answer {
	return provider.JSON(status, map[string]any{"message": fmt.Sprintf(format, args...)})
}

var (
	magnificent = provider.Answer{Status: 200, Type: provider.TypeText, Body: "Mailgun Magnificent API"}
	malformed   = say(400, "Malformed form data")
)

// statuses are the answers that Mailgun has for a status.
var statuses = map[int]provider.Answer{
	200: magnificent,
	400: say(400, "Bad Request"),
	401: {Status: 401, Type: provider.TypeText, Body: "Forbidden"},
	402: say(402, "Request Failed"),
	403: say(403, "Forbidden"),
	404: {Status: 404, Type: provider.TypeText, Body: "404 page not found\n"},
	413: say(413, "request size exceeds 52.4MiB limit"),
	500: say(500, "Internal Server Error"),
	503: {Status: 503, Type: provider.TypeHTML, Body: "<html><body>503 Service Temporarily Unavailable</body></html>"},
	504: {Status: 504, Type: provider.TypeHTML},
}

// notAllowed returns the answer to a call that the domain may not make.
func notAllowed(status int, reason string) provider.Answer {
	return provider.Answer{Status: status, Type: provider.TypeJSON,
		Body: `{"message":"Domain <domain> is not allowed to send: ` + reason + `"}`}
}

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.HasStatus:   {Type: provider.TypeJSON, Body: `{"message":"<status>"}`},
	provider.RateLimited: notAllowed(429, "request limit exceeded, try again after <date>"),
	provider.Full:        notAllowed(420, "recipient limit exceeded"),
	provider.FullUntil:   notAllowed(420, "recipient limit exceeded, try again after <date>"),
	provider.NoCredits:   say(402, "Payment Required"),
	provider.Unverified: notAllowed(400, "The domain is unverified and requires DNS configuration. "+
		"Log in to your control panel to view required DNS records."),
	provider.NotAllowed: notAllowed(400, "Please activate your Mailgun account. "+
		"Check your inbox or log in to your control panel to resend the activation email."),
	provider.Blocked: say(403, "Rejected: IP 203.0.113.25 can't be used to send the message"),
	provider.LargeBatch: {Status: 403, Type: provider.TypeJSON,
		Body: `{"message":"Domain <domain> is not allowed to send large batches yet"}`},
	provider.TooLarge: statuses[413],
	provider.Garbage:  magnificent,
	provider.LookedUpTooOften: {Status: 429, Type: provider.TypeJSON, Body: `{"message":"Too many requests"}`,
		Header: map[string]string{"X-RateLimit-Reset": "<reset>"}},
}

const entry = `{"address":<address>,"created_at":"<date>"`

// lists are the suppression lists. Mailgun lists no soft bounces.
var lists = []provider.List{
	{Name: "bounces", Drops: message.SuppressedBounce, Status: "<code>", Text: "<enhanced> <text>",
		Of:   []message.Outcome{message.HardBounce, message.Async, message.Invalid, message.SuppressedBounce},
		Item: entry + `,"code":<status>,"error":<text>}`},
	{Name: "complaints", Drops: message.SuppressedSpam, Item: entry + `,"count":1}`,
		Of: []message.Outcome{message.SuppressedSpam, message.Complain}},
	{Name: "unsubscribes", Drops: message.SuppressedUnsub, Item: entry + `,"tags":<words>}`,
		Of: []message.Outcome{message.SuppressedUnsub, message.Unsubscribe}},
}

const domain = `{"domain":{"name":"<domain>","state":"active","type":"custom",` +
	`"created_at":"Thu, 01 Jan 2026 00:00:00 GMT"},"receiving_dns_records":[],"sending_dns_records":[` +
	`{"record_type":"TXT","valid":"valid","name":"<domain>","value":"v=spf1 include:mailgun.org ~all"},` +
	`{"record_type":"TXT","valid":"valid","name":"mx._domainkey.<domain>","value":"k=rsa; p=MIGf"}]}`

// Mailgun is an account at Mailgun.
type Mailgun struct{ *provider.Provider }

// New returns the provider for an account. The domain is required, and so is the signing key if there are webhooks.
func New(a *provider.Account) (*provider.Provider, error) {
	if a.Domain == "" || strings.ContainsAny(a.Domain, "/ ") {
		return nil, fmt.Errorf("domain %q: want a host name", a.Domain)
	}
	if a.SigningKey == "" {
		if a.Webhooks.URL() != "" {
			return nil, errors.New("signing key is empty, webhooks cannot be signed")
		}
		a.SigningKey = a.IDs.Hex(32, provider.ForToken) // Mailgun has a key for every account
	}
	a.Domain = strings.ToLower(a.Domain)
	g := Mailgun{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Header:       map[string]string{"Server": "openresty"},
		Statuses:     statuses,
		Conditions:   conditions,
		Unauthorized: provider.Key("Authorization", provider.Basic("api:"+a.Key), 401, 401),
	}}
	g.ID = g.id
	send := &provider.Send{Limit: 54_945_382, Parse: g.parse}
	g.Routes = []provider.Route{
		{Path: "POST v3/{domain}/messages", Send: send},
		{Path: "POST v3/{domain}/messages.mime", Send: send},
		// A slash within the domain leads to another service of Mailgun.
		{Path: "POST v3/{domain}/{rest}/messages", Access: provider.Open,
			Answer: func(*http.Request) provider.Answer { return magnificent }},
		{Path: "POST v1/analytics/logs", Access: provider.UsesLogs, Answer: g.logs},
		{Path: "GET v3/{domain}/events", Access: provider.Counts, Answer: g.own(g.events)},
		{Path: "GET v3/{domain}/events/{page}", Access: provider.Counts, Answer: g.own(g.events)},
		{Path: "GET v3/domains/{domain}", Answer: g.own(func(*http.Request) provider.Answer { return g.Static(domain) })},
		{Path: "GET v3/domains/{domain}/webhooks", Answer: g.own(g.showWebhooks)},
		{Path: "POST v3/domains/{domain}/webhooks", Answer: g.own(g.changeWebhook)},
		{Path: "* v3/domains/{domain}/webhooks/{type}", Answer: g.own(g.changeWebhook)},
		{Path: "GET v3/{domain}/{list}", Access: provider.UsesLists, Answer: g.own(g.showList)},
		{Path: "DELETE v3/{domain}/{list}/{address}", Access: provider.UsesLists, Answer: g.own(g.unlist)},
	}
	g.Hooks = provider.Hooks{
		Only200: true,
		Final:   http.StatusNotAcceptable,
		Gaps:    g.gaps,
		Sign:    g.sign,
	}
	return g.Provider, nil
}

// id returns the id of a call as the API answers it; events have it without angle brackets.
func (g Mailgun) id(b *message.Batch) string {
	random := strings.ToUpper(g.IDs.Hex(16, provider.ForMessage, b.Serial))
	return fmt.Sprintf("<%s.%d.%s@%s>", b.Accepted().UTC().Format("20060102150405"), b.Serial, random, g.Domain)
}

// gaps are the times after which Mailgun repeats a webhook. Its older documentation has 10, 10, 15, 30 minutes, 1, 2, 4
// hours. delivered is not repeated at all unless Options.RetryDelivered is set.
func (g Mailgun) gaps(s *provider.Stage) []time.Duration {
	if s.Event == "delivered" && !g.Options.RetryDelivered {
		return nil
	}
	return provider.Minutes(5, 10, 15, 60, 120, 240)
}

// sign returns a webhook. Its signature is the HMAC-SHA256 of timestamp and token.
func (g Mailgun) sign(p provider.Post) (body []byte, header http.Header, err error) {
	timestamp, token := strconv.FormatInt(p.Time, 10), g.Token(p, tokenSize)
	sum := hex.EncodeToString(p.HMAC([]byte(g.SigningKey), []byte(timestamp), []byte(token)))
	body = append(body, `{"signature":{"timestamp":"`+timestamp+`","token":"`+token+`","signature":"`+sum+
		`"},"event-data":`...)
	return append(append(body, p.Body...), '}'), http.Header{"User-Agent": {"mailgun/treq-22.10.0"}}, nil
}

// own returns the handler for the account's domain, which answers requests for others with 404.
func (g Mailgun) own(answer func(*http.Request) provider.Answer) func(*http.Request) provider.Answer {
	return func(r *http.Request) provider.Answer {
		if domain := r.PathValue("domain"); !strings.EqualFold(domain, g.Domain) {
			return say(404, "Domain not found: %s", domain)
		}
		return answer(r)
	}
}

// showList answers with a page of a suppression list, which begins after an address.
func (g Mailgun) showList(r *http.Request) provider.Answer {
	list, form := r.PathValue("list"), r.URL.Query()
	if g.Named(list) == nil {
		return g.Say(404)
	}
	limit, err := strconv.Atoi(cmp.Or(form.Get("limit"), "100"))
	if err != nil || limit < 1 || limit > maxListed {
		return say(400, "limit must be between 1 and %d", maxListed)
	}
	after := form.Get("address")
	entries := slices.DeleteFunc(g.Lists.All(list, time.Now()), func(e provider.Listed) bool { return e.Address <= after })
	entries = provider.Part(entries, 0, limit)
	for _, e := range entries {
		after = e.Address
	}
	base := g.base(r, list)
	next := url.Values{"page": {"next"}, "limit": {strconv.Itoa(limit)}, "address": {after}}
	return provider.JSON(200, map[string]any{
		"items":  g.Items(entries),
		"paging": map[string]string{"first": base + "?limit=" + strconv.Itoa(limit), "next": base + "?" + next.Encode()},
	})
}

// base returns the URL of a path of the domain, as the client sees it.
func (g Mailgun) base(r *http.Request, path string) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host + "/" + g.Name + "/v3/" + g.Domain + "/" + path
}

// unlist removes an address from a suppression list.
func (g Mailgun) unlist(r *http.Request) provider.Answer {
	list, address := r.PathValue("list"), r.PathValue("address")
	if !g.Lists.Remove(list, address, time.Now()) {
		return say(404, "Address not found in %s table", list)
	}
	return provider.JSON(200, map[string]any{"address": address, "message": "Bounced address has been removed"})
}

// webhookTypes are the webhook types that can be subscribed to.
var webhookTypes = []string{
	"accepted", "clicked", "complained", "delivered", "opened", "permanent_fail", "temporary_fail", "unsubscribed",
}

// showWebhooks answers with the URLs of each type. A new account has its webhook URL for all types.
func (g Mailgun) showWebhooks(*http.Request) provider.Answer {
	list := map[string]any{}
	for _, kind := range webhookTypes {
		if urls := g.Webhooks.URLs(kind); len(urls) > 0 {
			list[kind] = map[string]any{"urls": urls}
		}
	}
	return provider.JSON(200, map[string]any{"webhooks": list})
}

// changeWebhook reads, replaces or deletes the URLs of a type.
func (g Mailgun) changeWebhook(r *http.Request) provider.Answer {
	r.Body = http.MaxBytesReader(nil, r.Body, maxForm)
	if err := r.ParseMultipartForm(maxForm); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return malformed
	}
	kind, urls := r.PathValue("type"), r.PostForm["url"]
	if kind == "" {
		kind = r.PostForm.Get("id")
	}
	if !slices.Contains(webhookTypes, kind) || r.Method == http.MethodPost && r.PathValue("type") != "" {
		return say(404, "Webhook not found")
	}
	out := map[string]any{}
	switch r.Method {
	case http.MethodDelete:
		g.Webhooks.SetURLs(kind, nil)
		return say(200, "Webhook has been deleted")
	case http.MethodPost, http.MethodPut:
		invalid := func(u string) bool { return u == "" || provider.CheckURL(u) != nil }
		if len(urls) == 0 || len(urls) > maxURLs || slices.ContainsFunc(urls, invalid) {
			return say(400, "url parameter: want 1 to %d valid URLs", maxURLs)
		}
		g.Webhooks.SetURLs(kind, urls)
		out["message"] = "Webhook has been created"
	}
	if urls = g.Webhooks.URLs(kind); len(urls) == 0 {
		return say(404, "Webhook not found")
	}
	out["webhook"] = map[string]any{"urls": urls}
	return provider.JSON(200, out)
}
