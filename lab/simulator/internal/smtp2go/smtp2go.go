// Package smtp2go imitates SMTP2GO: mail without templates and schedules, the search of the activity, the suppressions
// and the webhooks, as JSON. Each request is a POST with JSON. A key that may not use a path gets 400.
package smtp2go

import (
	"encoding/json"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxPage  = 1000
	listPage = 100
)

// fail returns an error. Its data has the code, the text, and more.
func fail(status int, code, text string, more ...string) provider.Answer {
	data := map[string]any{"error_code": "E_ApiResponseCodes." + code, "error": text}
	if len(more) > 0 {
		data["field_validation_errors"] = map[string]string{"fieldname": more[0], "message": more[1]}
	}
	return provider.JSON(status, map[string]any{"request_id": "aa253464-0bd0-467a-b24b-6159dcd7be60", "data": data})
}

const exception = "API_EXCEPTION"

// invalid returns the error for a payload with a field that is not valid.
func invalid(field, text string) provider.Answer {
	return fail(400, "NON_VALIDATING_IN_PAYLOAD", "An error occurred processing the json data.", field,
		"The field '"+field+"' was expecting "+text+", Please correct your JSON payload and try again.")
}

// statuses are the answers that SMTP2GO has for a status.
var statuses = map[int]provider.Answer{
	400: invalid("data", "JSON"),
	401: fail(401, exception, "An API User matching the passed 'api_key' was not found"),
	403: fail(400, "ENDPOINT_PERMISSION_DENIED", "You do not have permission to access this API endpoint"),
	404: fail(404, exception, "Not found"),
	413: fail(413, exception, "Request body too large"),
	500: fail(500, exception, "Internal server error"),
	503: fail(503, exception, "Service unavailable"),
}

// conditions are the answers under each condition. No answer says when to call again.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(402, exception, "The email allowance of your plan is used up"),
	provider.Full:        fail(402, exception, "The email allowance of your plan is used up"),
	provider.Unverified:  fail(400, exception, "550 From header sender domain not verified"),
	provider.Blocked:     fail(403, exception, "Your IP address is not on the allow list"),
	provider.NotAllowed:  fail(403, exception, "This account is suspended"),
	provider.LargeBatch:  invalid("emails", "fewer emails"),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: fail(429, exception, "Too many requests"),
}

// word returns an event by its names in webhooks and in the activity.
func word(hook, log, text, fields string) provider.Word {
	return provider.Word{Event: hook, Kind: log, Fields: `"rcpt":<address>,"message":"` + text + `"` + fields,
		Detail: text}
}

func bounce(kind string) provider.Word {
	return word("bounce", kind+"-bounced", "<code> <enhanced> <text>", `,"bounce":"`+kind+`"`)
}

const seen = `,"srchost":"198.51.100.7","user-agent":"Mozilla/5.0 (simulator)","client":"Firefox"`

// wording holds what SMTP2GO reports. It tries again for a while, and reports nothing of it.
var wording = provider.Wording{
	Hook: `{"event":"<event>","time":"<second>","sendtime":"<sent>","sender":<from>,"from":<from>,` +
		`"auth":"api-simulated","email_id":"<id>","id":"e57b42854a69ee377c4221c22e08e5e7",` +
		`"subject":<subject>,<fields><headers>}`,
	Log: `{"event":"<kind>","date":"<second>","recipient":<address>,"email_id":"<id>","sender":<from>,` +
		`"subject":<subject>,"smtp_response":"<detail>","reason":"","error":"","custom_headers":{"":""<headers>}}`,
	Holes: provider.Holes{
		Event: map[string]provider.Hole{"second": func(dst []byte, v *provider.View) []byte {
			return v.Event.At().UTC().AppendFormat(dst, time.RFC3339)
		}},
		Copy: map[string]provider.Hole{"headers": headers},
	},
	Retry:  15 * time.Minute,
	Expire: []time.Duration{time.Hour, 11 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken:          {Event: "processed", Kind: "processed", Fields: `"recipients":[<address>]`},
		provider.Delivered:      word("delivered", "delivered", "250 2.0.0 OK", ""),
		provider.Expired:        word("bounce", "soft-bounced", "Connection timed out", `,"bounce":"soft"`),
		provider.BouncedHard:    bounce("hard"),
		provider.BouncedBlocked: bounce("soft"),
		provider.BouncedFull:    bounce("soft"),
		provider.BouncedLate:    bounce("hard"),
		provider.DroppedInvalid: bounce("hard"),
		provider.DroppedBounce:  word("reject", "rejected", "Recipient has hard-bounced before", ""),
		provider.DroppedSpam:    word("reject", "rejected", "Recipient has reported spam", ""),
		provider.DroppedUnsub:   word("reject", "rejected", "Recipient has unsubscribed", ""),
		provider.Complained:     word("spam", "spam", "", ""),
		provider.Unsubscribed:   word("unsubscribe", "unsubscribed", "", seen),
		provider.Opened:         word("open", "opened", "", seen+`,"read-secs":5`),
		provider.Clicked:        word("click", "clicked", "", seen),
	},
}

var stages = sync.OnceValue(wording.Stages)

// headers appends the header fields of a copy that its events have.
func headers(dst []byte, v *provider.View) []byte {
	for name, value := range v.Batch.Metadata(v.Copy) {
		field := textproto.CanonicalMIMEHeaderKey("X-" + strings.ReplaceAll(name, "_", "-"))
		dst = provider.Quote(append(provider.Quote(append(dst, ','), field), ':'), value)
	}
	return dst
}

const entry = `{"email_address":<address>,"reason":<list>,"block_description":<text>,"timestamp":"<utc>"}`

// lists are the types of suppressions.
var lists = []provider.List{
	{Name: "bounce", Drops: message.SuppressedBounce, Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid}},
	{Name: "spam", Drops: message.SuppressedSpam, Item: entry, Of: []message.Outcome{message.Complain}},
	{Name: "unsubscribe", Drops: message.SuppressedUnsub, Item: entry, Of: []message.Outcome{message.Unsubscribe}},
	{Name: "manual", Drops: message.SuppressedBounce, Item: entry},
}

// SMTP2GO is an API key of an account at SMTP2GO.
type SMTP2GO struct{ *provider.Provider }

// New returns the provider for an account. The signing key is user:password or a token, which webhooks carry; it may be
// empty.
func New(a *provider.Account) (*provider.Provider, error) {
	g := SMTP2GO{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Statuses:     statuses,
		Conditions:   conditions,
		Unauthorized: provider.Key("X-Smtp2go-Api-Key", a.Key, 401, 401),
	}}
	send := &provider.Send{Limit: maxCall, Parse: g.parse}
	g.Routes = []provider.Route{
		{Path: "POST v3/email/send", Send: send},
		{Path: "POST v3/email/batch", Send: send},
		{Path: "POST v3/activity/search", Access: provider.UsesLogs, Answer: g.search},
		{Path: "POST v3/suppression/view", Access: provider.UsesLists, Answer: g.suppressions},
		{Path: "POST v3/suppression/remove", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "POST v3/api_keys/permissions", Static: `{"data":["/email/send","/email/batch","/activity/search",` +
			`"/suppression/view","/suppression/remove","/domain/view","/webhook/view"]}`},
		{Path: "POST v3/domain/view", Static: `{"data":{"domains":[{"domain":{"fulldomain":"<domain>","dkim_verified":true,` +
			`"rpath_verified":true}}]}}`},
		{Path: "POST v3/webhook/view", Static: `{"data":[{"id":1,"url":"<webhook>","output_format":"json","events":[` +
			`"processed","delivered","bounce","reject","spam","unsubscribe","open","click"],"usernames":[],` +
			`"headers":["X-Sd-Log","X-Sd-Attempt"],"auth_header_type":"basic"}]}`},
	}
	g.Hooks = provider.Hooks{
		Gaps: func(*provider.Stage) []time.Duration { return provider.Minutes(6, 6, 6, 6, 6, 60) },
		For:  48 * time.Hour,
		Sign: func(p provider.Post) ([]byte, http.Header, error) { return p.Secret("SMTP2GO", a.SigningKey) },
	}
	return g.Provider, nil
}

// A query is one for the activity or the suppressions. Each has only some of the members.
type query struct {
	From    time.Time `json:"start_date"`
	To      time.Time `json:"end_date"`
	Limit   int       `json:"limit"`
	Token   string    `json:"continue_token"` // how many come before
	Search  string    `json:"search_recipient"`
	Headers []string  `json:"custom_headers"`
	Type    string    `json:"suppression_type"`
	Address string    `json:"email_address"`
	Reasons []string  `json:"reasons"`
	after   int
}

// read reads a query.
func read(r *http.Request) (q query, ok bool) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 1<<20))
	if err != nil || json.Unmarshal(body, &q) != nil {
		return q, false
	}
	if q.Token != "" {
		q.after, err = strconv.Atoi(q.Token)
	}
	return q, err == nil && q.after >= 0 && q.Limit <= maxPage
}

// page returns a page of a list, and the token of the next one.
func page[T any](q *query, list []T, limit int) (some []T, next any) {
	if some = provider.Part(list, q.after, limit); q.after+len(some) < len(list) {
		next = strconv.Itoa(q.after + len(some))
	}
	return some, next
}

// search answers with a page of the events that match, the newest first. It has those header fields that are asked for.
func (g SMTP2GO) search(r *http.Request) provider.Answer {
	q, ok := read(r)
	if !ok {
		return g.Say(400)
	}
	list := []map[string]any{}
	for _, l := range g.Logged(time.Now(), func(*message.Batch) bool { return true }) {
		for i := range l.Copies {
			views, _ := l.Of(&l.Copies[i])
			for _, v := range views {
				at := v.Event.At()
				if at.Before(q.From) || !at.Before(q.To) || !strings.Contains(v.Copy.Address, q.Search) {
					continue
				}
				e := map[string]any{}
				_ = json.Unmarshal(v.Stage.Log.Append(nil, v), &e)
				fields := e["custom_headers"].(map[string]any)
				for name := range fields {
					if !slices.Contains(q.Headers, name) {
						delete(fields, name)
					}
				}
				list = append(list, e)
			}
		}
	}
	slices.Reverse(list)
	some, next := page(&q, list, max(q.Limit, 1))
	return provider.JSON(200, map[string]any{"data": map[string]any{"events": some, "total_events": len(list),
		"continue_token": next}})
}

// suppressions answers with a page of the suppressions that match.
func (g SMTP2GO) suppressions(r *http.Request) provider.Answer {
	q, ok := read(r)
	if !ok {
		return g.Say(400)
	}
	list := slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return q.Type != "" && e.List != q.Type || e.At.Before(q.From) || e.At.After(q.To)
	})
	some, next := page(&q, list, listPage)
	return provider.JSON(200, map[string]any{"data": map[string]any{"results": g.Items(some),
		"total_results": len(list), "continue_token": next}})
}

// unlist removes an address from some suppressions.
func (g SMTP2GO) unlist(r *http.Request) provider.Answer {
	q, ok := read(r)
	if !ok {
		return g.Say(400)
	}
	out := []map[string]any{}
	for _, reason := range q.Reasons {
		out = append(out, map[string]any{"email_address": q.Address, "reason": reason,
			"removed": g.Lists.Remove(reason, q.Address, time.Now())})
	}
	return provider.JSON(200, map[string]any{"data": map[string]any{"suppressions": out}})
}
