// Package postmark imitates Postmark: mail without templates, the search of outbound messages, the suppression lists
// and the webhooks.
package postmark

import (
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
	maxPage   = 500
	maxWindow = 10_000 // count + offset
	token     = "X-Postmark-Server-Token"
	testToken = "POSTMARK_API_TEST" // checks calls and sends nothing
)

func fail(status, code int, text string) provider.Answer {
	return provider.JSON(status, map[string]any{"ErrorCode": code, "Message": text})
}

// statuses are the answers that Postmark has for a status.
var statuses = map[int]provider.Answer{
	401: fail(401, 10, "No Account or Server API tokens were supplied in the HTTP headers, or the token is not valid."),
	403: fail(403, 10, "This token has no access."),
	404: fail(404, 0, "Not found."),
	413: fail(413, 0, "The payload is too large."),
	415: fail(415, 0, "The Content-Type must be application/json."),
	422: fail(422, 402, "Received invalid JSON input."),
	500: fail(500, 0, "Internal server error."),
	503: fail(503, 100, "Maintenance: the API is offline."),
}

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(422, 405, "Not allowed to send: you have run out of credits."),
	provider.Full:        fail(422, 405, "Not allowed to send: you have run out of credits."),
	provider.Unverified:  fail(422, 400, "The 'From' address you supplied is not a Sender Signature on your account."),
	provider.Blocked:     fail(403, 0, "The address of the caller is blocked."),
	provider.NotAllowed:  fail(422, 413, "This account may not send."),
	provider.LargeBatch:  fail(422, 410, "Too many messages in a batch."),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: fail(429, 429, "Rate limit exceeded."),
}

// bounce returns the word for a bounce of the type. Of a bounce look-ups have only the ID.
func bounce(kind, name string, code int, inactive bool) provider.Word {
	return provider.Word{Event: "Bounce", Kind: "Bounced", Detail: `"BounceID":"<number>"`, Fields: fmt.Sprintf(
		`"ID":<number>,"Type":%q,"TypeCode":%d,"Name":%q,"Description":%[3]q,"Details":"smtp;<code> <enhanced> <text>",`+
			`"Email":<address>,"From":<from>,"BouncedAt":"<time>","DumpAvailable":false,"Inactive":%t,"CanActivate":%[4]t,`+
			`"Subject":<subject>`, kind, code, name, inactive)}
}

// delay is a bounce that look-ups show with the server's words, and without an ID.
var delay = func() provider.Word {
	w := bounce("Transient", "Message delayed", 2, false)
	w.Kind, w.Detail = "Transient", `"DeliveryMessage":"smtp;<code> <enhanced> <text>"`
	return w
}()

// number appends the ID of a bounce.
func number(dst []byte, v *provider.View) []byte {
	return strconv.AppendUint(dst, v.IDs.Mix(provider.ForEvent, v.Batch.Serial, uint64(v.Copy.Index),
		uint64(v.Event.Stage))>>11, 10)
}

const seen = `"Recipient":<address>,"ReceivedAt":"<time>","Platform":"Desktop","UserAgent":"Mozilla/5.0 (simulator)",`

// wording holds what Postmark reports. It has no webhook for mail that it takes.
var wording = provider.Wording{
	Hook: `{"RecordType":"<event>",<fields>,"MessageID":"<id>","ServerID":1,"MessageStream":<stream>,"Tag":<tag>,` +
		`"Metadata":<metadata>}`,
	Log:    `{"Recipient":<address>,"Type":"<kind>","ReceivedAt":"<time>","Details":{<detail>}}`,
	Holes:  provider.Holes{Copy: map[string]provider.Hole{"number": number}},
	Retry:  15 * time.Minute,
	Expire: []time.Duration{time.Hour, 11 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken: {Event: "Sent", Kind: "Sent", Hidden: true, Fields: `"Recipient":<address>`},
		provider.Delivered: {Event: "Delivery", Kind: "Delivered", Detail: `"DeliveryMessage":"smtp;250 2.0.0 OK"`,
			Fields: `"Recipient":<address>,"DeliveredAt":"<time>","Details":"smtp;250 2.0.0 OK"`},
		provider.Deferred:       delay,
		provider.Expired:        bounce("SoftBounce", "Soft bounce", 4096, false),
		provider.BouncedHard:    bounce("HardBounce", "Hard bounce", 1, true),
		provider.BouncedBlocked: bounce("Blocked", "ISP block", 100006, false),
		provider.BouncedFull:    bounce("SoftBounce", "Soft bounce", 4096, false),
		provider.BouncedLate:    bounce("HardBounce", "Hard bounce", 1, true),
		provider.DroppedInvalid: bounce("BadEmailAddress", "Invalid email address", 100000, true),
		provider.DroppedContent: bounce("SpamNotification", "Spam notification", 512, false),
		provider.Complained: {Event: "SpamComplaint", Kind: "SpamComplaint", Fields: strings.Replace(
			bounce("SpamComplaint", "Spam complaint", 100001, true).Fields, "smtp;<code> <enhanced> <text>", "", 1)},
		provider.Unsubscribed: {Event: "SubscriptionChange", Kind: "SubscriptionChanged", Fields: `"Recipient":<address>,` +
			`"ChangedAt":"<time>","Origin":"Recipient","SuppressSending":true,"SuppressionReason":"ManualSuppression"`},
		provider.Opened: {Event: "Open", Kind: "Opened", Fields: seen + `"FirstOpen":true`},
		provider.Clicked: {Event: "Click", Kind: "LinkClicked", Detail: `"Link":"https://example.com/"`,
			Fields: seen + `"ClickLocation":"HTML","OriginalLink":"https://example.com/"`},
	},
}

var stages = sync.OnceValue(wording.Stages)

const entry = `{"EmailAddress":<address>,"SuppressionReason":<list>,"Origin":<text>,"CreatedAt":"<time>"}`

// lists are the reasons of suppressions. The text of an entry is its origin.
var lists = []provider.List{
	{Name: "HardBounce", Drops: message.SuppressedBounce, Text: "Recipient", Item: entry,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid}},
	{Name: "SpamComplaint", Drops: message.SuppressedSpam, Text: "Recipient", Item: entry,
		Of: []message.Outcome{message.Complain}},
	{Name: "ManualSuppression", Drops: message.SuppressedUnsub, Text: "Recipient", Item: entry,
		Of: []message.Outcome{message.Unsubscribe}},
}

// Postmark is a server at Postmark.
type Postmark struct{ *provider.Provider }

// New returns the provider for an account. The signing key is user:password, which webhooks carry; it may be empty.
func New(a *provider.Account) (*provider.Provider, error) {
	key := provider.Key(token, a.Key, 401, 401)
	g := Postmark{&provider.Provider{
		Account:    a,
		Stages:     stages(),
		Suppress:   lists,
		Statuses:   statuses,
		Conditions: conditions,
		Unauthorized: func(r *http.Request) int {
			if r.Header.Get(token) == testToken {
				return 0
			}
			return key(r)
		},
	}}
	send := &provider.Send{Limit: maxCall, Parse: g.parse}
	const lists = "message-streams/{stream}/suppressions"
	g.Routes = []provider.Route{
		{Path: "POST email", Send: send},
		{Path: "POST email/batch", Send: send},
		{Path: "GET messages/outbound", Access: provider.UsesLogs, Answer: g.search},
		{Path: "GET messages/outbound/{id}/details", Access: provider.UsesLogs, Answer: g.details},
		{Path: "GET bounces/{id}", Access: provider.UsesLogs, Answer: g.showBounce},
		{Path: "GET " + lists + "/dump", Access: provider.UsesLists, Answer: g.dump},
		{Path: "POST " + lists + "/delete", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "GET server", Static: `{"ID":1,"Name":"simulated","DeliveryType":"Live"}`},
	}
	g.Hooks = provider.Hooks{
		Only200: true,
		Final:   http.StatusForbidden,
		Gaps: func(s *provider.Stage) []time.Duration {
			if s.Event == "Bounce" {
				return provider.Minutes(1, 5, 10, 10, 10, 15, 30, 60, 120, 360)
			}
			return provider.Minutes(1, 5, 15)
		},
		Sign: func(p provider.Post) ([]byte, http.Header, error) { return p.Secret("Postmark", a.SigningKey) },
	}
	return g.Provider, nil
}

// message returns a message as look-ups have it.
func (g Postmark) message(l *provider.Logged) map[string]any {
	mailboxes := func(flags uint8) []any {
		list := []any{}
		for _, a := range l.Addresses(flags) {
			list = append(list, map[string]any{"Email": a, "Name": nil})
		}
		return list
	}
	v := provider.View{Batch: l.Batch, Copy: &l.Copies[0]}
	all := slices.Concat(l.Addresses(0), l.Addresses(message.CC), l.Addresses(message.BCC))
	return map[string]any{"MessageID": g.ID(l.Batch), "To": mailboxes(0), "Cc": mailboxes(message.CC),
		"Bcc": mailboxes(message.BCC), "Recipients": all, "From": l.From, "Subject": v.Subject(), "Status": "Sent",
		"Tag": strings.Join(l.Tags, ""), "Metadata": json.RawMessage(provider.AppendMetadata(nil, &v)),
		"MessageStream": l.Stream, "ReceivedAt": l.Accepted().UTC().Format(time.RFC3339Nano), "Sandboxed": false}
}

// search answers with the messages that match, the newest first.
func (g Postmark) search(r *http.Request) provider.Answer {
	q := r.URL.Query()
	count, err1 := strconv.Atoi(q.Get("count"))
	offset, err2 := strconv.Atoi(q.Get("offset"))
	if err1 != nil || err2 != nil || count < 1 || count > maxPage || offset < 0 || count+offset > maxWindow {
		return fail(422, 600, "Parameters 'count' and 'offset' are required; their sum must not exceed 10000.")
	}
	from, to, err := days(q.Get("fromdate"), q.Get("todate"))
	if err != nil {
		return fail(422, 600, "Invalid 'fromdate' or 'todate'.")
	}
	found := []map[string]any{}
	for _, l := range slices.Backward(g.Logged(time.Now(), func(b *message.Batch) bool {
		return !b.Accepted().Before(from) && !b.Accepted().After(to)
	})) {
		m := g.message(&l)
		has := map[string]string{"recipient": strings.Join(m["Recipients"].([]string), " "), "fromemail": l.From,
			"tag": m["Tag"].(string), "subject": m["Subject"].(string), "messagestream": l.Stream, "status": "sent"}
		for key, value := range l.Metadata(&l.Copies[0]) {
			has["metadata_"+key] = value
		}
		matches := true
		for name := range q {
			matches = matches && (strings.HasSuffix(name, "date") || name == "count" || name == "offset" ||
				strings.EqualFold(has[name], q.Get(name)) ||
				name == "recipient" && slices.Contains(strings.Fields(has[name]), q.Get(name)))
		}
		if matches {
			found = append(found, m)
		}
	}
	return provider.JSON(200, map[string]any{"TotalCount": len(found), "Messages": provider.Part(found, offset, count)})
}

// days reads the limits of a search, which are US Eastern time. A missing one is no limit.
func days(from, to string) (low, high time.Time, err error) {
	high = time.Now().Add(time.Hour)
	zone, err := time.LoadLocation("America/New_York")
	for text, at := range map[string]*time.Time{from: &low, to: &high} {
		if layout := "2006-01-02T15:04:05"; text != "" && err == nil { // or the date alone
			*at, err = time.ParseInLocation(layout[:min(len(text), len(layout))], text, zone)
		}
	}
	return low, high, err
}

// details answers with a message and its events.
func (g Postmark) details(r *http.Request) provider.Answer {
	l, ok := g.Mail(r.PathValue("id"))
	if !ok {
		return fail(422, 701, "This message was not found.")
	}
	m, events := g.message(&l), []json.RawMessage{}
	for i := range l.Copies {
		views, _ := l.Of(&l.Copies[i])
		for _, v := range views {
			if !v.Stage.Hidden {
				events = append(events, v.Stage.Log.Append(nil, v))
			}
		}
	}
	m["MessageEvents"] = events
	return provider.JSON(200, m)
}

// showBounce answers with a bounce: its webhook without what webhooks add.
func (g Postmark) showBounce(r *http.Request) provider.Answer {
	for _, l := range g.Logged(time.Now(), func(*message.Batch) bool { return true }) {
		for i := range l.Copies {
			views, _ := l.Of(&l.Copies[i])
			for _, v := range views {
				if v.Stage.Event != "Bounce" || string(number(nil, &v)) != r.PathValue("id") {
					continue
				}
				var b map[string]json.RawMessage
				if json.Unmarshal(v.Stage.Hook.Append(nil, v), &b) == nil {
					delete(b, "RecordType")
					delete(b, "Metadata")
					return provider.JSON(200, b)
				}
			}
		}
	}
	return fail(422, 407, "The bounce was not found.")
}

// dump answers with all entries of the suppression lists that match.
func (g Postmark) dump(r *http.Request) provider.Answer {
	q := r.URL.Query()
	from, to, err := days(q.Get("fromdate"), q.Get("todate"))
	if err != nil {
		return fail(422, 600, "Invalid 'fromdate' or 'todate'.")
	}
	not := func(name, value string) bool { return q.Get(name) != "" && !strings.EqualFold(q.Get(name), value) }
	list := slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return not("SuppressionReason", e.List) || not("Origin", e.Text) || not("EmailAddress", e.Address) ||
			e.At.Before(from) || e.At.After(to)
	})
	return provider.JSON(200, map[string]any{"Suppressions": g.Items(list)})
}

// unlist removes addresses from the suppression lists, but for complaints.
func (g Postmark) unlist(r *http.Request) provider.Answer {
	var in struct {
		Suppressions []struct{ EmailAddress string }
	}
	if json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<20)).Decode(&in) != nil {
		return g.Say(422)
	}
	out := []any{}
	for _, e := range in.Suppressions {
		status := "Deleted"
		if o, _ := g.Lists.Drops(e.EmailAddress, time.Now()); o == message.SuppressedSpam {
			status = "Failed"
		} else {
			g.Lists.Remove("HardBounce", e.EmailAddress, time.Now())
			g.Lists.Remove("ManualSuppression", e.EmailAddress, time.Now())
		}
		out = append(out, map[string]any{"EmailAddress": e.EmailAddress, "Status": status, "Message": nil})
	}
	return provider.JSON(200, map[string]any{"Suppressions": out})
}
