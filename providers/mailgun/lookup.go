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
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// The Events API (docs: "Events", "Event polling") has pages of at most 300 events. It must be
// read with a lag of half an hour, because events become visible late. A page of 100 events is
// far smaller than the longest answer that is read.
const (
	lookupPage = 100
	lookupLag  = 30 * time.Minute
)

var _ models.EventLookup = (*Adapter)(nil)

// LookupLag implements models.EventLookup.
func (p *Adapter) LookupLag() time.Duration { return lookupLag }

// LookUp implements models.EventLookup. It reads pages with its own types: the
// SDK drops a page with one odd field.
func (p *Adapter) LookUp(
	ctx context.Context, from, to time.Time, recipient string, post func(body []byte) error,
) error {
	first, err := url.Parse(p.api.APIBase() + "/" + p.api.Domain() + "/events")
	if err != nil {
		return fmt.Errorf("look up events: %w", err)
	}
	at := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64) }
	query := url.Values{"begin": {at(from)}, "end": {at(to)}, "ascending": {"yes"}, "limit": {strconv.Itoa(lookupPage)}}
	if recipient != "" {
		query.Set("recipient", recipient)
	}
	first.RawQuery = query.Encode()
	for page := first; ; {
		items, next, err := p.eventsPage(ctx, page)
		if err != nil {
			return fmt.Errorf("look up events: %w", err)
		}
		if len(items) == 0 {
			return nil
		}
		for _, item := range items {
			if err := post(slices.Concat([]byte(`{"event-data":`), item, []byte(`}`))); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		following, err := url.Parse(next)
		if err != nil || following.Host != first.Host || following.Scheme != first.Scheme {
			return errors.New("look up events: the next page is not at the API") // the key must not go elsewhere
		}
		page = following
	}
}

// eventsPage reads one page.
func (p *Adapter) eventsPage(ctx context.Context, page *url.URL) ([]json.RawMessage, string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ctx, x := transport.Record(ctx, time.Time{})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return nil, "", err
	}
	req.SetBasicAuth("api", p.key)
	resp, err := p.client.HTTP.Do(req)
	if err != nil {
		return nil, "", err
	}
	_ = resp.Body.Close() // it was read
	if x.Status != http.StatusOK || x.Cut {
		return nil, "", fmt.Errorf("the API answered %d", x.Status)
	}
	var in struct {
		Items  []json.RawMessage `json:"items"`
		Paging struct {
			Next string `json:"next"`
		} `json:"paging"`
	}
	if err := json.Unmarshal(x.Body, &in); err != nil {
		return nil, "", errors.New("the page is no JSON that can be read")
	}
	return in.Items, in.Paging.Next, nil
}
