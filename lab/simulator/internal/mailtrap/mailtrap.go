// Package mailtrap imitates the Email API of Mailtrap: POST /api/send and /api/batch, the email logs, the suppressions
// and the webhooks. At Mailtrap, sending has a host of its own.
package mailtrap

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	logPage  = 100
	listPage = 1000
)

func fail(status int, errors ...string) provider.Answer {
	return provider.JSON(status, map[string]any{"success": false, "errors": errors})
}

// statuses are the answers that Mailtrap has for a status.
var statuses = map[int]provider.Answer{
	400: fail(400, "Bad Request"),
	401: fail(401, "Unauthorized"),
	403: fail(403, "Forbidden"),
	404: provider.JSON(404, map[string]any{"error": "Not Found"}),
	413: fail(413, "Request entity too large"),
	500: fail(500, "Internal server error"),
	503: fail(503, "Service unavailable"),
}

var tooMany = provider.JSON(429, map[string]any{"errors": "Rate limit exceeded"})

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(403, "You have reached the limit of your billing plan"),
	provider.Full:        fail(403, "You have reached the limit of your billing plan"),
	provider.Unverified:  fail(403, "The domain of the sender is not verified"),
	provider.Blocked:     fail(403, "Forbidden"),
	provider.NotAllowed:  fail(403, "Sending is suspended for this account"),
	provider.LargeBatch:  fail(400, "Batch size exceeds 500 messages"),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: tooMany,
	provider.RateUntil: {Status: 429, Type: provider.TypeJSON, Body: tooMany.Body,
		Header: map[string]string{"Retry-After": "<seconds>"}},
}

// word returns an event with the fields of its webhook and its details in the logs.
func word(hook, log, status, fields, detail string) provider.Word {
	return provider.Word{Event: hook, Kind: log, Status: status, Fields: fields, Detail: detail}
}

// bounce returns a bounce of a category.
func bounce(category string) provider.Word {
	category = `,"bounce_category":"` + category + `"`
	return word("bounce", "bounce", "not_delivered",
		`,"response":"bounced (<code> <enhanced> <text>)","response_code":<code>`+category,
		`,"email_service_provider_status":"<enhanced>",`+
			`"email_service_provider_response":"<code> <enhanced> <text>"`+category)
}

// reject returns a mail that is not sent, or not yet.
func reject(name, status, reason string) provider.Word {
	return word(name, name, status, `,"reason":"`+reason+`"`, `,"reject_reason":"`+reason+`"`)
}

const seen = `,"ip":"198.51.100.7","user_agent":"Mozilla/5.0 (simulator)"`

// wording holds what Mailtrap reports. It has no webhook for mail that it takes.
var wording = provider.Wording{
	Hook: `{"event":"<event>","timestamp":<unix>,"sending_stream":"transactional","category":<tag>,` +
		`"custom_variables":<metadata>,"message_id":"<mid>","email":<address>,"event_id":"<eid>"<fields>}`,
	Log: `{"event_type":"<kind>","created_at":"<time>","details":{"sending_ip":null<detail>}}`,
	Holes: provider.Holes{Copy: map[string]provider.Hole{
		"mid": func(dst []byte, v *provider.View) []byte { return append(dst, messageID(v.ID, int(v.Copy.Index))...) },
		"eid": func(dst []byte, v *provider.View) []byte {
			return append(dst, v.IDs.UUID(v.IDs.Mix(provider.ForEvent, v.Batch.Serial, uint64(v.Copy.Index),
				uint64(v.Event.Stage)))...)
		},
	}},
	Retry:  10 * time.Minute,
	Expire: []time.Duration{time.Hour, 11 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken:     {Event: "enqueued", Kind: "enqueued", Status: "enqueued", Hidden: true},
		provider.Delivered: word("delivery", "delivery", "delivered", "", ""),
		provider.Deferred: word("soft bounce", "soft_bounce", "enqueued",
			`,"response":"soft bounce (<code> <enhanced> <text>)","response_code":<code>,"bounce_category":"unavailable"`,
			`,"email_service_provider_response":"<enhanced> <text>"`),
		provider.Expired: word("bounce", "bounce", "not_delivered", `,"response":"bounced (Connection timed out)"`,
			`,"email_service_provider_response":"Connection timed out"`),
		provider.BouncedHard:    bounce("invalid_recipient"),
		provider.BouncedBlocked: bounce("spam"),
		provider.BouncedFull:    bounce("mailbox_full"),
		provider.BouncedLate:    bounce("invalid_recipient"),
		provider.DroppedInvalid: bounce("invalid_recipient"),
		provider.DroppedBounce:  reject("reject", "opted_out", "hard bounce"),
		provider.DroppedSpam:    reject("reject", "opted_out", "spam complaint"),
		provider.DroppedUnsub:   reject("reject", "opted_out", "unsubscription"),
		provider.DroppedContent: reject("reject", "not_delivered", "content"),
		provider.DroppedQuota:   reject("suspension", "not_delivered", "other"),
		provider.Complained:     word("spam", "spam", "", "", `,"spam_feedback_type":"abuse"`),
		provider.Unsubscribed:   word("unsubscribe", "unsubscribe", "", seen, ""),
		provider.Opened:         word("open", "open", "", seen, ""),
		provider.Clicked: word("click", "click", "", seen+`,"url":"https://example.com/"`,
			`,"click_url":"https://example.com/track"`),
	},
}

// messageID returns the id of the message to a recipient, of a mail with an id.
func messageID(id string, recipient int) string {
	if recipient == 0 {
		return id
	}
	return id[:len(id)-3] + hex.EncodeToString([]byte{byte(recipient >> 4), byte(recipient << 4)})[:3]
}

var (
	stages = sync.OnceValue(wording.Stages)
	listed = provider.NewForm(`{"message_id":"<mid>","status":<state>,"subject":<subject>,"from":<from>,"to":<address>,`+
		`"sent_at":"<sent>","client_ip":null,"category":<tag>,"custom_variables":<metadata>,`+
		`"sending_stream":"transactional","domain_id":1,"template_id":null,"template_variables":{},`+
		`"opens_count":0,"clicks_count":0`, wording.Holes)
)

const entry = `{"id":"<id>","type":<list>,"created_at":"<time>","email":<address>,"sending_stream":"any",` +
	`"domain_name":null,"message_esp_response":<text>}`

// lists are the types of suppressions.
var lists = []provider.List{
	{Name: "hard bounce", Drops: message.SuppressedBounce, Text: "<code> <enhanced> <text>", Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid}},
	{Name: "spam complaint", Drops: message.SuppressedSpam, Item: entry, Of: []message.Outcome{message.Complain}},
	{Name: "unsubscription", Drops: message.SuppressedUnsub, Item: entry, Of: []message.Outcome{message.Unsubscribe}},
	{Name: "manual import", Drops: message.SuppressedUnsub, Item: entry},
}

// Mailtrap is an account at Mailtrap.
type Mailtrap struct{ *provider.Provider }

// New returns the provider for an account. The signing key is any text; New makes one if it is empty.
func New(a *provider.Account) (*provider.Provider, error) {
	if a.SigningKey == "" {
		a.SigningKey = a.IDs.Hex(32, provider.ForToken)
	}
	key := provider.Key("Authorization", "Bearer "+a.Key, 401, 401)
	g := Mailtrap{&provider.Provider{
		Account:    a,
		Stages:     stages(),
		Suppress:   lists,
		Statuses:   statuses,
		Conditions: conditions,
		Unauthorized: func(r *http.Request) int {
			if r.Header.Get("Api-Token") == a.Key {
				return 0
			}
			return key(r)
		},
	}}
	send := &provider.Send{Limit: maxCall, Parse: g.parse}
	g.Routes = []provider.Route{
		{Path: "POST api/send", Send: send},
		{Path: "POST api/batch", Send: send},
		{Path: "GET api/email_logs", Access: provider.UsesLogs, Answer: g.search},
		{Path: "GET api/email_logs/{id}", Access: provider.UsesLogs, Answer: g.show},
		{Path: "GET api/suppressions", Access: provider.UsesLists, Answer: g.suppressions},
		{Path: "DELETE api/suppressions/{id}", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "GET api/domains", Static: `{"data":[{"id":1,"domain_name":"<domain>","dns_verified":true,` +
			`"compliance_status":"compliant"}]}`},
	}
	g.Hooks = provider.Hooks{
		Batching: provider.Batching{Events: 500, Every: 30 * time.Second, EventBytes: 500, Open: `{"events":[`,
			Separator: ",", Close: "]}"},
		Only200: true,
		Gaps:    func(*provider.Stage) []time.Duration { return provider.Minutes(5, 10, 30, 60) },
		Sign: func(p provider.Post) ([]byte, http.Header, error) {
			mac := hex.EncodeToString(p.HMAC([]byte(a.SigningKey), p.Body))
			return p.Body, http.Header{"User-Agent": {"Mailtrap"}, "Mailtrap-Signature": {mac}}, nil
		},
	}
	return g.Provider, nil
}

// A row is a message in the logs.
type row struct {
	provider.Logged
	copied *message.Copy
	id     string
}

// rows returns all messages in the logs, the newest first.
func (g Mailtrap) rows() (out []row) {
	for _, l := range g.Logged(time.Now(), func(*message.Batch) bool { return true }) {
		for i := range l.Copies {
			out = append(out, row{l, &l.Copies[i], messageID(g.ID(l.Batch), i)})
		}
	}
	slices.Reverse(out)
	return out
}

// search answers with a page of messages that match. Filters that are not known are ignored.
func (g Mailtrap) search(r *http.Request) provider.Answer {
	q := r.URL.Query()
	from, to, ok := between(q.Get("filters[sent_after]"), q.Get("filters[sent_before]"))
	if !ok {
		return g.Say(400)
	}
	not := func(name, operator string, matches func(value string) bool) bool {
		values := append(q["filters["+name+"][value][]"], q["filters["+name+"][value]"]...)
		return q.Get("filters["+name+"][operator]") == operator && len(values) > 0 && !slices.ContainsFunc(values, matches)
	}
	list := slices.DeleteFunc(g.rows(), func(m row) bool {
		return m.Accepted().Before(from) || m.Accepted().After(to) ||
			not("to", "ci_equal", func(v string) bool { return strings.EqualFold(v, m.copied.Address) }) ||
			not("category", "equal", func(v string) bool { return slices.Contains(m.Tags, v) })
	})
	count := len(list)
	list = list[slices.IndexFunc(list, func(m row) bool { return m.id == q.Get("search_after") })+1:]
	var next any
	if len(list) > logPage {
		list = list[:logPage]
		next = list[logPage-1].id
	}
	found := []json.RawMessage{}
	for _, m := range list {
		found = append(found, append(listed.Append(nil, m.View(m.copied)), '}'))
	}
	return provider.JSON(200, map[string]any{"messages": found, "total_count": count, "next_page_cursor": next})
}

// between reads the limits of a search. A missing one is no limit.
func between(from, to string) (low, high time.Time, ok bool) {
	high, ok = time.Now().Add(time.Hour), true
	for text, at := range map[string]*time.Time{from: &low, to: &high} {
		if text != "" {
			t, err := time.Parse(time.RFC3339, text)
			*at, ok = t, ok && err == nil
		}
	}
	return low, high, ok && !high.Before(low)
}

// show answers with a message and its events.
func (g Mailtrap) show(r *http.Request) provider.Answer {
	for _, m := range g.rows() {
		if m.id != r.PathValue("id") {
			continue
		}
		var events []string
		views, _ := m.Of(m.copied)
		for _, v := range views {
			if !v.Stage.Hidden {
				events = append(events, string(v.Stage.Log.Append(nil, v)))
			}
		}
		body := string(listed.Append(nil, m.View(m.copied))) + `,"events":[` + strings.Join(events, ",") + "]}"
		return provider.Answer{Status: 200, Type: provider.TypeJSON, Body: body}
	}
	return g.Say(404)
}

// suppressions answers with a page of the suppressions that match.
func (g Mailtrap) suppressions(r *http.Request) provider.Answer {
	q := r.URL.Query()
	from, to, ok := between(q.Get("start_time"), q.Get("end_time"))
	if !ok {
		return g.Say(400)
	}
	list := slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return e.At.Before(from) || e.At.After(to) || q.Get("email") != "" && !strings.EqualFold(q.Get("email"), e.Address)
	})
	after := slices.IndexFunc(list, func(e provider.Listed) bool { return g.EntryID(e) == q.Get("last_id") })
	return provider.JSON(200, g.Items(provider.Part(list, after+1, listPage)))
}

// unlist removes an entry by its id.
func (g Mailtrap) unlist(r *http.Request) provider.Answer {
	for _, e := range g.Entries(time.Now()) {
		if g.EntryID(e) == r.PathValue("id") {
			g.Lists.Remove(e.List, e.Address, time.Now())
			return provider.JSON(200, g.Items([]provider.Listed{e})[0])
		}
	}
	return g.Say(404)
}
