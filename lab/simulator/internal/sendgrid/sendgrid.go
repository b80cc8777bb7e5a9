// Package sendgrid imitates SendGrid: POST /v3/mail/send, the Email Logs API, the
// suppression lists, the settings of the event webhook, and the webhook itself.
package sendgrid

import (
	"crypto/ecdsa"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody  = 30 << 20
	typeJSON = "application/json"
	typeText = "text/plain; charset=utf-8"
	typeHTML = "text/html"

	pathSend = "v3/mail/send"
)

// SendGrid is an account at SendGrid.
type SendGrid struct {
	account  provider.Account
	endpoint provider.Endpoint
	sign     *ecdsa.PrivateKey
	private  string // base64 PKCS#8
	public   string // base64 SubjectPublicKeyInfo
	number   string // of the account, within event ids
	lookups  provider.Limiter
}

var _ provider.Provider = (*SendGrid)(nil)

// New returns the provider for an account. The signing key is an ECDSA P-256
// private key; New generates one if it is empty.
func New(a provider.Account) (provider.Provider, error) {
	g := &SendGrid{account: a, number: strconv.FormatUint(10_000_000+a.IDs.Account()%90_000_000, 10)}
	if err := g.setKey(a.SigningKey); err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	g.endpoint = provider.Endpoint{
		Limit:        maxBody,
		GZIP:         true,
		Authorized:   g.authorized,
		Unauthorized: statuses[http.StatusUnauthorized],
		TooLarge:     statuses[http.StatusRequestEntityTooLarge],
		DryAnswer:    provider.Answer{Status: 200, Type: typeText},
		Parse:        parse,
		Dress:        dress,
	}
	return g, nil
}

// Describe implements provider.Provider.
func (g *SendGrid) Describe() provider.Description {
	return provider.Description{
		SigningKey: g.private,
		PublicKey:  g.public,
		Stages:     &stages,
		HasLog:     true,
		Listing:    listing,
		Batching: provider.Batching{
			Events:     g.account.Options.FlushCount,
			Every:      g.account.Options.FlushEvery,
			Bytes:      maxPost,
			EventBytes: eventBytes,
			Open:       "[",
			Separator:  ",\r\n",
			Close:      "]\r\n",
		},
	}
}

// ID implements provider.Provider.
func (g *SendGrid) ID(b *message.Batch) string {
	return g.account.IDs.Text(provider.ForMessage, b.Serial)
}

func (g *SendGrid) authorized(r *http.Request) bool {
	return r.Header.Get("Authorization") == "Bearer "+g.account.Key
}

func dress(h http.Header) {
	h.Set("Server", "nginx")
	h.Set("Connection", "keep-alive")
	h.Set("X-Frame-Options", "DENY")
}

// Endpoint implements provider.Provider.
func (g *SendGrid) Endpoint(r *http.Request, path []string) *provider.Endpoint {
	if r.Method == http.MethodPost && strings.Join(path, "/") == pathSend {
		return &g.endpoint
	}
	return nil
}

// eventTypes are the members of the webhook settings that enable an event.
const eventTypes = `"processed":true,"delivered":true,"deferred":true,"bounce":true,"dropped":true,"open":true,` +
	`"click":true,"spam_report":true,"unsubscribe":true,"group_unsubscribe":true,"group_resubscribe":true`

// domains returns the authenticated domains: the one of the account, if it has one.
func (g *SendGrid) domains() string {
	d := g.account.Domain
	if d == "" {
		return "[]"
	}
	record := func(host, data string) string {
		return fmt.Sprintf(`{"valid":true,"type":"cname","host":%q,"data":%q}`, host+"."+d, data)
	}
	return fmt.Sprintf(`[{"id":1,"domain":%q,"subdomain":"em1","valid":true,`+
		`"dns":{"mail_cname":%s,"dkim1":%s,"dkim2":%s}}]`, d,
		record("em1", "u1.wl.sendgrid.net"), record("s1._domainkey", "s1.domainkey.u1.wl.sendgrid.net"),
		record("s2._domainkey", "s2.domainkey.u1.wl.sendgrid.net"))
}

// Serve implements provider.Provider.
func (g *SendGrid) Serve(w http.ResponseWriter, r *http.Request, path []string) {
	dress(w.Header())
	route := strings.Join(path, "/")
	body := ""
	if id, ok := strings.CutPrefix(route+"/", pathLogs+"/"); ok {
		g.serveLogs(w, r, strings.TrimSuffix(id, "/"))
		return
	}
	if strings.HasPrefix(route, pathLists) || strings.HasPrefix(route, pathGlobal+"/") {
		g.serveLists(w, r, route)
		return
	}
	switch route {
	case "v3/user/webhooks/event/settings/signed":
		body = fmt.Sprintf(`{"public_key":%q}`, g.public)
	case "v3/user/webhooks/event/settings":
		url := g.account.Webhooks.URL()
		body = fmt.Sprintf(`{"enabled":%t,"url":%q,%s}`, url != "", url, eventTypes)
	case "v3/scopes":
		body = `{"scopes":["mail.send","user.webhooks.event.settings.read","whitelabel.read"]}`
	case "v3/whitelabel/domains":
		body = g.domains()
	}
	switch {
	case body == "" && route != pathSend:
		statuses[http.StatusNotFound].Write(w)
	case route == pathSend || r.Method != http.MethodGet:
		statuses[http.StatusMethodNotAllowed].Write(w)
	case !g.authorized(r):
		g.endpoint.Unauthorized.Write(w)
	default:
		provider.Answer{Status: 200, Type: typeJSON, Body: body}.Write(w)
	}
}
