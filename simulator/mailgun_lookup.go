package simulator

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
)

const (
	mgPage    = 100
	mgMaxPage = 300
)

// A lookup is a query of the Events API. It is also the token of a page: the
// vendor's paging URLs hold everything that the first one did.
type lookup struct {
	Low       int64  `json:"l,omitempty"` // Unix nanoseconds, inclusive
	High      int64  `json:"h"`
	Ascending bool   `json:"a,omitempty"`
	Limit     int    `json:"n"`
	Event     string `json:"e,omitempty"`
	Severity  string `json:"s,omitempty"`
	MessageID string `json:"m,omitempty"`
	Recipient string `json:"r,omitempty"`
	Tag       string `json:"t,omitempty"`

	// Where the page begins: between two events of the log. Back says that the
	// page is the one before that place.
	Emission int  `json:"p"`
	Copy     int  `json:"c"`
	Back     bool `json:"b,omitempty"`
}

// serveEvents answers GET /v3/{domain}/events and its pages.
func (g *mailgun) serveEvents(w http.ResponseWriter, r *http.Request, path []string) {
	log := g.a.outbox.happened(time.Now().Add(-g.a.s.opts.LookupLag))
	var q lookup
	var err error
	if len(path) == 1 {
		err = q.decode(path[0])
	} else if q, err = newLookup(r.URL.Query()); err == nil {
		q.begin(log)
	}
	if err != nil {
		g.reply(w, mgMessage(400, "%s", err))
		return
	}
	first, last := q, q
	first.begin(log)
	last.Back = true
	last.Emission, last.Copy = q.bound(log, q.Ascending)

	items, after, before := g.page(log, q)
	next, previous := q, q
	next.Back, previous.Back = false, true
	next.Emission, next.Copy = after.emission, int(after.copy)
	previous.Emission, previous.Copy = before.emission, int(before.copy)

	base := "http://" + r.Host + "/" + g.a.name + "/v3/" + g.domain + "/events/"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		base = "https" + strings.TrimPrefix(base, "http")
	}
	body := []byte(`{"items":[`)
	for i, item := range items {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, item...)
	}
	body = append(body, `],"paging":{"next":`...)
	body = appendQuoted(body, base+next.encode())
	body = appendField(body, "previous", base+previous.encode())
	body = appendField(body, "first", base+first.encode())
	body = appendField(body, "last", base+last.encode())
	g.reply(w, answer{status: 200, kind: mgJSON, body: string(append(body, '}', '}'))})
}

// happened returns the emissions up to the given time, oldest first.
func (ob *outbox) happened(until time.Time) []*emission {
	ob.mu.Lock()
	defer ob.mu.Unlock()
	n := sort.Search(len(ob.log), func(i int) bool { return ob.log[i].due > until.UnixNano() })
	return slices.Clip(ob.log[:n])
}

func newLookup(form url.Values) (q lookup, err error) {
	q = lookup{High: math.MaxInt64, Limit: mgPage, Event: strings.ToLower(form.Get("event")), Severity: form.Get("severity"),
		MessageID: strings.Trim(form.Get("message-id"), "<>"), Recipient: strings.ToLower(form.Get("recipient")), Tag: form.Get("tags")}
	if text := form.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > mgMaxPage {
			return q, fmt.Errorf("limit must be between 1 and %d", mgMaxPage)
		}
	}
	begin, err1 := mgTime(form.Get("begin"))
	end, err2 := mgTime(form.Get("end"))
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

// mgTime reads a time as RFC 2822 or in seconds since 1970. Empty is 0.
func mgTime(text string) (int64, error) {
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

// begin puts q at its first page.
func (q *lookup) begin(log []*emission) {
	q.Back = false
	q.Emission, q.Copy = q.bound(log, !q.Ascending)
}

// bound returns the place before all events of the time range, or that after
// them.
func (q *lookup) bound(log []*emission, end bool) (emission, copy int) {
	if end {
		return sort.Search(len(log), func(i int) bool { return log[i].due > q.High }), 0
	}
	return sort.Search(len(log), func(i int) bool { return log[i].due >= q.Low }), 0
}

// A place lies before the copy of an emission of the log.
type place struct {
	emission int
	copy     uint32
}

// page returns the events of one page in the order of the query, and where the
// next page and the one before it begin.
func (g *mailgun) page(log []*emission, q lookup) (items [][]byte, next, previous place) {
	low, _ := q.bound(log, false)
	high, _ := q.bound(log, true)
	from := place{min(q.Emission, high), uint32(q.Copy)}
	var to place
	if q.Ascending != q.Back {
		items, to = g.readUp(log, q, from, high)
	} else {
		items, to = g.readDown(log, q, from, low)
	}
	if q.Back {
		slices.Reverse(items)
		return items, from, to
	}
	return items, to, from
}

func (g *mailgun) readUp(log []*emission, q lookup, from place, high int) (items [][]byte, to place) {
	for at := from; at.emission < high; at = (place{at.emission + 1, 0}) {
		e := log[at.emission]
		if !q.wants(g, e) {
			continue
		}
		for c := e.m.cursor(); ; {
			r, ok := c.next()
			if !ok {
				break
			}
			if r.i < at.copy || !q.wantsCopy(e, r) {
				continue
			}
			items = append(items, g.eventData(nil, e, r))
			if len(items) == q.Limit {
				return items, place{at.emission, r.i + 1}
			}
		}
	}
	return items, place{high, 0}
}

func (g *mailgun) readDown(log []*emission, q lookup, from place, low int) (items [][]byte, to place) {
	for at := from; at.emission >= low; at = (place{at.emission - 1, math.MaxUint32}) {
		if at.copy == 0 || !q.wants(g, log[at.emission]) {
			continue
		}
		e := log[at.emission]
		var list []record
		for c := e.m.cursor(); ; {
			r, ok := c.next()
			if !ok || r.i >= at.copy {
				break
			}
			if q.wantsCopy(e, r) {
				list = append(list, r)
			}
		}
		for _, r := range slices.Backward(list) {
			items = append(items, g.eventData(nil, e, r))
			if len(items) == q.Limit {
				return items, place{at.emission, r.i}
			}
		}
	}
	return items, place{low, 0}
}

// wants reports whether any copy of e can be asked for.
func (q *lookup) wants(g *mailgun, e *emission) bool {
	st := e.stageOf()
	return (q.Event == "" || slices.Contains(strings.Fields(q.Event), st.event)) && // "failed or rejected": or is no event
		(q.Severity == "" || strings.Contains(st.fields, `"severity":"`+q.Severity+`"`)) &&
		(q.Tag == "" || slices.Contains(e.m.head.tags, q.Tag)) &&
		(q.MessageID == "" || g.messageID(e.m) == q.MessageID)
}

func (q *lookup) wantsCopy(e *emission, r record) bool {
	return e.has(r) && (q.Recipient == "" || string(lower(r.addr)) == q.Recipient)
}

func (q *lookup) encode() string {
	text, _ := json.Marshal(q)
	return base64.RawURLEncoding.EncodeToString(text)
}

func (q *lookup) decode(token string) error {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, q)
	}
	if err != nil || q.Limit < 1 || q.Limit > mgMaxPage || q.Emission < 0 || q.Copy < 0 {
		return errors.New("page is not valid")
	}
	return nil
}
