// Package mailjet imitates Mailjet: Send API v3.1, the log of messages with their histories, and grouped events.
package mailjet

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxPage  = 1000
	customID = "CustomID"
)

func fail(status int, code, text string) provider.Answer {
	return provider.JSON(status, map[string]any{"ErrorIdentifier": "06df1144-c6f3-4ca7-8885-7ec5d4344113",
		"ErrorCode": code, "StatusCode": status, "ErrorMessage": text})
}

// statuses are the answers that Mailjet has for a status. A call that is too large has 400.
var statuses = map[int]provider.Answer{
	400: fail(400, "mj-0002", "Malformed JSON, please review the syntax and properties types."),
	401: fail(401, "mj-0015", "API key authentication/authorization failure."),
	403: fail(403, "", "Access denied."),
	404: fail(404, "", "Object not found."),
	405: fail(405, "", "Method not allowed."),
	413: fail(400, "mj-0011", "The payload is over the limit."),
	500: fail(500, "", "Something went wrong."),
	503: fail(503, "", "Service unavailable."),
}

// conditions are the answers under each condition. Too many requests have no JSON.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(403, "", "Your plan has no emails left."),
	provider.Full:        fail(403, "", "Your plan has no emails left."),
	provider.Unverified:  fail(403, "send-0008", `"From" is not an authorized sender email address for your account.`),
	provider.Blocked:     fail(403, "", "Access denied."),
	provider.NotAllowed:  fail(401, "mj-0001", "This API key is suspended."),
	provider.LargeBatch:  fail(400, "mj-0008", "Too many elements."),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: {Status: 429, Type: provider.TypeHTML, Body: "Rate limit exceeded"},
}

// failed returns the word for mail that was not delivered. Its kind is the event in the history.
func failed(event, kind, about, text string) provider.Word {
	fields := `,"error_related_to":"` + about + `","error":"` + text + `"`
	if event == "bounce" {
		hard := strconv.FormatBool(kind == "hardbounced")
		fields += `,"blocked":` + hard + `,"hard_bounce":` + hard + `,"comment":"<code> <enhanced> <text>"`
	}
	return provider.Word{Event: event, Kind: kind, Status: kind, Fields: fields}
}

const seen = `,"ip":"198.51.100.7","geo":"DE","agent":"Mozilla/5.0 (simulator)"`

// wording holds what Mailjet reports. It has no webhook for mail that it takes, and knows no recipients who
// unsubscribed from such mail.
var wording = provider.Wording{
	Hook: `{"event":"<event>","time":<unix>,"MessageID":<number>,"Message_GUID":"u-<id>","email":<address>,` +
		`"mj_campaign_id":0,"mj_contact_id":1,"customcampaign":"","CustomID":<custom>,"Payload":""<fields>}`,
	Holes: provider.Holes{Copy: map[string]provider.Hole{
		"number": func(dst []byte, v *provider.View) []byte {
			return strconv.AppendUint(dst, number(v.ID, v.Copy.Index), 10)
		},
		"custom": func(dst []byte, v *provider.View) []byte { return provider.Quote(dst, own(v)) },
	}},
	Retry:  5 * time.Minute,
	Expire: []time.Duration{time.Hour, 12 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken: {Event: "queued", Kind: "queued", Status: "queued", Hidden: true},
		provider.Delivered: {Event: "sent", Kind: "sent", Status: "sent",
			Fields: `,"mj_message_id":"<number>","smtp_reply":"sent (250 2.0.0 OK)"`},
		provider.Deferred:       failed("bounce", "softbounced", "domain", "greylisted"),
		provider.Expired:        failed("bounce", "softbounced", "domain", "no mail host"),
		provider.BouncedHard:    failed("bounce", "hardbounced", "recipient", "user unknown"),
		provider.BouncedBlocked: failed("bounce", "softbounced", "spam", "policy issue"),
		provider.BouncedFull:    failed("bounce", "softbounced", "recipient", "quota exceeded"),
		provider.BouncedLate:    failed("bounce", "hardbounced", "recipient", "user unknown"),
		provider.DroppedBounce:  failed("blocked", "blocked", "mailjet", "preblocked"),
		provider.DroppedSpam:    failed("blocked", "blocked", "recipient", "spam reporter"),
		provider.DroppedInvalid: failed("blocked", "blocked", "domain", "typofix"),
		provider.DroppedContent: failed("blocked", "blocked", "spam", "content blocked"),
		provider.Complained:     {Event: "spam", Kind: "spam", Status: "spam", Fields: `,"source":"JMRPP"`},
		provider.Unsubscribed:   {Event: "unsub", Kind: "unsub", Status: "unsub", Fields: `,"mj_list_id":1` + seen},
		provider.Opened:         {Event: "open", Kind: "opened", Status: "opened", Fields: seen},
		provider.Clicked: {Event: "click", Kind: "clicked", Status: "clicked",
			Fields: `,"url":"https://example.com/"` + seen},
	},
}

var stages = sync.OnceValue(wording.Stages)

// number returns the message ID of copy n of a batch, by the ID of the batch. No float64 can hold it.
func number(batch string, n uint32) uint64 {
	first, _ := strconv.ParseUint(batch, 10, 64)
	return first + uint64(n)
}

// own returns the custom ID of a copy, which is all of its metadata.
func own(v *provider.View) string {
	for _, value := range v.Batch.Metadata(v.Copy) {
		return value
	}
	return ""
}

// Mailjet is an API key at Mailjet.
type Mailjet struct{ *provider.Provider }

// New returns the provider for an account. Its key is both keys of the API, joined by a colon. The signing key is
// user:password, which webhooks carry; it may be empty.
func New(a *provider.Account) (*provider.Provider, error) {
	g := Mailjet{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Statuses:     statuses,
		Conditions:   conditions,
		Unauthorized: provider.Key("Authorization", provider.Basic(a.Key), 401, 401),
		ID: func(b *message.Batch) string {
			return strconv.FormatUint(1<<56|1|a.IDs.Mix(provider.ForMessage, b.Serial)&(1<<48-1)<<8, 10)
		},
	}}
	const hooks = `{"Count":1,"Data":[{"EventType":"sent","Status":"alive","Url":"<webhook>","Version":2}],"Total":1}`
	g.Routes = []provider.Route{
		{Path: "POST v3.1/send", Send: &provider.Send{Limit: maxCall, Parse: g.parse}},
		{Path: "GET v3/REST/message", Access: provider.UsesLogs, Answer: g.messages},
		{Path: "GET v3/REST/messagehistory/{id}", Access: provider.UsesLogs, Answer: g.history},
		{Path: "GET v3/REST/sender", Static: `{"Count":1,"Data":[{"Email":"*@<domain>","Status":"Active"}],"Total":1}`},
		{Path: "GET v3/REST/eventcallbackurl", Static: hooks},
	}
	g.Hooks = provider.Hooks{
		Batching: provider.Batching{Events: 100, Every: time.Second, EventBytes: 600, Open: "[", Separator: ",", Close: "]"},
		Only200:  true,
		Gaps:     func(*provider.Stage) []time.Duration { return []time.Duration{30 * time.Second} },
		For:      24 * time.Hour,
		Sign:     func(p provider.Post) ([]byte, http.Header, error) { return p.Secret("Mailjet", a.SigningKey) },
	}
	return g.Provider, nil
}

// data returns an answer with a page of a list.
func data[T any](list []T, total int) provider.Answer {
	return provider.JSON(200, map[string]any{"Count": len(list), "Data": list, "Total": total})
}

// messages answers with a page of the messages that match, the oldest first. A message has one recipient.
func (g Mailjet) messages(r *http.Request) provider.Answer {
	q := r.URL.Query()
	limit, err1 := strconv.Atoi(cmp.Or(q.Get("Limit"), "10"))
	offset, err2 := strconv.Atoi(cmp.Or(q.Get("Offset"), "0"))
	from, err3 := strconv.ParseInt(cmp.Or(q.Get("FromTS"), "0"), 10, 64)
	to, err4 := strconv.ParseInt(cmp.Or(q.Get("ToTS"), strconv.Itoa(math.MaxInt)), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || limit < 0 || limit > maxPage || offset < 0 {
		return fail(400, "", "Invalid filter.")
	}
	list := []map[string]any{}
	for _, l := range g.Logged(time.Now(), func(b *message.Batch) bool {
		return b.Accepted().Unix() >= from && b.Accepted().Unix() <= to
	}) {
		for i := range l.Copies {
			v := l.View(&l.Copies[i])
			m := map[string]any{"ID": number(v.ID, v.Copy.Index), "UUID": "u-" + v.ID,
				"ArrivedAt": l.Accepted().UTC().Format(time.RFC3339),
				"Status":    v.Status, "StatePermanent": v.Status == "hardbounced", "CustomID": "", "ContactAlt": ""}
			for name, value := range map[string]string{customID: own(&v), "ContactAlt": v.Copy.Address} {
				if q.Get("Show"+name) == "true" {
					m[name] = value
				}
			}
			if id := q.Get(customID); id == "" || id == own(&v) {
				list = append(list, m)
			}
		}
	}
	return data(provider.Part(list, offset, limit), len(list))
}

// history answers with the events of a message.
func (g Mailjet) history(r *http.Request) provider.Answer {
	list := []map[string]any{}
	for _, l := range g.Logged(time.Now(), func(*message.Batch) bool { return true }) {
		for i := range l.Copies {
			v := l.View(&l.Copies[i])
			if strconv.FormatUint(number(v.ID, v.Copy.Index), 10) != r.PathValue("id") {
				continue
			}
			events, _ := l.Of(&l.Copies[i])
			for _, e := range events {
				var f struct{ Error, Comment string }
				_ = json.Unmarshal([]byte("{"+strings.TrimPrefix(e.Stage.Fields, ",")+"}"), &f)
				list = append(list, map[string]any{"EventType": e.Stage.Kind, "EventAt": e.Event.At().Unix(),
					"Comment": f.Comment, "State": f.Error, "Useragent": ""})
			}
		}
	}
	if len(list) == 0 {
		return g.Say(http.StatusNotFound)
	}
	return data(list, len(list))
}
