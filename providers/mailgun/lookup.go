package mailgun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The Logs API (docs: "Logs", POST /v1/analytics/logs) replaces the Events API (docs:
// "Events"), which is deprecated. Both have pages. The Events API must be read with a lag of
// half an hour, because events become visible late. The documentation of the Logs API names
// no lag and does not promise that a log is complete, so that a query without a result
// proves nothing: LookUp gives no negative evidence.
//
// Queries are by time and address. The message id is in the answer, which an unknown outcome
// lacks, and a tag is that of many messages. Events name their log and attempt.
const (
	lookupPage = 100
	lookupLag  = 30 * time.Minute
	// logsPause is how long the Events API is used after the Logs API refused the key.
	logsPause = time.Hour
)

var _ models.EventLookup = (*Adapter)(nil)

// LookupLag implements models.EventLookup.
func (p *Adapter) LookupLag() time.Duration { return lookupLag }

// Repeats implements models.EventLookup. Mailgun does not repeat posts of delivered events.
func (p *Adapter) Repeats() time.Duration { return 0 }

// LookUp implements models.EventLookup. It queries the Logs API, or the Events API if the
// other refuses the key or does not exist. It reads pages with its own types: the SDK drops
// a page with one odd field.
func (p *Adapter) LookUp(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	err := models.ErrNoLookup
	if since := time.Since(time.Unix(0, p.logsRefused.Load())); since.Abs() > logsPause {
		if err = p.readLogs(ctx, q, post); errors.Is(err, models.ErrNoLookup) {
			p.logsRefused.Store(time.Now().UnixNano())
		}
	}
	if errors.Is(err, models.ErrNoLookup) {
		err = p.readEvents(ctx, q, post)
	}
	return err
}

// query sends a query to a URL below the API. Its answer is decoded into out.
func (p *Adapter) query(ctx context.Context, method, address string, in, out any) error {
	q := transport.Query{Method: method, URL: address, Header: http.Header{}, Timeout: p.timeout}
	if in != nil {
		var err error
		if q.Body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	r := http.Request{Header: q.Header}
	r.SetBasicAuth("api", p.keys.Load().api)
	body, err := p.client.Query(ctx, q)
	if err != nil {
		return fmt.Errorf("look up events: %w", err)
	}
	if json.Unmarshal(body, out) != nil {
		return errors.New("look up events: the page is no JSON that can be read")
	}
	return nil
}

// postItems posts the items of a page as webhooks hold them.
func postItems(items []json.RawMessage, post func(body []byte) error) error {
	for _, item := range items {
		if err := post(slices.Concat([]byte(`{"event-data":`), item, []byte(`}`))); err != nil {
			return err
		}
	}
	return nil
}

// A logsQuery is the body of a request to the Logs API.
type logsQuery struct {
	Start  string `json:"start"` // RFC 2822
	End    string `json:"end"`
	Filter struct {
		And []logsFilter `json:"AND"`
	} `json:"filter"`
	Pagination struct {
		Sort  string `json:"sort"`
		Token string `json:"token,omitempty"`
		Limit int    `json:"limit"`
	} `json:"pagination"`
}

type logsFilter struct {
	Attribute  string      `json:"attribute"`
	Comparator string      `json:"comparator"`
	Values     []logsValue `json:"values"`
}

type logsValue struct {
	Label string `json:"label"`
	Value string `json:"value"`
}

func equals(attribute, value string) logsFilter {
	return logsFilter{attribute, "=", []logsValue{{value, value}}}
}

// readLogs reads the Logs API. Its times are whole seconds, so that it may return events
// just outside the query.
func (p *Adapter) readLogs(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	var in logsQuery
	in.Start = q.From.UTC().Format(time.RFC1123Z)
	in.End = q.To.Add(time.Second - 1).UTC().Format(time.RFC1123Z)
	in.Filter.And = []logsFilter{equals("domain", p.domain)}
	if q.Recipient != "" {
		in.Filter.And = append(in.Filter.And, equals("recipient", q.Recipient))
	}
	in.Pagination.Sort, in.Pagination.Limit = "timestamp:asc", lookupPage
	address := strings.TrimSuffix(p.base, version) + "/v1/analytics/logs"
	for {
		var page struct {
			Items      []json.RawMessage `json:"items"`
			Pagination struct {
				Next string `json:"next"`
			} `json:"pagination"`
		}
		if err := p.query(ctx, http.MethodPost, address, &in, &page); err != nil {
			return err
		}
		if err := postItems(page.Items, post); err != nil {
			return err
		}
		next := page.Pagination.Next
		if len(page.Items) == 0 || next == "" || next == in.Pagination.Token {
			return nil
		}
		in.Pagination.Token = next
	}
}

// readEvents reads the Events API.
func (p *Adapter) readEvents(ctx context.Context, q models.LookupQuery, post func(body []byte) error) error {
	first, err := url.Parse(p.base + "/" + p.domain + "/events")
	if err != nil {
		return fmt.Errorf("look up events: %w", err)
	}
	form := url.Values{
		"begin":     {epoch(q.From)},
		"end":       {epoch(q.To)},
		"ascending": {"yes"},
		"limit":     {strconv.Itoa(lookupPage)},
	}
	if q.Recipient != "" {
		form.Set("recipient", q.Recipient)
	}
	first.RawQuery = form.Encode()
	for page := first; ; {
		var in struct {
			Items  []json.RawMessage `json:"items"`
			Paging struct {
				Next string `json:"next"`
			} `json:"paging"`
		}
		if err := p.query(ctx, http.MethodGet, page.String(), nil, &in); err != nil {
			return err
		}
		if err := postItems(in.Items, post); err != nil {
			return err
		}
		if len(in.Items) == 0 || in.Paging.Next == "" {
			return nil
		}
		following, err := url.Parse(in.Paging.Next)
		if err != nil || following.Host != first.Host || following.Scheme != first.Scheme {
			return errors.New("look up events: the next page is not at the API") // the key must not go elsewhere
		}
		page = following
	}
}

// epoch returns a time in Unix seconds with six decimals.
func epoch(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64) }
