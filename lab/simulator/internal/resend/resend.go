// Package resend imitates Resend: POST /emails and /emails/batch with idempotency keys, GET /emails, the suppression
// list, and webhooks, which Svix signs.
package resend

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxPage = 100
	secret  = "whsec_" // begins a signing key
)

func fail(status int, name, text string) provider.Answer {
	return provider.JSON(status, map[string]any{"statusCode": status, "name": name, "message": text})
}

// statuses are the answers that Resend has for a status.
var statuses = map[int]provider.Answer{
	400: fail(400, "validation_error", "We found an error with one or more fields in the request."),
	401: fail(401, "missing_api_key", "Missing API key in the authorization header."),
	403: fail(403, "invalid_api_key", "API key is invalid"),
	404: fail(404, "not_found", "The requested endpoint does not exist"),
	405: fail(405, "method_not_allowed", "This endpoint does not support the specified HTTP method."),
	409: fail(409, "concurrent_idempotent_requests", "Another request with the same idempotency key is in progress."),
	413: fail(413, "validation_error", "The request is too large."),
	422: fail(422, "validation_error", "The request body is missing one or more required fields."),
	500: fail(500, "application_error", "An unexpected error occurred."),
	503: fail(503, "service_unavailable", "The service is temporarily unavailable."),
}

var tooMany = fail(429, "rate_limit_exceeded",
	"Too many requests. Please limit the number of requests per second. Or contact support to increase rate limit.")

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(429, "daily_quota_exceeded", "You have reached your daily email sending quota."),
	provider.Full:        fail(429, "monthly_quota_exceeded", "You have reached your monthly email sending quota."),
	provider.Unverified:  fail(403, "validation_error", "The domain is not verified. Please, add and verify your domain."),
	provider.Blocked:     fail(403, "invalid_permission", "Access is denied."),
	provider.NotAllowed:  fail(403, "suspended_api_key", "Your API key is suspended."),
	provider.LargeBatch:  statuses[422],
	provider.TooLarge:    statuses[413],
	provider.RateLimited: tooMany,
	provider.RateUntil: {Status: 429, Type: provider.TypeJSON, Body: tooMany.Body, Header: map[string]string{
		"ratelimit-limit": "5", "ratelimit-remaining": "0", "ratelimit-reset": "<seconds>", "retry-after": "<seconds>"}},
	provider.KeyBusy:    statuses[409],
	provider.KeyReused:  fail(409, "invalid_idempotent_request", "The idempotency key had a different request payload."),
	provider.KeyInvalid: fail(400, "invalid_idempotency_key", "The key must be between 1-256 chars."),
}

// bounced returns the word for a bounce, in the vocabulary of Amazon SES.
func bounced(kind, subtype string) provider.Word {
	return provider.Word{Event: "email.bounced", Status: "bounced", Fields: `,"bounce":{"type":"` + kind +
		`","subType":"` + subtype + `","message":"The recipient's mail server sent a bounce message.",` +
		`"diagnosticCode":["smtp; <code> <enhanced> <text>"]}`}
}

// suppressed returns the word for mail to an address of the suppression list.
func suppressed(reason string) provider.Word {
	return provider.Word{Event: "email.suppressed", Status: "suppressed", Alone: true, Fields: `,"suppressed":{` +
		`"type":"OnAccountSuppressionList","reason":"` + reason + `","message":"The address is on the suppression list."}`}
}

const seen = `{"ipAddress":"198.51.100.7","timestamp":"<time>","userAgent":"Mozilla/5.0 (simulator)"`

// wording holds what Resend reports. It knows no unsubscription.
var wording = provider.Wording{
	Hook: `{"type":"<event>","created_at":"<time>","data":{"email_id":"<id>","from":<from>,"to":<to>,` +
		`"subject":<subject>,"created_at":"<sent>","tags":<metadata><fields>}}`,
	Retry:  5 * time.Minute,
	Expire: []time.Duration{time.Hour, 12 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken:          {Event: "email.sent", Status: "sent"},
		provider.Delivered:      {Event: "email.delivered", Status: "delivered"},
		provider.Deferred:       {Event: "email.delivery_delayed", Status: "delivery_delayed"},
		provider.Expired:        bounced("Transient", "General"),
		provider.BouncedHard:    bounced("Permanent", "General"),
		provider.BouncedBlocked: bounced("Transient", "General"),
		provider.BouncedFull:    bounced("Transient", "MailboxFull"),
		provider.BouncedLate:    bounced("Permanent", "General"),
		provider.DroppedBounce:  suppressed("previous_bounce"),
		provider.DroppedSpam:    suppressed("previous_complaint"),
		provider.DroppedInvalid: bounced("Permanent", "General"),
		provider.DroppedContent: bounced("Transient", "ContentRejected"),
		provider.DroppedQuota: {Event: "email.failed", Status: "failed",
			Fields: `,"failed":{"reason":"reached_daily_quota"}`},
		provider.Complained: {Event: "email.complained", Status: "complained"},
		provider.Opened:     {Event: "email.opened", Status: "opened", Fields: `,"open":` + seen + `}`},
		provider.Clicked: {Event: "email.clicked", Status: "clicked",
			Fields: `,"click":` + seen + `,"link":"https://example.com/"}`},
	},
}

var (
	stages = sync.OnceValue(wording.Stages)
	listed = provider.NewForm(`{"object":"email","id":"<id>","message_id":"<<id>@resend.dev>","from":<from>,"to":<to>,`+
		`"subject":<subject>,"created_at":"<sent>","last_event":<state>}`, provider.Holes{})
	gaps = append([]time.Duration{5 * time.Second}, provider.Minutes(5, 30, 120, 300, 600, 600)...)
)

const entry = `{"id":"<id>","email":<address>,"origin":<list>,"source_id":null,"created_at":"<time>"}`

// lists are the origins of the entries of the suppression list.
var lists = []provider.List{
	{Name: "bounce", Drops: message.SuppressedBounce, Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid, message.SuppressedBounce}},
	{Name: "complaint", Drops: message.SuppressedSpam, Item: entry,
		Of: []message.Outcome{message.Complain, message.SuppressedSpam}},
	{Name: "manual", Drops: message.SuppressedBounce, Item: entry},
}

// Resend is an account at Resend.
type Resend struct{ *provider.Provider }

// New returns the provider for an account. The signing key is whsec_ and base64; New makes one if it is empty.
func New(a *provider.Account) (*provider.Provider, error) {
	if a.SigningKey == "" {
		a.SigningKey = secret + base64.StdEncoding.EncodeToString(a.IDs.Bytes(24, provider.ForToken))
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(a.SigningKey, secret))
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("signing key: want %s and base64", secret)
	}
	g := Resend{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Statuses:     statuses,
		Conditions:   conditions,
		KeyLifetime:  24 * time.Hour,
		Unauthorized: provider.Key("Authorization", "Bearer "+a.Key, 401, 403),
	}}
	g.Routes = []provider.Route{
		{Path: "POST emails", Send: &provider.Send{Limit: maxBody, Parse: g.parse}},
		{Path: "POST emails/batch", Send: &provider.Send{Limit: maxBody, Parse: g.parse}},
		{Path: "GET emails", Access: provider.UsesLogs, Answer: g.showEmails},
		{Path: "GET emails/{id}", Access: provider.UsesLogs, Answer: g.showEmail},
		{Path: "GET suppressions", Access: provider.UsesLists, Answer: g.showList},
		{Path: "DELETE suppressions/{id}", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "GET domains", Static: `{"object":"list","data":[{"id":"d","name":"<domain>","status":"verified"}]}`},
	}
	g.Hooks = provider.Hooks{
		Resigns: true,
		Gaps:    func(*provider.Stage) []time.Duration { return gaps },
		Sign: func(p provider.Post) ([]byte, http.Header, error) {
			id, at := "msg_"+g.Token(p, 27), strconv.FormatInt(p.Time, 10)
			return p.Body, http.Header{"User-Agent": {"Svix-Webhooks/1.84"}, "Svix-Id": {id}, "Svix-Timestamp": {at},
				"Svix-Signature": {"v1," + base64.StdEncoding.EncodeToString(p.HMAC(key, []byte(id+"."+at+"."), p.Body))}}, nil
		},
	}
	return g.Provider, nil
}

// show returns an email as look-ups have it.
func show(l provider.Logged) any {
	return json.RawMessage(listed.Append(nil, l.View(&l.Copies[0])))
}

// showEmails answers with a page of emails, the newest first.
func (g Resend) showEmails(r *http.Request) provider.Answer {
	list := g.Logged(time.Now(), func(*message.Batch) bool { return true })
	slices.Reverse(list)
	return page(r, list, func(l provider.Logged) string { return g.ID(l.Batch) }, show)
}

// page answers with a page of a list.
func page[T any](r *http.Request, list []T, id func(T) string, show func(T) any) provider.Answer {
	q := r.URL.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "20"))
	if err != nil || limit < 1 || limit > maxPage {
		return fail(422, "validation_error", "The pagination limit must be a number between 1 and 100.")
	}
	at := func(name string) int { return slices.IndexFunc(list, func(e T) bool { return id(e) == q.Get(name) }) }
	if end := at("before"); end >= 0 {
		list = list[max(0, end-limit):end]
	}
	list = list[at("after")+1:]
	items := []any{}
	for _, e := range provider.Part(list, 0, limit) {
		items = append(items, show(e))
	}
	return provider.JSON(200, map[string]any{"object": "list", "has_more": len(list) > limit, "data": items})
}

func (g Resend) showEmail(r *http.Request) provider.Answer {
	if l, ok := g.Mail(r.PathValue("id")); ok {
		return provider.JSON(200, show(l))
	}
	return fail(404, "not_found", "Email not found")
}

// entries returns the suppression list, the newest entries first.
func (g Resend) entries(origin string) []provider.Listed {
	other := func(e provider.Listed) bool { return origin != "" && origin != e.List }
	list := slices.DeleteFunc(g.Entries(time.Now()), other)
	slices.SortStableFunc(list, func(a, b provider.Listed) int { return b.At.Compare(a.At) })
	return list
}

func (g Resend) showList(r *http.Request) provider.Answer {
	return page(r, g.entries(r.URL.Query().Get("origin")), g.EntryID,
		func(e provider.Listed) any { return g.Items([]provider.Listed{e})[0] })
}

// unlist removes an entry, named by its id or its address.
func (g Resend) unlist(r *http.Request) provider.Answer {
	removed := false
	for _, e := range g.entries("") {
		if id := g.EntryID(e); id == r.PathValue("id") || strings.EqualFold(e.Address, r.PathValue("id")) {
			removed = g.Lists.Remove(e.List, e.Address, time.Now()) || removed
		}
	}
	if !removed {
		return fail(404, "not_found", "Suppression not found")
	}
	return provider.JSON(200, map[string]any{"object": "suppression", "id": r.PathValue("id"), "deleted": true})
}
