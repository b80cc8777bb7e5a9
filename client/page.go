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
