package mailgun

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/mail"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

const (
	defaultLimit = 100
	maxLimit     = 300
)

// A query is a query of the Events API. It is also the token of a page: the
// paging URLs hold everything that the first one did.
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

	place
	Back bool `json:"b,omitempty"` // the page ends at the place instead of beginning there
}

// A place is before a copy of an entry of the log.
type place struct {
	Entry int    `json:"p"`
	Copy  uint32 `json:"c"`
}

// serveEvents answers GET /v3/{domain}/events and its pages.
func (g *Mailgun) serveEvents(w http.ResponseWriter, r *http.Request, path []string) {
	log := g.visible()
	var q query
	var err error
	if len(path) == 1 {
		err = q.decode(path[0])
	} else if q, err = newQuery(r.URL.Query()); err == nil {
		q.Low = max(q.Low, g.account.Options.Oldest(time.Now()))
		q.rewind(log)
	}
	if err != nil {
		g.reply(w, say(400, "%s", err))
		return
	}
	first, last := q, q
	first.rewind(log)
	last.Back = true
	last.place = place{q.bound(log, q.Ascending), 0}

	items, after, before := g.page(log, q)
	next, previous := q, q
	next.Back, previous.Back = false, true
	next.place, previous.place = after, before

	base := "http://" + r.Host + "/" + g.account.Name + "/v3/" + g.domain + "/events/"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		base = "https" + strings.TrimPrefix(base, "http")
	}
	g.reply(w, jsonAnswer(map[string]any{
		"items": items,
		"paging": map[string]string{
			"next":     base + next.encode(),
			"previous": base + previous.encode(),
			"first":    base + first.encode(),
			"last":     base + last.encode(),
		},
	}))
}

// visible returns the events that look-ups show, oldest first.
func (g *Mailgun) visible() []message.Event {
	return g.account.Log(time.Now().Add(-g.account.Options.LookupLag))
}

func newQuery(form url.Values) (q query, err error) {
	q = query{
		High:      math.MaxInt64,
		Limit:     defaultLimit,
		Event:     strings.ToLower(form.Get("event")),
		Severity:  form.Get("severity"),
		MessageID: strings.Trim(form.Get("message-id"), "<>"),
		Recipient: strings.ToLower(form.Get("recipient")),
		Tag:       form.Get("tags"),
	}
	if text := form.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > maxLimit {
			return q, fmt.Errorf("limit must be between 1 and %d", maxLimit)
		}
	}
	begin, err1 := parseTime(form.Get("begin"))
	end, err2 := parseTime(form.Get("end"))
	if err := errors.Join(err1, err2); err != nil {
		return q, err
	}
	q.Ascending = begin != 0 && (end == 0 || begin <= end)
	if text := form.Get("ascending"); text != "" {
		q.Ascending = yes(text)
	}
	if begin != 0 && end != 0 && begin > end {
		begin, end = end, begin
	} else if begin == 0 && end != 0 && !q.Ascending || end == 0 && begin != 0 && !q.Ascending {
		begin, end = end, begin // a search that goes back begins late
	}
	if q.Low = begin; end != 0 {
		q.High = end
	}
	return q, nil
}

// parseTime reads an RFC 2822 date or seconds since 1970 and returns Unix
// nanoseconds. An empty text is 0.
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

// rewind moves q to its first page.
func (q *query) rewind(log []message.Event) {
	q.Back = false
	q.place = place{q.bound(log, !q.Ascending), 0}
}

// bound returns the first entry of the time range or, with end, the one after it.
func (q *query) bound(log []message.Event, end bool) (entry int) {
	if end {
		return sort.Search(len(log), func(i int) bool { return log[i].Due > q.High })
	}
	return sort.Search(len(log), func(i int) bool { return log[i].Due >= q.Low })
}

// page returns the events of one page in the order of the query, and where the
// next page and the previous one begin.
func (g *Mailgun) page(log []message.Event, q query) (items []json.RawMessage, next, previous place) {
	low, high := q.bound(log, false), q.bound(log, true)
	from := place{min(q.Entry, high), q.Copy}
	var to place
	if q.Ascending != q.Back {
		items, to = g.readUp(log[:high], q, from)
	} else {
		items, to = g.readDown(log, q, from, low)
	}
	if q.Back {
		slices.Reverse(items)
		return items, from, to
	}
	return items, to, from
}

// readUp returns the events of a page after the place from, oldest first.
func (g *Mailgun) readUp(log []message.Event, q query, from place) (items []json.RawMessage, to place) {
	items = []json.RawMessage{}
	for at := from; at.Entry < len(log); at = (place{at.Entry + 1, 0}) {
		e := &log[at.Entry]
		if !q.wants(g, e) {
			continue
		}
		for i := range e.Batch.Copies {
			c := &e.Batch.Copies[i]
			if c.Index < at.Copy || !q.wantsCopy(e, c) {
				continue
			}
			items = append(items, g.appendEvent(nil, e, c))
			if len(items) == q.Limit {
				return items, place{at.Entry, c.Index + 1}
			}
		}
	}
	return items, place{len(log), 0}
}

// readDown returns the events of a page before the place from, newest first. It
// ends at the entry low.
func (g *Mailgun) readDown(log []message.Event, q query, from place, low int) (items []json.RawMessage, to place) {
	items = []json.RawMessage{}
	for at := from; at.Entry >= low; at = (place{at.Entry - 1, math.MaxUint32}) {
		if at.Copy == 0 || !q.wants(g, &log[at.Entry]) {
			continue
		}
		e := &log[at.Entry]
		copies := e.Batch.Copies
		for i := min(int(at.Copy), len(copies)) - 1; i >= 0; i-- {
			c := &copies[i]
			if !q.wantsCopy(e, c) {
				continue
			}
			items = append(items, g.appendEvent(nil, e, c))
			if len(items) == q.Limit {
				return items, place{at.Entry, c.Index}
			}
		}
	}
	return items, place{low, 0}
}

// wants reports whether the query asks for any copy of e.
func (q *query) wants(g *Mailgun, e *message.Event) bool {
	s := &stages[e.Outcome][e.Stage]
	// The words of "failed OR rejected" include no event named or.
	return (q.Event == "" || slices.Contains(strings.Fields(q.Event), s.Event)) &&
		(q.Severity == "" || strings.Contains(s.Fields, `"severity":"`+q.Severity+`"`)) &&
		(q.Tag == "" || slices.Contains(e.Batch.Tags, q.Tag)) &&
		(q.MessageID == "" || g.messageID(e.Batch) == q.MessageID)
}

func (q *query) wantsCopy(e *message.Event, c *message.Copy) bool {
	return e.Includes(c) && (q.Recipient == "" || strings.ToLower(c.Address) == q.Recipient)
}

func (q *query) encode() string {
	text, err := json.Marshal(q)
	if err != nil {
		panic(err) // q holds numbers and strings only
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func (q *query) decode(token string) error {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, q)
	}
	if err != nil || q.Limit < 1 || q.Limit > maxLimit || q.Entry < 0 {
		return errors.New("page is not valid")
	}
	return nil
}
