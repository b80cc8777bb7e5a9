// Package sendgrid imitates SendGrid: POST /v3/mail/send, the Email Logs API, the suppression lists, the settings of
// the event webhook, and the webhook itself.
package sendgrid

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody    = 30 << 20
	maxListed  = 500       // entries of a page
	maxPost    = 768 << 10 // bytes
	eventBytes = 480       // about the size of an event
	helpURL    = "http://sendgrid.com/docs/API_Reference/Web_API_v3/Mail/errors.html#"
)

// A problem is one entry of SendGrid's list of errors. A field or help that is nil is null.
type problem struct {
	Message string `json:"message"`
	Field   any    `json:"field"`
	Help    any    `json:"help"`
}

func errors(status int, list ...problem) provider.Answer {
	return provider.JSON(status, map[string]any{"errors": list})
}

func text(status int, message string) provider.Answer {
	return errors(status, problem{Message: message})
}

// statuses are the answers that SendGrid has for a status.
var statuses = map[int]provider.Answer{
	202: {Status: 202, Type: provider.TypeText},
	400: text(400, "Bad Request"),
	401: text(401, "The provided authorization grant is invalid, expired, or revoked"),
	403: text(403, "access forbidden"),
	404: text(404, "not found"),
	405: text(405, "POST method allowed only"),
	406: text(406, "Missing Accept header"),
	413: text(413, "The request body exceeds 30 MB"),
	415: text(415, "Content-Type should be application/json."),
	451: text(451, "unavailable for legal reasons"),
	500: {Status: 500, Type: provider.TypeJSON, Body: `{"errors":[{"message":"Internal Server Error"}]}`},
	503: {Status: 503, Type: provider.TypeText, Body: "Service Unavailable"},
}

const (
	badIdentity = "The from address does not match a verified Sender Identity. " +
		"Mail cannot be sent until this error is resolved. " +
		"Visit https://sendgrid.com/docs/for-developers/sending-email/sender-identity/ to see the Sender Identity " +
		"requirements"
	tooMany = `{"errors":[{"field":null,"message":"too many requests"}]}`
)

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   text(401, "Maximum credits exceeded"),
	provider.Full:        text(401, "Maximum credits exceeded"),
	provider.Unverified:  errors(403, problem{badIdentity, "from", helpURL + "message.from"}),
	provider.Blocked:     statuses[403],
	provider.NotAllowed:  text(401, "Authenticated user is not authorized to send mail"),
	provider.LargeBatch:  statuses[403],
	provider.TooLarge:    statuses[413],
	provider.RateLimited: {Status: 429, Type: provider.TypeJSON, Body: tooMany},
	provider.RateUntil: {Status: 429, Type: provider.TypeJSON, Body: tooMany, Header: map[string]string{
		"X-RateLimit-Limit": "600", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "<reset>"}},
}

const (
	why    = "<code> <enhanced> <text>"
	entry  = `{"email":<address>,"created":<unix>`
	bounce = entry + `,"status":<status>,"reason":<text>}`
)

// lists are the suppression lists. Mail to addresses that were blocked is not dropped.
var lists = []provider.List{
	{Name: "bounces", Drops: message.SuppressedBounce, Status: "<enhanced>", Text: why, Item: bounce,
		Of: []message.Outcome{message.HardBounce, message.Async, message.MailboxFull, message.SuppressedBounce}},
	{Name: "blocks", Status: "<enhanced>", Text: why, Item: bounce, Of: []message.Outcome{message.Blocked}},
	{Name: "invalid_emails", Drops: message.Invalid, Of: []message.Outcome{message.Invalid},
		Item: entry + `,"reason":<text>}`, Text: "Mail domain mentioned in email address is unknown"},
	{Name: "spam_reports", Drops: message.SuppressedSpam, Item: entry + `,"ip":"198.51.100.7"}`,
		Of: []message.Outcome{message.SuppressedSpam, message.Complain}},
	{Name: "unsubscribes", Drops: message.SuppressedUnsub, Item: entry + `}`,
		Of: []message.Outcome{message.SuppressedUnsub, message.Unsubscribe}},
}

const (
	settings = `{"enabled":<enabled>,"url":"<webhook>","processed":true,"delivered":true,"deferred":true,"bounce":true,` +
		`"dropped":true,"open":true,"click":true,"spam_report":true,"unsubscribe":true,"group_unsubscribe":true,` +
		`"group_resubscribe":true}`
	// domains are the authenticated domains: the one of the account.
	domains = `[{"id":1,"domain":"<domain>","subdomain":"em1","valid":true,"dns":{"mail_cname":` +
		record + `em1.<domain>","data":"u1.wl.sendgrid.net"},"dkim1":` +
		record + `s1._domainkey.<domain>","data":"s1.domainkey.u1.wl.sendgrid.net"},"dkim2":` +
		record + `s2._domainkey.<domain>","data":"s2.domainkey.u1.wl.sendgrid.net"}}}]`
	record = `{"valid":true,"type":"cname","host":"`
)

// SendGrid is an account at SendGrid.
type SendGrid struct{ *provider.Provider }

// New returns the provider for an account. The signing key is an ECDSA P-256 private key; New generates one if it is
// empty.
func New(a *provider.Account) (*provider.Provider, error) {
	key, private, public, err := provider.ECDSA(a.SigningKey)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	a.SigningKey, a.PublicKey = private, public
	g := SendGrid{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Header:       map[string]string{"Server": "nginx", "Connection": "keep-alive", "X-Frame-Options": "DENY"},
		Statuses:     statuses,
		Conditions:   conditions,
		ID:           func(b *message.Batch) string { return a.IDs.Text(provider.ForMessage, b.Serial) },
		Unauthorized: provider.Key("Authorization", "Bearer "+a.Key, 401, 401),
	}}
	authenticated := domains
	if a.Domain == "" {
		authenticated = "[]"
	}
	g.Routes = []provider.Route{
		{Path: "POST v3/mail/send", Send: &provider.Send{Limit: maxBody, GZIP: true, Parse: g.parse}},
		{Path: "POST v3/logs", Access: provider.UsesLogs, Answer: g.listMessages},
		{Path: "GET v3/logs/{id}", Access: provider.UsesLogs, Answer: g.showMessage},
		{Path: "GET v3/suppression/{list}", Access: provider.UsesLists, Answer: g.showList},
		{Path: "DELETE v3/suppression/{list}/{address}", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "DELETE v3/asm/suppressions/global/{address}", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "GET v3/user/webhooks/event/settings/signed", Static: `{"public_key":"<public>"}`},
		{Path: "GET v3/user/webhooks/event/settings", Static: settings},
		{Path: "GET v3/scopes", Static: `{"scopes":["mail.send","user.webhooks.event.settings.read","whitelabel.read"]}`},
		{Path: "GET v3/whitelabel/domains", Static: authenticated},
	}
	g.Hooks = hooks(a, key)
	return g.Provider, nil
}

// hooks returns how the event webhook is collected, signed and repeated.
func hooks(a *provider.Account, key *ecdsa.PrivateKey) provider.Hooks {
	gaps := provider.Minutes(1, 2, 4, 8, 16, 32, 60)
	return provider.Hooks{
		Batching: provider.Batching{
			Events:     a.Options.FlushCount,
			Every:      a.Options.FlushEvery,
			Bytes:      maxPost,
			EventBytes: eventBytes,
			Open:       "[",
			Separator:  ",\r\n",
			Close:      "]\r\n",
		},
		Gaps: func(*provider.Stage) []time.Duration { return gaps },
		For:  24 * time.Hour,
		// Without a source of randomness the signature follows from the content, so that a repeated post carries the same
		// one.
		Sign: func(p provider.Post) ([]byte, http.Header, error) {
			timestamp := strconv.FormatInt(p.Time, 10)
			hash := sha256.New()
			hash.Write([]byte(timestamp))
			hash.Write(p.Body)
			signature, err := key.Sign(nil, hash.Sum(nil), crypto.SHA256)
			if err != nil {
				return nil, nil, err
			}
			return p.Body, http.Header{
				"User-Agent":                             {"SendGrid Event API"},
				"X-Twilio-Email-Event-Webhook-Signature": {base64.StdEncoding.EncodeToString(p.Forge(signature))},
				"X-Twilio-Email-Event-Webhook-Timestamp": {timestamp},
			}, nil
		},
	}
}

// showList answers with a page of a suppression list, the newest entries first.
func (g SendGrid) showList(r *http.Request) provider.Answer {
	list, now, form := r.PathValue("list"), time.Now(), r.URL.Query()
	if g.Named(list) == nil {
		return g.Say(404)
	}
	number := func(name string, otherwise int64) int64 {
		if n, err := strconv.ParseInt(form.Get(name), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	limit, offset := number("limit", maxListed), number("offset", 0)
	if limit < 1 || limit > maxListed || offset < 0 {
		return g.Say(400)
	}
	from, to := number("start_time", 0), number("end_time", now.Unix())
	entries := slices.DeleteFunc(g.Lists.All(list, now), func(e provider.Listed) bool {
		return e.At.Unix() < from || e.At.Unix() > to
	})
	slices.SortStableFunc(entries, func(a, b provider.Listed) int { return b.At.Compare(a.At) })
	return provider.JSON(200, g.Items(provider.Part(entries, int(offset), int(limit))))
}

// unlist removes an address from a suppression list.
func (g SendGrid) unlist(r *http.Request) provider.Answer {
	list := cmp.Or(r.PathValue("list"), "unsubscribes")
	if !g.Lists.Remove(list, r.PathValue("address"), time.Now()) {
		return g.Say(404)
	}
	return provider.Answer{Status: http.StatusNoContent}
}
