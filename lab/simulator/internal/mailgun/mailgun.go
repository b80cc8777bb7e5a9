// Package mailgun imitates Mailgun: messages, events, suppression lists, webhooks and
// their subscriptions of the v3 API, for one sending domain.
package mailgun

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody  = 54_945_382 // 52.4 MiB
	keySize  = 32         // hexadecimal digits of a signing key
	typeJSON = "application/json"
	typeText = "text/plain; charset=utf-8"
	typeHTML = "text/html"
)

// Mailgun is an account at Mailgun.
type Mailgun struct {
	account    provider.Account
	domain     string
	signingKey string
	lookups    provider.Limiter
}

var _ provider.Provider = (*Mailgun)(nil)

// New returns the provider for an account. The domain is required, and so is the
// signing key if there are webhooks.
func New(a provider.Account) (provider.Provider, error) {
	if a.Domain == "" || strings.ContainsAny(a.Domain, "/ ") {
		return nil, fmt.Errorf("domain %q: want a host name", a.Domain)
	}
	if a.SigningKey == "" {
		if a.Webhooks.URL() != "" {
			return nil, errors.New("signing key is empty, webhooks cannot be signed")
		}
		// Mailgun has a key for every account.
		a.SigningKey = a.IDs.Hex(keySize, provider.ForToken)
	}
	return &Mailgun{account: a, domain: strings.ToLower(a.Domain), signingKey: a.SigningKey}, nil
}

// Describe implements provider.Provider.
func (g *Mailgun) Describe() provider.Description {
	return provider.Description{
		Domain:     g.domain,
		SigningKey: g.signingKey,
		Stages:     &stages,
		HasLog:     true,
		Listing:    listing,
		Batching:   provider.Batching{Single: true, Events: 1, EventBytes: eventBytes},
	}
}

// ID implements provider.Provider. The API answers a message id with angle
// brackets; events carry it without.
func (g *Mailgun) ID(b *message.Batch) string { return "<" + g.messageID(b) + ">" }

func (g *Mailgun) messageID(b *message.Batch) string {
	random := strings.ToUpper(g.account.IDs.Hex(16, provider.ForMessage, b.Serial))
	return b.Accepted().UTC().Format("20060102150405") + "." + strconv.FormatUint(b.Serial, 10) + "." + random +
		"@" + g.domain
}

func (g *Mailgun) authorized(r *http.Request) bool {
	user, key, ok := r.BasicAuth()
	return ok && user == "api" && key == g.account.Key
}

func dress(h http.Header) { h.Set("Server", "openresty") }

// Endpoint implements provider.Provider.
func (g *Mailgun) Endpoint(r *http.Request, path []string) *provider.Endpoint {
	if r.Method != http.MethodPost || len(path) != 3 || path[0] != "v3" ||
		path[2] != "messages" && path[2] != "messages.mime" {
		return nil
	}
	domain, mime := path[1], path[2] == "messages.mime"
	return &provider.Endpoint{
		Limit:        maxBody,
		Authorized:   g.authorized,
		Unauthorized: forbidden,
		TooLarge:     bodyTooLarge,
		Dress:        dress,
		Parse: func(r *http.Request, body []byte) (provider.Request, *provider.Answer) {
			req, problem := parse(r, body, mime)
			if !strings.EqualFold(domain, g.domain) {
				a := domainNotFound(domain)
				problem = &a
			}
			return req, problem
		},
	}
}

// Serve implements provider.Provider.
func (g *Mailgun) Serve(w http.ResponseWriter, r *http.Request, path []string) {
	if r.Method == http.MethodPost && strings.Join(path, "/") == "v1/analytics/logs" {
		if g.mayLookUp(w, r) {
			g.serveLogs(w, r)
		}
		return
	}
	if len(path) < 2 || path[0] != "v3" {
		g.reply(w, notFound)
		return
	}
	path = path[1:]
	switch {
	case r.Method == http.MethodPost && path[len(path)-1] == "messages":
		// A slash within the domain leads to another service of Mailgun.
		g.reply(w, magnificent)
	case !g.authorized(r):
		g.reply(w, forbidden)
	case len(path) == 1:
		g.reply(w, notFound)
	case path[0] == "domains" && !strings.EqualFold(path[1], g.domain):
		g.reply(w, domainNotFound(path[1]))
	case path[0] == "domains" && len(path) == 2 && r.Method == http.MethodGet:
		g.reply(w, g.domainAnswer())
	case path[0] == "domains" && len(path) > 2 && len(path) <= 4 && path[2] == "webhooks":
		g.serveWebhooks(w, r, path[3:])
	case slices.Contains(listNames, path[1]) && strings.EqualFold(path[0], g.domain):
		g.serveList(w, r, path[1], path[2:])
	case r.Method == http.MethodGet && path[1] == "events" && len(path) <= 3:
		if !strings.EqualFold(path[0], g.domain) {
			g.reply(w, domainNotFound(path[0]))
			return
		}
		if g.allowed(w) {
			g.serveEvents(w, r, path[2:])
		}
	default:
		g.reply(w, notFound)
	}
}

// mayLookUp reports whether a request may use the Logs API. If not, it answers the request.
func (g *Mailgun) mayLookUp(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case !g.authorized(r):
		g.reply(w, forbidden)
	case g.account.Options.NoLogs:
		g.reply(w, statuses[http.StatusForbidden])
	default:
		return g.allowed(w)
	}
	return false
}

// allowed reports whether there may be another look-up now. If not, it answers the request.
func (g *Mailgun) allowed(w http.ResponseWriter) bool {
	reset, ok := g.lookups.Allow(g.account.Options.LookupsPerSecond, time.Now())
	if !ok {
		a := say(http.StatusTooManyRequests, "Too many requests")
		a.Header = map[string]string{"X-RateLimit-Reset": strconv.FormatInt(reset.Unix(), 10)}
		g.reply(w, a)
	}
	return ok
}

func (g *Mailgun) reply(w http.ResponseWriter, a provider.Answer) {
	dress(w.Header())
	a.Write(w)
}
