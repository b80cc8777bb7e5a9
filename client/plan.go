package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// Plan is what would happen to a batch if it were sent now.
type Plan struct {
	DryRun     bool `json:"dry_run" const:"true"`
	Recipients int  `json:"recipients"`
	Duplicates int  `json:"duplicates"` // Repeated addresses that would be dropped.
	// Recipients that are on a suppression list, whose mail would fail at once: see `routes`.
	Suppressed int `json:"suppressed"`
	// Recipients that would be left out. Absent without `mode=permissive`.
	Rejected *Rejected `json:"rejected,omitempty"`
	Size     int64     `json:"size"` // Bytes of subject, text, HTML and attachments.
	Lane     Lane      `json:"lane"`
	// The limit that would make the batch bulk although it would be urgent.
	LaneLimit string    `json:"lane_limit,omitempty" schema:"LimitName"`
	ExpiresAt time.Time `json:"expires_at"`
	OwnTimes  *OwnTimes `json:"own_times,omitempty"` // Of a batch with recipients who have times of their own.
	// The way of the mail if it were sent now, by recipients that are treated alike.
	Routes []Route `json:"routes"`
	// The least time that the rates of the providers allow. Absent if a provider that gets mail has no rate, or if nothing
	// is sent now.
	Seconds *float64 `json:"seconds,omitempty"`
	// What the batch costs if each message is sent once. Absent if no prices are configured.
	Cost *Cost `json:"cost,omitempty"`
}

// Cost is what a batch costs if each message is sent once.
type Cost struct {
	Currency string  `json:"currency"`      // Three letters (ISO 4217).
	Least    float64 `json:"least" min:"0"` // Through the cheapest provider that each message may use.
	Most     float64 `json:"most" min:"0"`  // Through the dearest one.
	// At each provider, if the mail is sent as `routes` says. Mail that waits is not in it.
	Providers map[string]float64 `json:"providers"`
}

// Route is the way of recipients that are treated alike.
type Route struct {
	Recipients int             `json:"recipients"`
	Providers  []RouteProvider `json:"providers"` // The providers that the batch may use, in order of preference.
	Waits      *Wait           `json:"waits,omitempty"`
	Reason     string          `json:"reason,omitempty"` // Why the mail would fail at once. Stable.
	// When the wait of the last recipient ends, if they wait until different times. `until` of `waits` is when the first
	// one ends.
	LastUntil time.Time `json:"last_until,omitzero"`
	Text      string    `json:"text"` // All of this, for people.
}

// RouteProvider is a provider of a route.
type RouteProvider struct {
	Name    string  `json:"name"`
	Share   float64 `json:"share" min:"0" max:"1"` // The part of the mail that it gets.
	Waits   *Wait   `json:"waits,omitempty"`
	LeftOut string  `json:"left_out,omitempty"` // What of the message the provider cannot carry.
	Refused string  `json:"refused,omitempty"`  // Why the provider cannot carry the message. It is not used then.
}

// PlanBatch checks a batch and says what would happen to it. Nothing is stored or sent.
func (c *Client) PlanBatch(ctx context.Context, b NewBatch, options ...CallOption) (Plan, error) {
	call := newCall(http.MethodPost, route("batches"), options)
	call.set("dry_run", "true")
	var out Plan
	raw, err := json.Marshal(b)
	if err != nil {
		return out, err
	}
	call.body = bytes.NewReader(raw)
	return out, c.do(ctx, call, &out)
}
