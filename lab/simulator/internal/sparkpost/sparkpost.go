// Package sparkpost imitates SparkPost: transmissions with inline content and its template language, the Events API,
// the suppression list, and batches of webhooks.
package sparkpost

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

func fail(status int, code, text, description string) provider.Answer {
	return provider.JSON(status, map[string]any{"errors": []any{
		map[string]string{"message": text, "code": code, "description": description}}})
}

// statuses are the answers that SparkPost has for a status.
var statuses = map[int]provider.Answer{
	400: fail(400, "1400", "Bad request", ""),
	401: fail(401, "", "Unauthorized.", ""),
	403: fail(403, "", "Forbidden.", ""),
	404: fail(404, "1600", "Resource could not be found", ""),
	405: fail(405, "", "Method not allowed", ""),
	413: fail(413, "", "Request entity too large", ""),
	422: fail(422, "1300", "Invalid data format/type", "The body is not JSON of the documented form"),
	500: fail(500, "", "Internal server error", ""),
	503: fail(503, "", "Service unavailable", ""),
}

// conditions are the answers under each condition.
var conditions = map[provider.ConditionKind]provider.Answer{
	provider.NoCredits:   fail(420, "2102", "Exceed Sending Limit (daily)", ""),
	provider.Full:        fail(420, "2101", "Exceed Sending Limit (hourly)", ""),
	provider.Unverified:  fail(400, "7001", "Invalid domain", "Unconfigured or unverified sending domain."),
	provider.Blocked:     statuses[403],
	provider.NotAllowed:  fail(403, "", "Your account is suspended.", ""),
	provider.LargeBatch:  statuses[413],
	provider.TooLarge:    statuses[413],
	provider.RateLimited: fail(429, "", "Too many requests", ""),
	provider.KeyBusy:     fail(409, "1600", "A request with this idempotency key is in progress", ""),
	provider.KeyReused:   fail(409, "1601", "The idempotency key had another request", ""),
	provider.KeyInvalid:  fail(400, "1602", "Invalid idempotency key", ""),
}

// failed returns the word for mail that was not delivered.
func failed(event, class string) provider.Word {
	return provider.Word{Event: event, Kind: "message_event", Fields: `,"bounce_class":"` + class + `",` +
		`"error_code":"<code>","reason":"<code> <enhanced> <text>","raw_reason":"<code> <enhanced> <text>","num_retries":"0"`}
}

// suppressed is the word for mail to an address of the suppression list, which does not say why it is there.
var suppressed = provider.Word{Event: "generation_rejection", Kind: "gen_event", Alone: true,
	Fields: `,"error_code":"554","reason":"554 5.7.1 recipient address suppressed due to customer policy",` +
		`"raw_reason":"554 5.7.1 recipient address suppressed due to customer policy"`}

const (
	seen   = `,"ip_address":"198.51.100.7","user_agent":"Mozilla/5.0 (simulator)"`
	fields = `"type":"<event>","event_id":"<number>","transmission_id":"<id>","message_id":"m<id>",` +
		`"rcpt_to":<lower>,"raw_rcpt_to":<address>,"rcpt_meta":<metadata>,"rcpt_tags":<tags>,"campaign_id":<stream>,` +
		`"friendly_from":<from>,"subject":<subject>,"delv_method":"esmtp"<fields>`
)

// wording holds what SparkPost reports.
var wording = provider.Wording{
	Hook: `{"msys":{"<kind>":{"timestamp":"<unix>",` + fields + `}}}`,
	Log:  `{"timestamp":"<time>",` + fields + `}`,
	Holes: provider.Holes{Copy: map[string]provider.Hole{
		"lower": func(dst []byte, v *provider.View) []byte { return provider.Quote(dst, strings.ToLower(v.Copy.Address)) },
		"number": func(dst []byte, v *provider.View) []byte {
			return strconv.AppendUint(dst, v.IDs.Mix(provider.ForEvent, v.Batch.Serial, uint64(v.Copy.Index),
				uint64(v.Event.Stage))>>8, 10)
		},
	}},
	Retry:  10 * time.Minute,
	Expire: []time.Duration{time.Hour, 12 * time.Hour},
	Words: map[provider.Step]provider.Word{
		provider.Taken:          {Event: "injection", Kind: "message_event"},
		provider.Delivered:      {Event: "delivery", Kind: "message_event", Fields: `,"num_retries":"0","queue_time":"12"`},
		provider.Deferred:       failed("delay", "20"),
		provider.Expired:        failed("bounce", "24"),
		provider.BouncedHard:    failed("bounce", "10"),
		provider.BouncedBlocked: failed("bounce", "50"),
		provider.BouncedFull:    failed("bounce", "22"),
		provider.BouncedLate:    failed("out_of_band", "10"),
		provider.DroppedBounce:  suppressed,
		provider.DroppedSpam:    suppressed,
		provider.DroppedUnsub:   suppressed,
		provider.DroppedInvalid: failed("bounce", "10"),
		provider.DroppedContent: {Event: "policy_rejection", Kind: "message_event", Fields: `,"bounce_class":"25",` +
			`"error_code":"550","reason":"550 5.7.1 message rejected","raw_reason":"550 5.7.1 message rejected"`},
		provider.Complained:   {Event: "spam_complaint", Kind: "message_event", Fields: `,"fbtype":"abuse"`},
		provider.Unsubscribed: {Event: "list_unsubscribe", Kind: "unsubscribe_event"},
		provider.Opened:       {Event: "open", Kind: "track_event", Fields: seen},
		provider.Clicked: {Event: "click", Kind: "track_event",
			Fields: `,"target_link_url":"https://example.com/"` + seen},
	},
}

var stages = sync.OnceValue(wording.Stages)

const item = `{"recipient":<address>,"type":"non_transactional","source":<list>,"description":<text>,` +
	`"created":"<time>","updated":"<time>","non_transactional":true}`

// lists are the sources of suppressions.
var lists = []provider.List{
	{Name: "Bounce Rule", Drops: message.SuppressedBounce, Text: "<code>: <enhanced> <text>", Item: item,
		Of: []message.Outcome{message.HardBounce, message.Async, message.Invalid}},
	{Name: "Spam Complaint", Drops: message.SuppressedSpam, Item: item, Of: []message.Outcome{message.Complain}},
	{Name: "List Unsubscribe", Drops: message.SuppressedUnsub, Item: item, Of: []message.Outcome{message.Unsubscribe}},
	{Name: "Unsubscribe Link", Drops: message.SuppressedUnsub, Item: item},
	{Name: "Manually Added", Drops: message.SuppressedUnsub, Item: item},
	{Name: "Compliance", Drops: message.SuppressedBounce, Item: item},
}

// SparkPost is an account at SparkPost.
type SparkPost struct{ *provider.Provider }

// New returns the provider for an account. The signing key is user:password, or a token, which webhooks carry; it may
// be empty.
func New(a *provider.Account) (*provider.Provider, error) {
	g := SparkPost{&provider.Provider{
		Account:      a,
		Stages:       stages(),
		Suppress:     lists,
		Statuses:     statuses,
		Conditions:   conditions,
		KeyLifetime:  24 * time.Hour,
		Unauthorized: provider.Key("Authorization", a.Key, 401, 401),
		ID: func(b *message.Batch) string {
			return strconv.FormatUint(a.IDs.Mix(provider.ForMessage, b.Serial)>>6, 10)
		},
	}}
	const list = "api/v1/suppression-list"
	g.Routes = []provider.Route{
		{Path: "POST api/v1/transmissions", Send: &provider.Send{Limit: maxCall, Parse: g.parse}},
		{Path: "GET api/v1/events/message", Access: provider.UsesLogs, Answer: g.search},
		{Path: "GET " + list, Access: provider.UsesLists, Answer: g.showList},
		{Path: "GET " + list + "/{address}", Access: provider.UsesLists, Answer: g.showEntries},
		{Path: "DELETE " + list + "/{address}", Access: provider.UsesLists, Answer: g.unlist},
		{Path: "GET api/v1/sending-domains", Static: `{"results":[{"domain":"<domain>","status":{"ownership_verified":true,` +
			`"dkim_status":"valid","compliance_status":"valid"}}]}`},
		{Path: "GET api/v1/webhooks", Static: `{"results":[{"target":"<webhook>","active":<enabled>,"auth_type":"basic",` +
			`"events":["injection","delivery"]}]}`},
	}
	g.Hooks = provider.Hooks{
		Batching: provider.Batching{Events: 300, Every: 10 * time.Second, EventBytes: 800,
			Open: "[", Separator: ",", Close: "]"},
		Only200: true,
		Gaps:    func(*provider.Stage) []time.Duration { return provider.Minutes(1, 2, 5, 10, 20, 40, 60) },
		For:     8 * time.Hour,
		Sign: func(p provider.Post) ([]byte, http.Header, error) {
			body, header, err := p.Secret("SparkPost", a.SigningKey)
			header.Set("X-MessageSystems-Batch-ID", g.Token(p, 32))
			return body, header, err
		},
	}
	return g.Provider, nil
}

// A pager reads the parameters that a search and the suppression list have in common.
type pager struct {
	url.Values
	from, to      time.Time
	offset, count int
}

func newPager(r *http.Request, from time.Time) (p pager, ok bool) {
	p = pager{Values: r.URL.Query(), from: from, to: time.Now()}
	for name, at := range map[string]*time.Time{"from": &p.from, "to": &p.to} {
		if text := p.Get(name); text != "" {
			t, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return p, false
			}
			*at = t
		}
	}
	var err1, err2 error
	p.count, err1 = strconv.Atoi(cmp.Or(p.Get("per_page"), "1000"))
	if c := cmp.Or(p.Get("cursor"), "initial"); c != "initial" {
		p.offset, err2 = strconv.Atoi(strings.TrimPrefix(c, "at-"))
	}
	return p, err1 == nil && err2 == nil && p.count >= 1 && p.count <= 10_000 && p.offset >= 0
}

// has reports whether a parameter lists the value, or is missing.
func (p *pager) has(name, value string) bool {
	list := strings.Split(p.Get(name), ",")
	return p.Get(name) == "" || slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, value) })
}

// next returns the URL of the page after this one; "": there is none.
func (p *pager) next(path string, total int) string {
	if p.offset+p.count >= total {
		return ""
	}
	p.Set("cursor", "at-"+strconv.Itoa(p.offset+p.count))
	return path + "?" + p.Encode()
}

// search answers with a page of the events that match, the newest first.
func (g SparkPost) search(r *http.Request) provider.Answer {
	p, ok := newPager(r, time.Now().Add(-24*time.Hour))
	if !ok || len(r.URL.RequestURI()) > 4096 {
		return fail(400, "1400", "Invalid parameter", "from, to, per_page, cursor or the length of the URL")
	}
	found := []json.RawMessage{}
	for _, l := range g.Logged(time.Now(), func(b *message.Batch) bool {
		return p.has("campaigns", b.Stream) && p.has("transmissions", g.ID(b))
	}) {
		for i := range l.Copies {
			views, _ := l.Of(&l.Copies[i])
			for _, v := range views {
				at := v.Event.At()
				if p.has("recipients", v.Copy.Address) && p.has("events", v.Stage.Event) && !at.Before(p.from) && at.Before(p.to) {
					found = append(found, v.Stage.Log.Append(nil, v))
				}
			}
		}
	}
	slices.Reverse(found)
	links := map[string]string{}
	if next := p.next("/api/v1/events/message", len(found)); next != "" {
		links["next"] = next
	}
	return provider.JSON(200, map[string]any{"results": provider.Part(found, p.offset, p.count), "total_count": len(found),
		"links": links})
}

// showList answers with a page of the suppressions that match.
func (g SparkPost) showList(r *http.Request) provider.Answer {
	p, ok := newPager(r, time.Time{})
	if !ok {
		return statuses[400]
	}
	list := slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return !p.has("sources", e.List) || !p.has("types", "non_transactional") || e.At.Before(p.from) || e.At.After(p.to)
	})
	links := []map[string]string{}
	if next := p.next("/api/v1/suppression-list", len(list)); next != "" {
		links = append(links, map[string]string{"href": next, "rel": "next"})
	}
	return provider.JSON(200, map[string]any{"results": g.Items(provider.Part(list, p.offset, p.count)),
		"total_count": len(list), "links": links})
}

// of returns the suppressions of an address.
func (g SparkPost) of(r *http.Request) []provider.Listed {
	return slices.DeleteFunc(g.Entries(time.Now()), func(e provider.Listed) bool {
		return !strings.EqualFold(e.Address, r.PathValue("address"))
	})
}

func (g SparkPost) showEntries(r *http.Request) provider.Answer {
	list := g.of(r)
	if len(list) == 0 {
		return fail(404, "", "Recipient could not be found", "")
	}
	return provider.JSON(200, map[string]any{"results": g.Items(list), "links": []any{}, "total_count": len(list)})
}

// unlist removes the suppressions of an address and of a type. What SparkPost added stays.
func (g SparkPost) unlist(r *http.Request) provider.Answer {
	var in struct {
		Type string `json:"type"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 1<<20))
	if err != nil || len(body) > 0 && !jsontext.Decode(string(body), &in) {
		return statuses[400]
	}
	removed := false
	for _, e := range g.of(r) {
		if e.List == "Compliance" {
			return fail(403, "", "Recipient could not be removed - Compliance", "")
		}
		if in.Type != "transactional" && r.URL.Query().Get("list_id") == "" {
			removed = g.Lists.Remove(e.List, e.Address, time.Now()) || removed
		}
	}
	if !removed {
		return fail(404, "", "Recipient could not be found", "")
	}
	return provider.Answer{Status: http.StatusNoContent}
}
