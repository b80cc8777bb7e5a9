package mailgun

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	defaultLimit = 100
	maxLimit     = 300
)

// A query is a query of the Events API or the Logs API. It is also the token of a page.
type query struct {
	Low       int64  `json:"l,omitempty"` // Unix nanoseconds, inclusive
	High      int64  `json:"h"`
	Ascending bool   `json:"a,omitempty"`
	Limit     int    `json:"n"`
	Event     string `json:"e,omitempty"`
	Severity  string `json:"s,omitempty"`
	MessageID string `json:"m,omitempty"`
	Recipient string `json:"r,omitempty"`
	Tag       string `json:"t,omitempty"`

	Until int `json:"u,omitempty"` // entries of the log that a query which descends reads
	At    int `json:"p"`           // events before the page; -1 is the last page
	Size  int `json:"z"`           // most events of the page
}

// events answers GET /v3/{domain}/events and its pages.
func (g Mailgun) events(r *http.Request) provider.Answer {
	q, err := newQuery(r.URL.Query())
	if token := r.PathValue("page"); token != "" {
		err = q.decode(token)
	}
	if err != nil {
		return say(400, "%s", err)
	}
	items := g.page(&q, func(s *provider.Stage) provider.Form { return s.Hook })
	base := g.base(r, "events/")
	link := func(at, size int) string {
		to := q
		to.At, to.Size = at, size
		return base + to.encode()
	}
	before := min(q.At, q.Limit)
	return provider.JSON(200, map[string]any{"items": items, "paging": map[string]string{
		"next":     link(q.At+len(items), q.Limit),
		"previous": link(q.At-before, before),
		"first":    link(0, q.Limit),
		"last":     link(-1, q.Limit),
	}})
}

// logs answers POST /v1/analytics/logs.
func (g Mailgun) logs(r *http.Request) provider.Answer {
	var in logsRequest
	if json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&in) != nil {
		return say(400, "Invalid JSON")
	}
	q, err := in.query(g.Domain)
	if err == nil && in.Pagination.Token != "" {
		err = q.decode(in.Pagination.Token)
	}
	if err != nil {
		return say(400, "%s", err)
	}
	items := g.page(&q, func(s *provider.Stage) provider.Form { return s.Log })
	q.At += len(items)
	return provider.JSON(200, map[string]any{
		"start":      in.Start,
		"end":        in.End,
		"items":      items,
		"pagination": map[string]any{"next": q.encode()},
		"aggregates": map[string]any{},
	})
}

// page returns the events of a page in the order of the query. It sets what the query leaves to its first page.
func (g Mailgun) page(q *query, form func(*provider.Stage) provider.Form) []json.RawMessage {
	log, oldest := g.Seen(time.Now())
	if q.Until == 0 && !q.Ascending {
		q.Until = len(log)
	}
	q.Low = max(q.Low, oldest)
	n, last := 0, q.At < 0
	items := []json.RawMessage{}
	g.each(log, q, func(v provider.View) bool {
		if n++; last || n > q.At && len(items) < q.Size {
			items = append(items, form(v.Stage).Append(nil, v))
		}
		return last || len(items) < q.Size
	})
	if last {
		q.At = max(0, n-q.Limit)
		items = items[q.At:]
	}
	return items
}

// each calls f for the events that the query asks for, in its order, until f returns false.
func (g Mailgun) each(log []message.Event, q *query, f func(provider.View) bool) {
	var entries []*message.Event
	for i := range log {
		if e := &log[i]; e.Due >= q.Low && e.Due <= q.High && (q.Ascending || i < q.Until) {
			entries = append(entries, e)
		}
	}
	if !q.Ascending {
		slices.Reverse(entries)
	}
	for _, e := range entries {
		v := g.View(e, 0)
		// The words of "failed OR rejected" include no event named or.
		if q.Event != "" && !slices.Contains(strings.Fields(q.Event), v.Stage.Event) ||
			q.Severity != "" && !strings.Contains(v.Stage.Fields, `"severity":"`+q.Severity+`"`) ||
			q.Tag != "" && !slices.Contains(e.Batch.Tags, q.Tag) ||
			q.MessageID != "" && strings.Trim(v.ID, "<>") != q.MessageID {
			continue
		}
		for i := range e.Batch.Copies {
			v.Copy = &e.Batch.Copies[i]
			if !q.Ascending {
				v.Copy = &e.Batch.Copies[len(e.Batch.Copies)-1-i]
			}
			if e.Includes(v.Copy) && (q.Recipient == "" || strings.EqualFold(v.Copy.Address, q.Recipient)) && !f(v) {
				return
			}
		}
	}
}

func newQuery(form url.Values) (q query, err error) {
	q = query{
		High:      math.MaxInt64,
		Event:     strings.ToLower(form.Get("event")),
		Severity:  form.Get("severity"),
		MessageID: strings.Trim(form.Get("message-id"), "<>"),
		Recipient: form.Get("recipient"),
		Tag:       form.Get("tags"),
	}
	limit, err0 := strconv.Atoi(cmp.Or(form.Get("limit"), "100"))
	begin, err1 := parseTime(form.Get("begin"))
	end, err2 := parseTime(form.Get("end"))
	if err := errors.Join(err0, q.limit(limit), err1, err2); err != nil {
		return q, err
	}
	q.Ascending = begin != 0 && (end == 0 || begin <= end)
	if text := form.Get("ascending"); text != "" {
		q.Ascending = yes(text)
	}
	if begin > end && (end != 0 || !q.Ascending) || begin == 0 && end != 0 && !q.Ascending {
		begin, end = end, begin // a search that goes back begins late
	}
	if q.Low = begin; end != 0 {
		q.High = end
	}
	return q, nil
}

// limit sets the most events of a page. 0 means the default.
func (q *query) limit(n int) error {
	if n == 0 {
		n = defaultLimit
	}
	if q.Limit, q.Size = n, n; n < 1 || n > maxLimit {
		return fmt.Errorf("limit must be between 1 and %d", maxLimit)
	}
	return nil
}

// parseTime reads an RFC 2822 date or seconds since 1970 and returns Unix nanoseconds. An empty text is 0.
func parseTime(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if t, err := mail.ParseDate(text); err == nil {
		return t.UnixNano(), nil
	}
	if sec, err := strconv.ParseFloat(text, 64); err == nil && sec > 0 && sec < 1e10 {
		return int64(sec * 1e9), nil
	}
	return 0, fmt.Errorf("%q is not a valid RFC 2822 date or epoch", text)
}

func (q *query) encode() string {
	text, _ := json.Marshal(q) // never an error: numbers and strings
	return base64.RawURLEncoding.EncodeToString(text)
}

func (q *query) decode(token string) error {
	*q = query{}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, q)
	}
	if err != nil || q.Limit < 1 || q.Limit > maxLimit || q.At < -1 {
		return errors.New("page is not valid")
	}
	return nil
}

// A logsRequest is the body of a request to the Logs API.
type logsRequest struct {
	Start, End string // RFC 2822
	Events     []string
	Filter     struct {
		And []struct {
			Attribute, Comparator string
			Values                []struct{ Label, Value string }
		} `json:"AND"`
	}
	Pagination struct {
		Sort, Token string
		Limit       int
	}
}

// query returns the request as a query of the first page.
func (in *logsRequest) query(domain string) (query, error) {
	q := query{
		High:      math.MaxInt64,
		Ascending: in.Pagination.Sort == "timestamp:asc",
		Event:     strings.Join(in.Events, " "),
	}
	for text, to := range map[string]*int64{in.Start: &q.Low, in.End: &q.High} {
		if t, err := mail.ParseDate(text); err == nil {
			*to = t.UnixNano()
		} else if text != "" {
			return q, fmt.Errorf("Invalid format for parameter start or end: %s", text) //nolint:staticcheck // Mailgun's words
		}
	}
	for _, f := range in.Filter.And {
		if f.Comparator != "=" || len(f.Values) != 1 {
			return q, fmt.Errorf("comparator %q of %q is not simulated", f.Comparator, f.Attribute)
		}
		value := f.Values[0].Value
		to := map[string]*string{"recipient": &q.Recipient, "message-id": &q.MessageID, "event": &q.Event,
			"severity": &q.Severity, "tag": &q.Tag, "tags": &q.Tag}[f.Attribute]
		switch {
		case to != nil:
			*to = strings.Trim(value, "<>")
		case f.Attribute != "domain":
			return q, fmt.Errorf("unknown attribute %q", f.Attribute)
		case !strings.EqualFold(value, domain):
			q.High = -1 // other domains have no logs
		}
	}
	return q, q.limit(in.Pagination.Limit)
}
