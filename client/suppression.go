package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Suppression says why no mail is sent to an address.
type Suppression struct {
	// Email is in lower case. It is empty if the address was erased.
	Email string `json:"email"`
	// Reason is complaint, hard_bounce, manual, unsubscribe or soft_bounce.
	Reason     string `json:"reason"`
	ReasonText string `json:"reason_text"`
	// Category is empty if all mail is suppressed.
	Category string `json:"category,omitempty"`
	// Origin is event, api, page, import, link or provider.
	Origin  string    `json:"origin"`
	LogID   string    `json:"log_id,omitempty"`
	By      string    `json:"by,omitempty"`
	Why     string    `json:"why,omitempty"`
	At      time.Time `json:"at"`
	Expires time.Time `json:"expires_at,omitzero"`
}

// NewSuppression is a Suppression to add.
type NewSuppression struct {
	Email string `json:"email"`
	// Reason is manual by default.
	Reason string `json:"reason,omitempty"`
	// Category restricts the entry to mail of a category.
	Category string `json:"category,omitempty"`
	// Expires is when mail may be sent again; zero: never.
	Expires time.Time `json:"expires_at,omitzero"`
	Why     string    `json:"why,omitempty"`
}

// SuppressionOptions select entries of a suppression list.
type SuppressionOptions struct {
	ListOptions

	Reason   string
	Category string
	// Part is a part of the address.
	Part string
	// Everyone selects the list for the mail of all users. It needs the scope operate, too.
	Everyone bool
}

func (o *SuppressionOptions) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"reason": o.Reason, "category": o.Category, "q": o.Part} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.Everyone {
		query.Set("everyone", "true")
	}
	return query
}

// Everyone makes a method about suppressions use the list for the mail of all users. It needs the scope operate, too.
func Everyone() CallOption { return func(c *call) { c.set("everyone", "true") } }

// Suppressions returns the entries in effect, in an order that means nothing.
func (c *Client) Suppressions(ctx context.Context, o SuppressionOptions) iter.Seq2[Suppression, error] {
	l := listing{path: route("suppressions"), name: "suppressions", query: o.query()}
	return list[Suppression](ctx, c, l, o.ListOptions)
}

// Suppress adds an address. When it returns, no call to a provider begins any more that contains the address.
func (c *Client) Suppress(ctx context.Context, n NewSuppression, options ...CallOption) (Suppression, error) {
	var out Suppression
	return out, c.post(ctx, route("suppressions"), n, &out, options)
}

// SuppressionsOf returns the entries in effect of an address. It returns an error with the code not_found if there are
// none.
func (c *Client) SuppressionsOf(ctx context.Context, email string, options ...CallOption) ([]Suppression, error) {
	var out struct {
		Suppressions []Suppression `json:"suppressions"`
	}
	err := c.get(ctx, route("suppressions", email), nil, &out, options)
	return out.Suppressions, err
}

// Unsuppress removes the entries of an address, or those with the reason or category of o. After a complaint or a hard
// bounce why is required.
func (c *Client) Unsuppress(
	ctx context.Context, email string, o SuppressionOptions, why string, options ...CallOption,
) error {
	for name, values := range o.query() {
		options = append(options, func(c *call) { c.set(name, values[0]) })
	}
	return c.remove(ctx, route("suppressions", email), why, options)
}

// SuppressionImport tells what an import did.
type SuppressionImport struct {
	Rows int `json:"rows"`
	// Added counts the entries that were not in effect before.
	Added int `json:"added"`
	// Rejected counts the rows with mistakes, which were left out.
	Rejected int `json:"rejected"`
	// Errors has the first 100 mistakes. A pointer begins with the number of the row.
	Errors []FieldError `json:"errors"`
}

// ImportSuppressions adds the rows of a CSV file, which has the names of the columns in the first row: email, and any
// of reason, category, expires_at and why. It may be repeated.
func (c *Client) ImportSuppressions(
	ctx context.Context, csv io.Reader, options ...CallOption,
) (SuppressionImport, error) {
	call := newCall(http.MethodPost, route("suppressions", "import"), options)
	call.body = csv
	call.header.Set("Content-Type", "text/csv")
	var out SuppressionImport
	return out, c.do(ctx, call, &out)
}

// ExportSuppressions writes all entries in effect to w as CSV.
func (c *Client) ExportSuppressions(ctx context.Context, w io.Writer, options ...CallOption) error {
	return c.do(ctx, newCall(http.MethodGet, route("suppressions", "export"), options), w)
}
