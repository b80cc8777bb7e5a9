package mailgun

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
	"github.com/safedelivr/safedelivr/service/updates"
)

const (
	maxItems  = 300
	maxReads  = 20 // pages of updates for one page of events
	readItems = 300
	maxFilter = 4 << 10 // bytes of a filter
)

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
func find(r *dialect.Request, q query) ([]shape.MailgunEvent, string, error) {
	items := []shape.MailgunEvent{}
	if q.empty {
		return items, "", nil
	}
	read := updates.Query{Cursor: q.cursor, From: q.begin, To: q.end, By: r.Who.User, Listed: true}
	for _, t := range feed.Types { // there is no accepted: the answer to the message says that
		if word := shape.Mailgun.Word(t); word != "" && q.words["event"].matches(word) {
			read.Events = append(read.Events, t)
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
			u := &page.Updates[i]
			if e := shape.MailgunOf(u); shape.Mailgun.Has(u.Type(), u.Reason) && q.selects(&e) {
				items = append(items, e)
			}
		}
		if read.Cursor = page.Next; !page.More {
			break
		}
	}
	return items, read.Cursor, nil
}

// selects reports whether a query selects an event.
func (q *query) selects(it *shape.MailgunEvent) bool {
	h := &it.Message.Headers
	ofDomain := func(domain string) bool { return strings.EqualFold(domain, q.domain) }
	from := models.DomainOf(h.From)
	if q.domain != "" && from != "" && !ofDomain(from) && !ofDomain(models.DomainOf(h.ID)) { // that of the path
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
