package mailgun

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
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
	for {
		var page struct {
			Items      []json.RawMessage `json:"items"`
			Pagination struct {
				Next string `json:"next"`
			} `json:"pagination"`
		}
		if err := p.Ask(ctx, http.MethodPost, "/v1/analytics/logs", &in, &page); err != nil {
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
	form := url.Values{
		"begin":     {epoch(q.From)},
		"end":       {epoch(q.To)},
		"ascending": {"yes"},
		"limit":     {strconv.Itoa(lookupPage)},
	}
	if q.Recipient != "" {
		form.Set("recipient", q.Recipient)
	}
	for path := version + "/" + p.domain + "/events?" + form.Encode(); ; {
		page, err := p.page(ctx, path)
		if err == nil {
			err = postItems(page.Items, post)
		}
		if err != nil || len(page.Items) == 0 || page.Paging.Next == "" {
			return err
		}
		if path, err = p.Path(page.Paging.Next); err != nil {
			return err
		}
	}
}

// A page is one of events or of a list.
type page struct {
	Items  []json.RawMessage `json:"items"`
	Paging struct {
		Next string `json:"next"`
	} `json:"paging"`
}

func (p *Adapter) page(ctx context.Context, path string) (in page, err error) {
	err = p.Ask(ctx, http.MethodGet, path, nil, &in)
	return in, err
}

// epoch returns a time in Unix seconds with six decimals.
func epoch(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64) }
