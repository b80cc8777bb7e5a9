package mailgun

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/updates"
)

const (
	maxItems  = 300
	maxReads  = 20 // pages of updates for one page of events
	readItems = 300
	maxFilter = 4 << 10 // bytes of a filter
)

// types are the updates that an event of Mailgun has. Of accepted there is none: the answer to the message says that.
var types = map[string][]feed.Type{
	"delivered":    {feed.Delivered},
	"failed":       {feed.Failed, feed.Deferred, feed.Bounced},
	"opened":       {feed.Opened},
	"clicked":      {feed.Clicked},
	"complained":   {feed.Complained},
	"unsubscribed": {feed.Unsubscribed},
}

// filters are the parameters that select events by their words.
var filters = []string{"event", "tags", "tag", "recipient", "to", "severity", "message-id", "from", "subject"}

// A query selects events.
type query struct {
	domain     string
	words      map[string]expression
	tags       []expression // each of them must fit
	begin, end time.Time
	limit      int
	cursor     string
	empty      bool // the page before the first
}

// item is an event as Mailgun writes it.
type item struct {
	ID        string  `json:"id"`
	Event     string  `json:"event"`
	Timestamp float64 `json:"timestamp"`
	Level     string  `json:"log-level"`
	Recipient string  `json:"recipient"`
	Domain    string  `json:"recipient-domain"`
	Severity  string  `json:"severity,omitempty"`
	Reason    string  `json:"reason,omitempty"`

	Tags      []string          `json:"tags"`
	Variables map[string]string `json:"user-variables"`
	Status    *status           `json:"delivery-status,omitempty"`
	Message   struct {
		Headers struct {
			ID      string `json:"message-id"`
			To      string `json:"to"`
			From    string `json:"from"`
			Subject string `json:"subject"`
		} `json:"headers"`
	} `json:"message"`

	at   time.Time
	from string // domain of the sender
}

type status struct {
	Code        int    `json:"code"`
	Message     string `json:"message"`
	Description string `json:"description"`
}

// events is GET /v3/{domain}/events. The order is that in which the events were recorded, so that a reader who goes on
// where it ended misses none.
func events(r *dialect.Request) (dialect.Answer, error) {
	values := r.URL.Query()
	token, err := readToken(r.Param("token"))
	if err != nil {
		return dialect.Answer{}, err
	}
	for name, value := range token.Query {
		if name != "limit" || values.Get(name) == "" {
			values[name] = value
		}
	}
	q, err := readQuery(values)
	if err != nil {
		return dialect.Answer{}, err
	}
	q.domain, q.cursor, q.empty = r.Param("domain"), token.Cursor, token.Before
	items, next, err := find(r, q)
	if err != nil {
		return dialect.Answer{}, err
	}
	link := func(t pageToken) string {
		for _, name := range append(slices.Clone(filters), "begin", "end", "ascending", "limit") {
			if v, ok := values[name]; ok {
				if t.Query == nil {
					t.Query = url.Values{}
				}
				t.Query[name] = v
			}
		}
		u := dialect.Origin(r.Request)
		u.Path = "/v3/" + q.domain + "/events/" + t.String()
		return u.String()
	}
	return dialect.Answer{Body: map[string]any{"items": items, "paging": map[string]string{
		"next": link(pageToken{Cursor: next}), "last": link(pageToken{Cursor: next}), "first": link(pageToken{}),
		"previous": link(pageToken{Before: true}),
	}}}, nil
}

// A pageToken is the last part of the path of a page. It has the whole query, because clients do not send it again.
type pageToken struct {
	Cursor string     `json:"c,omitempty"`
	Before bool       `json:"b,omitempty"`
	Query  url.Values `json:"q,omitempty"`
}

func (t pageToken) String() string {
	raw, _ := json.Marshal(t) // texts always encode
	return base64.RawURLEncoding.EncodeToString(raw)
}

func readToken(text string) (t pageToken, err error) {
	if text == "" {
		return t, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil {
		return t, malformed("The page in the path is not one of these events.")
	}
	return t, nil
}

// readQuery reads the parameters of a query.
func readQuery(values url.Values) (q query, err error) {
	q.words = map[string]expression{}
	for _, name := range filters {
		text := given(values, name)
		if len(text) > maxFilter {
			return q, wrong(name, "It may have %d bytes.", maxFilter)
		}
		if text != "" {
			q.words[name] = parseExpression(text)
		}
	}
	q.limit = 100
	if text := given(values, "limit"); text != "" {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 {
			return q, wrong("limit", "It must be a number from 1 to %d.", maxItems)
		}
		q.limit = min(q.limit, maxItems)
	}
	for name, into := range map[string]*time.Time{"begin": &q.begin, "end": &q.end} {
		text := given(values, name)
		if text == "" {
			continue
		}
		if *into, err = parseTime(text); err != nil {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds >= 0 && seconds <= 1e11) { // also of NaN
				return q, wrong(name, "It must be a date of RFC 2822, or seconds since 1970.")
			}
			*into = time.UnixMilli(int64(seconds * 1000))
		}
	}
	if ascending := given(values, "ascending"); slices.Contains([]string{"no", "false"}, ascending) {
		return q, wrong("ascending", "Events are read in the order in which they were recorded: ascending=yes.")
	}
	if !q.begin.IsZero() && !q.end.IsZero() && q.end.Before(q.begin) {
		q.begin, q.end = q.end, q.begin
	}
	return q, nil
}

// given returns a parameter. JavaScript writes undefined for one that is not there.
func given(values url.Values, name string) string {
	if text := strings.TrimSpace(values.Get(name)); text != "undefined" {
		return text
	}
	return ""
}

// find returns the next events of a query, and where to go on.
func find(r *dialect.Request, q query) ([]item, string, error) {
	items := []item{}
	if q.empty {
		return items, "", nil
	}
	read := updates.Query{Cursor: q.cursor, From: q.begin, To: q.end, By: r.Who.User}
	for name, of := range types {
		if q.words["event"].matches(name) {
			read.Events = append(read.Events, of...)
		}
	}
	for n := 0; len(items) < q.limit && len(read.Events) > 0; n++ {
		if n >= maxReads && len(items) > 0 { // an empty page says that there is no more
			break
		}
		read.Limit = min(q.limit-len(items), readItems)
		page, err := r.Service.Updates.Read(r.Context(), r.Who.User, read)
		if err != nil {
			return nil, "", err
		}
		for i := range page.Updates {
			it, ok := itemOf(&page.Updates[i])
			if ok && q.selects(&it) {
				it.refused(r)
				items = append(items, it)
			}
		}
		if read.Cursor = page.Next; !page.More {
			break
		}
	}
	return items, read.Cursor, nil
}

// itemOf returns an update as an event of Mailgun.
func itemOf(d *feed.Described) (it item, ok bool) {
	kind := d.Type()
	for name, of := range types {
		if slices.Contains(of, kind) {
			it.Event, ok = name, true
		}
	}
	to, from := d.To(), d.From()
	it.ID = fmt.Sprintf("%s-%d-%s", d.Log, d.Number, strings.TrimPrefix(string(kind), "log."))
	it.Timestamp, it.at, it.Level = float64(d.At.UnixMilli())/1000, d.At, "info"
	it.Recipient, it.Domain, it.from = to.Email, models.DomainOf(to.Email), models.DomainOf(from.Email)
	it.Tags, it.Variables = d.Tags, d.Metadata
	if it.Tags == nil {
		it.Tags = []string{}
	}
	if it.Variables == nil {
		it.Variables = map[string]string{}
	}
	h := &it.Message.Headers
	h.ID, h.To, h.From, h.Subject = strings.Trim(d.RFCMessageID, "<>"), to.Email, from.Email, d.Subject()
	words := d.Reason.Words()
	switch kind {
	case feed.Delivered:
		it.Status = &status{Code: 250, Message: "OK"}
	case feed.Deferred, feed.Bounced:
		it.Level, it.Severity, it.Reason = "warn", "temporary", "generic"
		it.Status = &status{Code: 450, Message: words, Description: words}
	case feed.Failed:
		it.Level, it.Severity, it.Reason = "error", "permanent", "generic"
		it.Status = &status{Code: 550, Message: words, Description: words}
		switch d.Reason {
		case models.OutcomeUnknown, models.NoFinalEvent: // it may have arrived
			it.Level, it.Severity = "warn", "temporary"
		case models.MailboxInvalid, models.MailboxFull, models.BounceUnknown, models.PolicyContent, models.PolicyReputation:
			it.Reason = "bounce"
		case models.SuppressedBounce:
			it.Reason, it.Status.Code = "suppress-bounce", bouncedBefore
		case models.SuppressedComplaint:
			it.Reason, it.Status.Code = "suppress-complaint", complainedBefore
		case models.SuppressedUnsubscribe, models.Suppressed:
			it.Reason, it.Status.Code = "suppress-unsubscribe", unsubscribedBefore
		}
	}
	return it, ok && d.Log.Recipient() > 0 // others are about the batch
}

// Codes of mail that was not sent because of earlier mail. Applications turn off an address that bounced or complained.
const (
	bouncedBefore      = 605
	unsubscribedBefore = 606
	complainedBefore   = 607
)

// refused sets the code of mail to an address on a suppression list by what the list says.
func (it *item) refused(r *dialect.Request) {
	if it.Reason != "suppress-unsubscribe" || it.Recipient == "" {
		return
	}
	entries, err := r.Service.Suppressions.Of(r.Context(), r.Who, it.Recipient)
	if err != nil {
		return // it is on the list for everyone, or on none any more
	}
	for i := range entries {
		switch models.SuppressionReason(entries[i].Reason) {
		case models.Complaint:
			it.Reason, it.Status.Code = "suppress-complaint", complainedBefore
			return
		case models.HardBounce:
			it.Reason, it.Status.Code = "suppress-bounce", bouncedBefore
		}
	}
}

// selects reports whether a query selects an event.
func (q *query) selects(it *item) bool {
	h := &it.Message.Headers
	ofDomain := func(domain string) bool { return strings.EqualFold(domain, q.domain) }
	if q.domain != "" && it.from != "" && !ofDomain(it.from) && !ofDomain(models.DomainOf(h.ID)) { // that of the path
		return false
	}
	if slices.ContainsFunc(q.tags, func(e expression) bool { return !e.matches(it.Tags...) }) {
		return false
	}
	for name, values := range map[string][]string{
		"tags": it.Tags, "tag": it.Tags, "recipient": {it.Recipient}, "to": {it.Recipient}, "severity": {it.Severity},
		"message-id": {h.ID}, "from": {h.From}, "subject": {h.Subject},
	} {
		if !q.words[name].matches(values...) {
			return false
		}
	}
	return true
}

// An expression is words with AND between them, and OR between those. It selects all if it is empty.
type expression [][]string

func parseExpression(text string) (out expression) {
	for part := range strings.SplitSeq(text, " OR ") {
		var words []string
		for word := range strings.SplitSeq(part, " AND ") {
			if word = strings.Trim(strings.Trim(strings.TrimSpace(word), "()"), `"<>`); word != "" {
				words = append(words, strings.ToLower(word))
			}
		}
		if len(words) > 0 {
			out = append(out, words)
		}
	}
	return out
}

func (e expression) matches(values ...string) bool {
	has := func(word string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return strings.EqualFold(v, word) })
	}
	for _, words := range e {
		if !slices.ContainsFunc(words, func(word string) bool { return !has(word) }) {
			return true
		}
	}
	return len(e) == 0
}
