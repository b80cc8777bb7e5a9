package mailgun

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/mail"
	"strings"
	"time"
)

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

// serveLogs answers POST /v1/analytics/logs.
func (g *Mailgun) serveLogs(w http.ResponseWriter, r *http.Request) {
	var in logsRequest
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in) != nil {
		g.reply(w, say(400, "Invalid JSON"))
		return
	}
	q, err := in.query(g.domain)
	if err != nil {
		g.reply(w, say(400, "%s", err))
		return
	}
	log := g.visible()
	q.Low = max(q.Low, g.account.Options.Oldest(time.Now()))
	if in.Pagination.Token != "" {
		err = q.decode(in.Pagination.Token)
	} else {
		q.rewind(log)
	}
	if err != nil {
		g.reply(w, say(400, "%s", err))
		return
	}
	items, next, _ := g.page(log, q)
	for i := range items {
		items[i] = asLog(items[i])
	}
	q.place = next
	g.reply(w, jsonAnswer(map[string]any{
		"start":      in.Start,
		"end":        in.End,
		"items":      items,
		"pagination": map[string]any{"next": q.encode()},
		"aggregates": map[string]any{},
	}))
}

// query returns the request as a query of the first page.
func (in *logsRequest) query(domain string) (query, error) {
	q := query{
		High:      math.MaxInt64,
		Limit:     defaultLimit,
		Ascending: in.Pagination.Sort == "timestamp:asc",
		Event:     strings.Join(in.Events, " "),
	}
	for text, to := range map[string]*int64{in.Start: &q.Low, in.End: &q.High} {
		if text == "" {
			continue
		}
		t, err := mail.ParseDate(text)
		if err != nil {
			return q, fmt.Errorf("Invalid format for parameter start or end: %s", text) //nolint:staticcheck // Mailgun's words
		}
		*to = t.UnixNano()
	}
	if n := in.Pagination.Limit; n != 0 {
		if q.Limit = n; n < 1 || n > maxLimit {
			return q, fmt.Errorf("limit must be between 1 and %d", maxLimit)
		}
	}
	for _, f := range in.Filter.And {
		if f.Comparator != "=" || len(f.Values) != 1 {
			return q, fmt.Errorf("comparator %q of %q is not simulated", f.Comparator, f.Attribute)
		}
		value := f.Values[0].Value
		switch f.Attribute {
		case "domain":
			if !strings.EqualFold(value, domain) {
				q.High = -1 // other domains have no logs
			}
		case "recipient":
			q.Recipient = strings.ToLower(value)
		case "message-id":
			q.MessageID = strings.Trim(value, "<>")
		case "event":
			q.Event = value
		case "severity":
			q.Severity = value
		case "tag", "tags":
			q.Tag = value
		default:
			return q, fmt.Errorf("unknown attribute %q", f.Attribute)
		}
	}
	return q, nil
}

// asLog returns an event-data object as the Logs API shows it: it has @timestamp instead of
// timestamp, and its user-variables are an object in a string.
func asLog(item json.RawMessage) json.RawMessage {
	var e map[string]json.RawMessage
	var seconds float64
	if json.Unmarshal(item, &e) != nil || json.Unmarshal(e["timestamp"], &seconds) != nil {
		return item
	}
	at := time.UnixMicro(int64(math.Round(seconds * 1e6))).UTC()
	delete(e, "timestamp")
	e["@timestamp"], _ = json.Marshal(at.Format("2006-01-02T15:04:05.000Z"))
	e["user-variables"], _ = json.Marshal(string(e["user-variables"]))
	out, err := json.Marshal(e)
	if err != nil {
		return item
	}
	return out
}
