package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"strconv"
	"time"
)

// ListOptions are those of methods that return a list as an iterator. The iterator reads a page when it needs one. It
// ends after the first error, which it returns with a zero value.
type ListOptions struct {
	// PageSize is how many items each request asks for, 1 to 500. The default is 500.
	PageSize int
}

const maxPageSize = 500

// PageInfo describes a page of a list that can be read in both directions.
type PageInfo struct {
	First int `json:"first" min:"1"` // Number of the first item of the page in the list, as counted while paging.
	// Number of the items in the list, up to ten seconds old. Missing if it is not known: see `total_at_least`.
	Total *int64 `json:"total,omitempty" min:"0"`
	// A lower bound on the items of a list that is too long to count: 1001 if there are more than 1,000. It is less if
	// counting would read too much or take more than half a second. Up to a minute old.
	AtLeast int64  `json:"total_at_least,omitempty" min:"1"`
	Next    string `json:"next_cursor"`     // Empty on the last page.
	Prev    string `json:"previous_cursor"` // Cursor of the page before; empty on the first page.
	// Present if the page ended because it had read as much as one page may. Mail that was accepted before this time
	// (after it, on the way back) was not looked at yet; in the list of scheduled batches, mail that is due after it.
	Until time.Time `json:"searched_until,omitzero"`
}

// BatchPage is a page of batches.
type BatchPage struct {
	Batches []Batch `json:"batches"`
	PageInfo
}

// LogPage is a page of the logs of a batch.
type LogPage struct {
	Logs []LogFields `json:"logs"`
	PageInfo
}

// FoundLogPage is a page of logs of all batches.
type FoundLogPage struct {
	Logs []FoundLog `json:"logs"`
	PageInfo
}

// RejectedPage is a page of the recipients that were left out of a batch.
type RejectedPage struct {
	Rejected []Rejection `json:"rejected"`
	PageInfo
}

// listing names a list.
type listing struct {
	path  string
	name  string // of the member of the answer that has the items
	query url.Values

	options []CallOption
}

// list returns the items of all pages of a list.
func list[T any](ctx context.Context, c *Client, l listing, o ListOptions) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		query := url.Values{"limit": {strconv.Itoa(cmp.Or(o.PageSize, maxPageSize))}}
		maps.Copy(query, l.query)
		for {
			var page map[string]json.RawMessage
			if err := c.get(ctx, l.path, query, &page, l.options); err != nil {
				yield(none, err)
				return
			}
			var items []T
			var next string
			if err := readPage(page, l.name, &items, &next); err != nil {
				yield(none, fmt.Errorf("GET %s: the answer cannot be read: %w", l.path, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			query.Set("cursor", next)
		}
	}
}

func readPage(page map[string]json.RawMessage, name string, items, next any) error {
	if err := json.Unmarshal(page[name], items); err != nil {
		return err
	}
	return json.Unmarshal(page["next_cursor"], next)
}

// parameters returns those parameters of a query that are not empty.
func parameters(all map[string]string) url.Values {
	query := url.Values{}
	for name, value := range all {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

func flag(set bool) string {
	if set {
		return "true"
	}
	return ""
}

// number returns a number of a query; 0 is left out.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
