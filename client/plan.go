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
	DryRun     bool `json:"dry_run"` // it is true
	Recipients int  `json:"recipients"`
	Duplicates int  `json:"duplicates"`
	// Suppressed counts recipients on a suppression list.
	Suppressed int `json:"suppressed"`
	// Rejected lists the recipients that would be left out; nil without [Permissive].
	Rejected *Rejected `json:"rejected,omitempty"`
	// Size is the number of bytes of subject, text, HTML and attachments.
	Size      int64     `json:"size"`
	Lane      Lane      `json:"lane"`
	LaneLimit string    `json:"lane_limit,omitempty"` // that would make the batch bulk
	ExpiresAt time.Time `json:"expires_at"`
	OwnTimes  *OwnTimes `json:"own_times,omitempty"` // nil: no recipient has times of their own
	// Routes are the ways of the mail, by recipients that are treated alike.
	Routes []Route `json:"routes"`
	// Seconds is the least time that the rates of the providers allow; nil if a provider that gets mail has none.
	Seconds *float64 `json:"seconds,omitempty"`
	// Cost is what the batch costs; nil if no prices are configured.
	Cost *Cost `json:"cost,omitempty"`
}

// Cost is what a batch costs if each message is sent once.
type Cost struct {
	Currency string `json:"currency"`
	// Least and Most are the cost through the cheapest and the dearest provider that each message may use.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
	// Providers has the cost at each provider if the mail is sent as the routes say, without mail that waits.
	Providers map[string]float64 `json:"providers"`
}

// Route is the way of recipients that are treated alike.
type Route struct {
	Recipients int             `json:"recipients"`
	Providers  []RouteProvider `json:"providers"`
	// Waits says what the mail waits for, if no provider takes it now, and Reason why it would fail at once.
	Waits  *Wait  `json:"waits,omitempty"`
	Reason string `json:"reason,omitempty"`
	// LastUntil is when the wait of the last recipient ends, if they wait until different times.
	LastUntil time.Time `json:"last_until,omitzero"`
	// Text says all of this to people.
	Text string `json:"text"`
}

// RouteProvider is a provider of a route.
type RouteProvider struct {
	Name string `json:"name"`
	// Share is the part of the mail that it gets, from 0 to 1.
	Share float64 `json:"share"`
	// Waits says why it gets none now, and LeftOut what of the message it cannot carry.
	Waits   *Wait  `json:"waits,omitempty"`
	LeftOut string `json:"left_out,omitempty"`
	// Refused says why it cannot carry the message, so that it is not used.
	Refused string `json:"refused,omitempty"`
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
