package sendgrid

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	pathLogs     = "v3/logs"
	defaultLimit = 10
	maxLimit     = 1000
	maxConds     = 160
	timeFormat   = "2006-01-02T15:04:05Z"
	createdAt    = "sg_message_id_created_at"
)

// serveLogs answers the Email Logs API: POST /v3/logs and GET /v3/logs/{sg_message_id}.
func (g *SendGrid) serveLogs(w http.ResponseWriter, r *http.Request, id string) {
	now := time.Now()
	reset, ok := g.lookups.Allow(g.account.Options.LookupsPerSecond, now)
	switch {
	case !g.authorized(r):
		g.endpoint.Unauthorized.Write(w)
	case g.account.Options.NoLogs:
		statuses[http.StatusForbidden].Write(w)
	case !ok:
		a := statuses[http.StatusTooManyRequests]
		a.Header = map[string]string{"X-RateLimit-Reset": strconv.FormatInt(reset.Unix(), 10)}
		a.Write(w)
	case id == "" && r.Method == http.MethodPost:
		g.listMessages(w, r, now)
	case id != "" && r.Method == http.MethodGet:
		g.showMessage(w, id, now)
	default:
		statuses[http.StatusMethodNotAllowed].Write(w)
	}
}

// A logged is the log of a batch: its events that look-ups show, oldest first.
type logged struct {
	*message.Batch
	events []message.Event
}

// messages returns the logs of the batches that match, oldest first.
func (g *SendGrid) messages(now time.Time, match func(*message.Batch) bool) (list []logged) {
	o := &g.account.Options
	at := map[*message.Batch]int{}
	for _, e := range g.account.Log(now.Add(-o.LookupLag)) {
		if e.Batch.Time < o.Oldest(now) || !match(e.Batch) {
			continue
		}
		i, ok := at[e.Batch]
		if !ok {
			i = len(list)
			at[e.Batch] = i
			list = append(list, logged{Batch: e.Batch})
		}
		list[i].events = append(list[i].events, e)
	}
	return list
}

// of returns the events of a copy, its status, and the reason of the last event.
func (l *logged) of(c *message.Copy) (events []*message.Event, status string) {
	for i := range l.events {
		e := &l.events[i]
		if !e.Includes(c) {
			continue
		}
		events = append(events, e)
		stage := &stages[e.Outcome][e.Stage]
		switch stage.Event {
		case "processed", "deferred", "dropped":
			status = stage.Event
		case "delivered", "open", "click":
			status = "delivered"
		case "bounce":
			if status = "bounced"; strings.Contains(stage.Fields, `"type":"blocked"`) {
				status = "blocked"
			}
		}
	}
	return events, status
}

// head returns the members that a message has in both answers.
func (g *SendGrid) head(b *message.Batch, c *message.Copy, status string) map[string]any {
	subject := b.Subject
	if c.Content != nil {
		subject = c.Content.Subject
	}
	return map[string]any{
		"from_email":    b.From,
		"sg_message_id": g.messageID(b, c.Index),
		"subject":       subject,
		"to_email":      c.Address,
		"status":        status,
	}
}

// listMessages answers with the messages that match a query, newest first.
func (g *SendGrid) listMessages(w http.ResponseWriter, r *http.Request, now time.Time) {
	in := struct {
		Query string
		Limit int
	}{Limit: defaultLimit}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in)
	if err != nil || in.Limit < 1 || in.Limit > maxLimit {
		text(http.StatusBadRequest, "invalid request").Write(w)
		return
	}
	query, err := parseQuery(in.Query)
	if err != nil {
		text(http.StatusBadRequest, err.Error()).Write(w)
		return
	}
	list := []map[string]any{}
	for _, l := range slices.Backward(g.messages(now, query.matchTime)) {
		for i := range l.Copies {
			c := &l.Copies[i]
			if len(list) == in.Limit {
				break
			}
			if !query.match("to_email", c.Address) {
				continue
			}
			_, status := l.of(c)
			m := g.head(l.Batch, c, status)
			if status != "" && query.matchAll(m, l.Tags) {
				m[createdAt] = created(l.Batch)
				list = append(list, m)
			}
		}
	}
	writeJSON(w, map[string]any{"messages": list})
}

// showMessage answers with a message and its events, the newest first.
func (g *SendGrid) showMessage(w http.ResponseWriter, id string, now time.Time) {
	parts := strings.Split(id, ".") // see messageID
	if len(parts) != 5 {
		statuses[http.StatusNotFound].Write(w)
		return
	}
	second, index, _ := strings.Cut(parts[3], "-")
	at, err1 := strconv.ParseInt(second, 16, 64)
	number, err2 := strconv.ParseUint(index, 16, 32)
	for _, l := range g.messages(now, func(b *message.Batch) bool { return b.Accepted().Unix() == at }) {
		if err1 != nil || err2 != nil || g.ID(l.Batch) != parts[0] {
			continue
		}
		if number >= uint64(len(l.Copies)) || g.messageID(l.Batch, uint32(number)) != id {
			break
		}
		c := &l.Copies[number]
		events, status := l.of(c)
		if status == "" {
			break
		}
		m := g.head(l.Batch, c, status)
		m["api_key_id"], m["client_ip"] = "simulated", "192.0.2.1"
		m["category"], m["custom_args"] = l.Tags, maps.Collect(l.Metadata(c))
		items := []json.RawMessage{}
		for _, e := range slices.Backward(events) {
			items = append(items, g.writer(e, 0, true).append(nil, c))
		}
		m["events"] = items
		writeJSON(w, m)
		return
	}
	statuses[http.StatusNotFound].Write(w)
}

// appendArgs appends the custom arguments of a copy as a member.
func appendArgs(dst []byte, b *message.Batch, c *message.Copy) []byte {
	dst = append(dst, `,"custom_args":{`...)
	first := true
	for key, value := range b.Metadata(c) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(jsontext.AppendQuoted(dst, key), ':')
		dst = jsontext.AppendQuoted(dst, value)
	}
	return append(dst, '}')
}

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // it holds strings, and events that are JSON
	}
	provider.Answer{Status: 200, Type: typeJSON, Body: string(body)}.Write(w)
}

// A logQuery is a list of conditions. All must be true.
type logQuery []condition

type condition struct {
	field, operator string
	values          []string
}

var (
	oneCondition = regexp.MustCompile(
		`^\s*(\w+)\s*(>=|<=|=|>|<|IN\b)\s*(?:TIMESTAMP\s+)?("[^"]*"|'[^']*'|\([^)]*\))\s*(AND\s|$)`)
	oneValue = regexp.MustCompile(`"([^"]*)"|'([^']*)'`)
)

// operators holds the operators of each field.
var operators = map[string]string{
	"sg_message_id": "=",
	"subject":       "=",
	"to_email":      "=",
	"status":        "IN",
	"reason":        "=",
	"categories":    "IN",
	createdAt:       "> < >= <=",
}

// parseQuery reads conditions that are combined with AND.
func parseQuery(s string) (list logQuery, err error) {
	for strings.TrimSpace(s) != "" {
		m := oneCondition.FindStringSubmatch(s)
		if m == nil || len(list) == maxConds {
			return nil, fmt.Errorf("invalid query near %q", s)
		}
		c := condition{field: m[1], operator: m[2]}
		if !slices.Contains(strings.Fields(operators[c.field]), c.operator) {
			return nil, fmt.Errorf("field %s does not allow %s", c.field, c.operator)
		}
		for _, v := range oneValue.FindAllStringSubmatch(m[3], -1) {
			c.values = append(c.values, v[1]+v[2])
		}
		if len(c.values) == 0 {
			return nil, fmt.Errorf("field %s has no value", c.field)
		}
		list, s = append(list, c), s[len(m[0]):]
	}
	return list, nil
}

// matchAll reports whether a message meets all conditions but those of its time.
func (q logQuery) matchAll(m map[string]any, tags []string) bool {
	return !slices.ContainsFunc(q, func(c condition) bool {
		switch c.field {
		case createdAt:
			return false
		case "categories":
			return !slices.ContainsFunc(tags, c.holds)
		}
		have, _ := m[c.field].(string)
		return !c.holds(have)
	})
}

// matchTime reports whether the messages of a batch meet the conditions of their time.
func (q logQuery) matchTime(b *message.Batch) bool { return q.match(createdAt, created(b)) }

// match reports whether the value of a field meets all conditions of that field.
func (q logQuery) match(field, value string) bool {
	return !slices.ContainsFunc(q, func(c condition) bool { return c.field == field && !c.holds(value) })
}

// holds reports whether a value meets the condition. Times are compared as text.
func (c *condition) holds(have string) bool {
	switch c.operator {
	case ">":
		return have > c.values[0]
	case "<":
		return have < c.values[0]
	case ">=":
		return have >= c.values[0]
	case "<=":
		return have <= c.values[0]
	}
	return slices.Contains(c.values, have)
}

// created returns when the messages of a batch were accepted.
func created(b *message.Batch) string { return b.Accepted().UTC().Format(timeFormat) }
