package client

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Suppression says why no mail is sent to an address.
type Suppression struct {
	// In lower case. Empty if the address was erased; it stays suppressed.
	Email  string `json:"email"`
	Reason string `json:"reason" schema:"SuppressionReason"`
	// The reason for people.
	ReasonText string `json:"reason_text"`
	// Absent: all mail is suppressed.
	Category string `json:"category,omitempty"`
	// `event`: a provider reported it. `link`: the recipient followed the link in a mail. `provider`: it is on a
	// suppression list of the provider `by`.
	Origin string `json:"origin" enum:"event,api,page,import,link,provider"`
	// The log of the mail that an event was about.
	LogID string `json:"log_id,omitempty"`
	// ID of the user, or name of the provider that reported it.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	// When it began.
	At time.Time `json:"at"`
	// When mail may be sent again. Absent: never.
	Expires time.Time `json:"expires_at,omitzero"`
}

// SuppressionList has the entries of an address.
type SuppressionList struct {
	Suppressions []Suppression `json:"suppressions"`
}

// SuppressionPage is a page of a suppression list.
type SuppressionPage struct {
	Suppressions []Suppression `json:"suppressions"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// NewSuppression is a Suppression to add.
type NewSuppression struct {
	Email string `json:"email" required:"true"`
	// Default: `manual`.
	Reason string `json:"reason,omitempty" schema:"SuppressionReason"`
	// Only mail of this category is suppressed. Default: all mail.
	Category string `json:"category,omitempty" schema:"Category"`
	// When mail may be sent again. Default: never.
	Expires time.Time `json:"expires_at,omitzero"`
	Why     string    `json:"why,omitempty" max:"500"`
}

// Everyone makes a method about suppressions use the list for the mail of all users. It needs the scope operate, too.
func Everyone() CallOption { return func(c *call) { c.set("everyone", "true") } }

// SuppressionImport says what an import did.
type SuppressionImport struct {
	Rows     int `json:"rows"`     // Rows that were read.
	Added    int `json:"added"`    // Entries that were not in effect before.
	Rejected int `json:"rejected"` // Rows with mistakes.
	// The first mistakes. A pointer begins with the number of the row, from 1.
	Errors []FieldError `json:"errors" max:"100"`
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
