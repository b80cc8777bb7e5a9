package sendgrid

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxLimit  = 1000
	maxConds  = 160
	createdAt = "sg_message_id_created_at"
)

var messageForm = provider.NewForm(messageID, holes)

// message returns the members that a message has in both answers.
func (g SendGrid) message(b *message.Batch, c *message.Copy, status string) map[string]any {
	v := provider.View{Account: g.Account, Batch: b, Copy: c, ID: g.ID(b)}
	return map[string]any{
		"from_email":    b.From,
		"sg_message_id": string(messageForm.Append(nil, v)),
		"subject":       v.Subject(),
		"to_email":      c.Address,
		"status":        status,
	}
}

// listMessages answers with the messages that match a query, newest first.
func (g SendGrid) listMessages(r *http.Request) provider.Answer {
	in := struct {
		Query string
		Limit int
	}{Limit: 10}
	err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&in)
	if err != nil || in.Limit < 1 || in.Limit > maxLimit {
		return text(http.StatusBadRequest, "invalid request")
	}
	query, err := parseQuery(in.Query)
	if err != nil {
		return text(http.StatusBadRequest, err.Error())
	}
	list := []map[string]any{}
	for _, l := range slices.Backward(g.Logged(time.Now(), func(b *message.Batch) bool {
		return query.match(createdAt, created(b)) && query.match("categories", b.Tags...)
	})) {
		for i := range l.Copies {
			c := &l.Copies[i]
			if len(list) == in.Limit {
				break
			}
			if !query.match("to_email", c.Address) {
				continue
			}
			_, status := l.Of(c)
			m := g.message(l.Batch, c, status)
			other := func(field string) bool { return !query.match(field, fmt.Sprint(m[field])) }
			if status != "" && !slices.ContainsFunc([]string{"sg_message_id", "subject", "status", "reason"}, other) {
				m[createdAt] = created(l.Batch)
				list = append(list, m)
			}
		}
	}
	return provider.JSON(200, map[string]any{"messages": list})
}

// showMessage answers with a message and its events, the newest first.
func (g SendGrid) showMessage(r *http.Request) provider.Answer {
	parts := strings.Split(r.PathValue("id"), ".") // see messageID
	if len(parts) != 5 {
		return g.Say(404)
	}
	second, index, _ := strings.Cut(parts[3], "-")
	at, err1 := strconv.ParseInt(second, 16, 64)
	number, err2 := strconv.ParseUint(index, 16, 32)
	list := g.Logged(time.Now(), func(b *message.Batch) bool { return b.Accepted().Unix() == at && g.ID(b) == parts[0] })
	if len(list) == 0 || err1 != nil || err2 != nil || number >= uint64(len(list[0].Copies)) {
		return g.Say(404)
	}
	l, c := &list[0], &list[0].Copies[number]
	events, status := l.Of(c)
	m := g.message(l.Batch, c, status)
	if status == "" || m["sg_message_id"] != r.PathValue("id") {
		return g.Say(404)
	}
	m["api_key_id"], m["client_ip"] = "simulated", "192.0.2.1"
	m["category"], m["custom_args"] = l.Tags, maps.Collect(l.Metadata(c))
	items := []json.RawMessage{}
	for _, e := range slices.Backward(events) {
		items = append(items, e.Stage.Log.Append(nil, e))
	}
	m["events"] = items
	return provider.JSON(200, m)
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

// match reports whether one of the values of a field meets all conditions of that field.
func (q logQuery) match(field string, have ...string) bool {
	return !slices.ContainsFunc(q, func(c condition) bool {
		return c.field == field && !slices.ContainsFunc(have, c.holds)
	})
}

// holds reports whether a value meets the condition. Times are compared as text.
func (c *condition) holds(have string) bool {
	order := strings.Compare(have, c.values[0])
	switch c.operator {
	case "=", "IN":
		return slices.Contains(c.values, have)
	case ">=", "<=":
		return order == 0 || (order > 0) == (c.operator == ">=")
	}
	return order != 0 && (order > 0) == (c.operator == ">")
}

// created returns when the messages of a batch were accepted.
func created(b *message.Batch) string { return b.Accepted().UTC().Format(time.RFC3339) }
