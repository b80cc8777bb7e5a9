package mailgun

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/shape"
)

// A logQuery is the body of a query for logs.
type logQuery struct {
	Start, End string
	Events     []string
	Filter     struct {
		And []struct {
			Attribute, Comparator string
			Values                []struct{ Value string }
		} `json:"AND"`
	}
	Pagination struct {
		Sort, Token string
		Limit       int
	}
}

// query returns what the body selects.
func (in *logQuery) query() (q query, err error) {
	q = query{words: map[string]expression{}, limit: maxItems, cursor: in.Pagination.Token}
	if n := in.Pagination.Limit; n > 0 {
		q.limit = min(n, maxItems)
	}
	for into, text := range map[*time.Time]string{&q.begin: in.Start, &q.end: in.End} {
		if text == "" {
			continue
		}
		if *into, err = parseTime(text); err != nil {
			return q, wrong("start", "start and end must be dates of RFC 2822.")
		}
	}
	if sort := in.Pagination.Sort; sort != "" && sort != "timestamp:asc" {
		return q, wrong("pagination.sort", "Events are read in the order in which they were recorded: timestamp:asc.")
	}
	if len(in.Events) > 0 {
		q.words["event"] = parseExpression(strings.Join(in.Events, " OR "))
	}
	for _, f := range in.Filter.And {
		var any expression
		for _, v := range f.Values {
			any = append(any, []string{strings.ToLower(v.Value)})
		}
		switch {
		case f.Comparator != "=":
			return q, wrong("filter", "Its comparator must be =.")
		case f.Attribute == "domain" && len(f.Values) == 1:
			q.domain = f.Values[0].Value
		case f.Attribute == "tag":
			q.tags = append(q.tags, any)
		default:
			return q, wrong("filter", "It may have the attributes domain, with one value, and tag.")
		}
	}
	return q, nil
}

// logs is POST /v1/analytics/logs: the events of all domains of the caller.
func logs(r *dialect.Request) (dialect.Answer, error) {
	var in logQuery
	raw, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 4*maxFilter))
	if err != nil || json.Unmarshal(raw, &in) != nil {
		return dialect.Answer{}, malformed("The body is not the JSON of a query for logs.")
	}
	q, err := in.query()
	if err != nil {
		return dialect.Answer{}, err
	}
	items, next, err := find(r, q)
	if err != nil {
		return dialect.Answer{}, err
	}
	out := make([]logItem, len(items))
	for i := range items {
		out[i] = logItem{MailgunEvent: items[i], At: items[i].At.UTC().Format("2006-01-02T15:04:05.000Z")}
		out[i].Domain.Name = models.DomainOf(items[i].Message.Headers.From)
	}
	return dialect.Answer{Body: map[string]any{"items": out, "pagination": map[string]string{"next": next}}}, nil
}

// logItem is an event in the answer of logs.
type logItem struct {
	shape.MailgunEvent
	At     string `json:"@timestamp"`
	Domain struct {
		Name string `json:"name"`
	} `json:"domain"`
}
