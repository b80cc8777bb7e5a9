// Package brevo imitates Brevo: POST /v3/smtp/email with message versions and idempotency keys, the log of events, the
// blocked contacts and the webhooks.
package brevo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxLog  = 2500
	maxPage = 100
	maxDays = 90
	custom  = "X-Mailin-custom"
)

func fail(status int, code, text string) provider.Answer {
	return provider.JSON(status, map[string]any{"code": code, "message": text})
}

// statuses are the answers that Brevo has for a status.
var statuses = map[int]provider.Answer{
	400: fail(400, "bad_request", "Input must be a valid JSON object"),
	401: fail(401, "unauthorized", "Key not found"),
	403: fail(403, "permission_denied", "Permission denied"),
	404: fail(404, "document_not_found", "Document not found"),
	405: fail(405, "method_not_allowed", "Method not allowed"),
	413: fail(413, "bad_request", "Request entity too large"),
	500: fail(500, "internal_error", "Internal server error"),
	503: fail(503, "service_unavailable", "Service unavailable"),
}

var tooMany = fail(429, "too_many_requests", "API rate limit exceeded")

// conditions are the answers under each condition. A call whose key is known is ignored. It is not documented what it
// is answered.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits: fail(402, "not_enough_credits", "You do not have enough credits to send this email"),
	provider.Full:      fail(402, "not_enough_credits", "You do not have enough credits to send this email"),
	provider.Unverified: fail(400, "invalid_parameter", "Sending has been rejected because the sender you used is not "+
		"valid. Validate your sender or authenticate your domain"),
	provider.Blocked:     fail(401, "unauthorized", "We have detected you are using an unrecognised IP address"),
	provider.NotAllowed:  fail(403, "permission_denied", "Unable to send email. Your SMTP account is not yet activated"),
	provider.LargeBatch:  fail(400, "out_of_range", "messageVersions has too many elements"),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: tooMany,
	provider.RateUntil: {Status: 429, Type: provider.TypeJSON, Body: tooMany.Body, Header: map[string]string{
		"x-sib-ratelimit-limit": "100", "x-sib-ratelimit-remaining": "0", "x-sib-ratelimit-reset": "<seconds>"}},
	provider.KeyBusy:    fail(409, "duplicate_request", "A request with this key is in progress"),
	provider.KeyReused:  {Status: 201, Type: provider.TypeJSON, Body: "{}"},
	provider.KeyKnown:   {Status: 201, Type: provider.TypeJSON, Body: "{}"},
	provider.KeyInvalid: badKey,
}

// word returns the names of an event in webhooks and in the log, and why it happened.
func word(hook, log, reason string) provider.Word {
	w := provider.Word{Event: hook, Kind: log, Fields: `,"ts_epoch":<millis>`}
	if reason != "" {
		w.Fields += `,"reason":"` + reason + `"`
	}
	return w
}

const server, listed = "<code> <enhanced> <text>", "blocked : due to blacklist user"

// wording holds what Brevo reports. Its dates have a zone of their own, but for ts_epoch.
var wording = provider.Wording{
	Hook: `{"event":"<event>","email":<address>,"id":<account>,"date":"2026-01-01 00:00:00","ts":1,"ts_event":1,` +
		`"message-id":"<<id>>","subject":<subject>,"tag":<tag>,"tags":<tags>,"sending_ip":"198.51.100.7"<custom><fields>}`,
	Log: `{"email":<address>,"date":"<time>","subject":<subject>,"messageId":"<<id>>","event":"<kind>","tag":<tag>,` +
		`"from":<from><fields>}`,
	Holes: provider.Holes{
		Event: map[string]provider.Hole{
			"account": func(dst []byte, v *provider.View) []byte { return strconv.AppendUint(dst, v.IDs.Account()>>32, 10) },
			"millis": func(dst []byte, v *provider.View) []byte {
				return strconv.AppendInt(dst, v.Event.At().UnixMilli(), 10)
			},
			"tag": func(dst []byte, v *provider.View) []byte {
				return provider.Quote(dst, string(provider.AppendList(nil, v.Batch.Tags)))
			},
		},
		Copy: map[string]provider.Hole{"custom": func(dst []byte, v *provider.View) []byte {
			if len(v.Copy.Metadata) == 0 || v.Options.NoVersionHeaders {
				return dst
			}
			return provider.Quote(append(dst, `,"`+custom+`":`...), string(provider.AppendMetadata(nil, v)))
		}},
	},
	Retry:  10 * time.Minute,
	Expire: []time.Duration{time.Hour, 11 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken:          word("request", "requests", ""),
		provider.Delivered:      word("delivered", "delivered", ""),
		provider.Deferred:       word("deferred", "deferred", server),
		provider.Expired:        word("soft_bounce", "softBounces", "undefined Connection timed out"),
		provider.BouncedHard:    word("hard_bounce", "hardBounces", server),
		provider.BouncedBlocked: word("soft_bounce", "softBounces", server),
		provider.BouncedFull:    word("soft_bounce", "softBounces", server),
		provider.BouncedLate:    word("hard_bounce", "hardBounces", server),
		provider.DroppedBounce:  word("blocked", "blocked", listed),
		provider.DroppedSpam:    word("blocked", "blocked", listed),
		provider.DroppedUnsub:   word("blocked", "blocked", listed),
		provider.DroppedInvalid: word("invalid_email", "invalid", ""),
		provider.DroppedContent: word("error", "error", "the content was refused"),
		provider.DroppedQuota:   word("error", "error", "the quota is used up"),
		provider.Complained:     word("spam", "spam", ""),
		provider.Unsubscribed:   word("unsubscribed", "unsubscribed", ""),
		provider.Opened:         word("unique_opened", "opened", ""),
		provider.Clicked: {Event: "click", Kind: "clicks",
			Fields: `,"ts_epoch":<millis>,"link":"https://example.com/"`},
	},
}

var stages = sync.OnceValue(wording.Stages)

const entry = `{"email":<address>,"senderEmail":"shop@example.com","reason":{"code":<list>,"message":<text>},` +
	`"blockedAt":"<time>"}`

// lists are the blocked contacts by their reason.
var lists = []provider.List{
	{Name: "hardBounce", Drops: message.SuppressedBounce, Text: server, Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid}},
	{Name: "contactFlaggedAsSpam", Drops: message.SuppressedSpam, Text: "spam", Item: entry,
		Of: []message.Outcome{message.Complain}},
	{Name: "unsubscribedViaEmail", Drops: message.SuppressedUnsub, Text: "unsubscribed", Item: entry,
		Of: []message.Outcome{message.Unsubscribe}},
	{Name: "adminBlocked", Drops: message.SuppressedBounce, Item: entry},
}

// Brevo is an account at Brevo.
type Brevo struct{ *provider.Provider }

// New returns the provider for an account. The signing key is user:password or a bearer token, which webhooks carry; it
// may be empty.
func New(a *provider.Account) (*provider.Provider, error) {
	g := Brevo{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Statuses:     statuses,
		Conditions:   conditions,
		KeyLifetime:  30 * time.Minute,
		Key:          func(_ *http.Request, c *provider.Call) string { return c.Key },
		Unauthorized: provider.Key("api-key", a.Key, 401, 401),
	}}
	g.ID = func(b *message.Batch) string {
		return fmt.Sprintf("<%s.%011d@smtp-relay.sim.test>", b.Accepted().UTC().Format("200601021504"), b.Serial)
	}
	g.Routes = []provider.Route{
		{Path: "POST v3/smtp/email", Send: &provider.Send{Limit: maxCall, Parse: g.parse}},
		{Path: "GET v3/smtp/statistics/events", Access: provider.UsesLogs, Answer: g.events},
		{Path: "GET v3/smtp/blockedContacts", Access: provider.UsesLists, Answer: g.blocked},
		{Path: "DELETE v3/smtp/blockedContacts/{email}", Access: provider.UsesLists, Answer: g.unblock},
		{Path: "GET v3/account", Static: `{"email":"shop@example.com","relay":{"enabled":true}}`},
		{Path: "GET v3/senders/domains", Static: `{"domains":[{"id":"1","domain_name":"<domain>","authenticated":true}]}`},
	}
	g.Hooks = provider.Hooks{
		OnlyAfter: http.StatusTooManyRequests,
		Gaps:      func(*provider.Stage) []time.Duration { return provider.Minutes(10, 60, 120, 480) },
		Sign: func(p provider.Post) ([]byte, http.Header, error) {
			header, key := http.Header{"User-Agent": {"SendinBlue Webhook"}}, a.SigningKey
			if p.Forged {
				key += "x"
			}
			switch {
			case strings.Contains(key, ":"):
				header.Set("Authorization", provider.Basic(key))
			case key != "":
				header.Set("Authorization", "Bearer "+key)
			}
			return p.Body, header, nil
		},
	}
	return g.Provider, nil
}

// span reads the days of a query. Without them, there is no limit.
func span(r *http.Request) (from, to time.Time, ok bool) {
	q, now := r.URL.Query(), time.Now()
	first, last := q.Get("startDate"), q.Get("endDate")
	days, err := strconv.Atoi(cmp.Or(q.Get("days"), "0"))
	switch {
	case err != nil, days < 0, days > maxDays, (first == "") != (last == ""), days > 0 && first != "":
		return from, to, false
	case days > 0:
		return now.UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-days), now, true
	case first == "":
		return from, now.Add(time.Hour), true
	}
	from, err1 := time.Parse(time.DateOnly, first)
	to, err2 := time.Parse(time.DateOnly, last)
	return from, to.Add(24 * time.Hour), err1 == nil && err2 == nil && !to.Before(from)
}

// part returns the page of a list that a request asks for. The newest elements come first, unless it asks otherwise.
func part[T any](r *http.Request, list []T, limit, most int) ([]T, bool) {
	q := r.URL.Query()
	limit, err1 := strconv.Atoi(cmp.Or(q.Get("limit"), strconv.Itoa(limit)))
	offset, err2 := strconv.Atoi(cmp.Or(q.Get("offset"), "0"))
	sort := cmp.Or(q.Get("sort"), "desc")
	if err1 != nil || err2 != nil || limit < 1 || limit > most || offset < 0 || sort != "asc" && sort != "desc" {
		return nil, false
	}
	if sort != "asc" {
		slices.Reverse(list)
	}
	return provider.Part(list, offset, limit), true
}

// events answers with the events of the log that match. Parameters that are not known are ignored.
func (g Brevo) events(r *http.Request) provider.Answer {
	from, to, ok := span(r)
	q, tags := r.URL.Query(), []string(nil)
	if text := q.Get("tags"); !ok || text != "" && !jsontext.Decode(text, &tags) {
		return fail(400, "invalid_parameter", "days, startDate, endDate or tags is not valid")
	}
	not := func(name, value string) bool { return q.Get(name) != "" && !strings.EqualFold(q.Get(name), value) }
	var found []json.RawMessage
	log, oldest := g.Seen(time.Now())
	for i := range log {
		e := &log[i]
		v := g.View(e, 0)
		if e.Batch.Time < oldest || e.At().Before(from) || e.At().After(to) || not("messageId", v.ID) ||
			not("event", v.Stage.Kind) || !slices.ContainsFunc(append(tags, ""), func(t string) bool {
			return len(tags) == 0 || slices.Contains(e.Batch.Tags, t)
		}) {
			continue
		}
		for k := range e.Batch.Copies {
			if c := &e.Batch.Copies[k]; e.Includes(c) && !not("email", c.Address) {
				v.Copy = c
				found = append(found, v.Stage.Log.Append(nil, v))
			}
		}
	}
	if found, ok = part(r, found, maxLog, maxLog); !ok {
		return fail(400, "out_of_range", "limit, offset or sort is not valid")
	}
	return provider.JSON(200, map[string]any{"events": found})
}

// blocked answers with a page of the blocked contacts.
func (g Brevo) blocked(r *http.Request) provider.Answer {
	from, to, ok := span(r)
	list := slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return e.At.Before(from) || e.At.After(to)
	})
	slices.SortStableFunc(list, func(a, b provider.Listed) int { return a.At.Compare(b.At) })
	count := len(list)
	list, fits := part(r, list, 50, maxPage)
	if !ok || !fits {
		return fail(400, "out_of_range", "a date, limit, offset or sort is not valid")
	}
	return provider.JSON(200, map[string]any{"count": count, "contacts": g.Items(list)})
}

// unblock removes an address that was blocked for any reason.
func (g Brevo) unblock(r *http.Request) provider.Answer {
	removed := false
	for _, l := range lists {
		removed = g.Lists.Remove(l.Name, r.PathValue("email"), time.Now()) || removed
	}
	if !removed {
		return g.Say(404)
	}
	return provider.Answer{Status: http.StatusNoContent}
}
