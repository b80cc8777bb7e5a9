package client

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Stats are sums per day. A recipient counts on the UTC day on which its batch was accepted.
type Stats struct {
	From     string      `json:"from"`
	To       string      `json:"to"`
	TimeZone string      `json:"time_zone"`
	Days     []DayCounts `json:"days"`
	Totals   Counts      `json:"totals"`
	// Groups are the counts of all days by what StatsBy named, most mail first.
	Groups []GroupCounts `json:"groups,omitempty"`
	// MoreGroups reports that there are groups that are not counted apart.
	MoreGroups bool `json:"more_groups,omitempty"`
}

// GroupCounts are the counts of mail with the same provider, category, sender, template or tag. A mail counts for the
// provider that it ended at or is at, and its events for those that reported them; Rerouted of a provider are the mails
// that were tried there and count for another one.
type GroupCounts struct {
	Name string `json:"name"`
	Counts
	Rates Rates `json:"rates"`
}

// Rates are shares of mail, from 0 to 1. Delivered and Bounced are shares of what ended as delivered or failed, the
// others of what was delivered.
type Rates struct {
	Delivered    float64 `json:"delivered"`
	Bounced      float64 `json:"bounced"`
	Complained   float64 `json:"complained"`
	Unsubscribed float64 `json:"unsubscribed"`
	Opened       float64 `json:"opened"`
	Clicked      float64 `json:"clicked"`
}

// StatsQuery says which stats are wanted.
type StatsQuery struct {
	// From and To are days, both included. A zero To is today, and a zero From is 29 days before To.
	From, To time.Time
	// By is provider, category, sender, template or tag: what to count apart. With Name, which is one of those, days and
	// totals count only its mail.
	By, Name string
}

// DayCounts are the counts of one day.
type DayCounts struct {
	Date string `json:"date"`
	Counts
}

// Stats returns the caller's sums of at most 400 days.
func (c *Client) Stats(ctx context.Context, q StatsQuery, options ...CallOption) (Stats, error) {
	query := url.Values{}
	for name, day := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !day.IsZero() {
			query.Set(name, day.UTC().Format(time.DateOnly))
		}
	}
	for name, value := range map[string]string{"by": q.By, "name": q.Name} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var out Stats
	return out, c.get(ctx, route("stats"), query, &out, options)
}

// Limits are the limits of a user or an API key, and how much of them is used.
type Limits struct {
	// User and Key are IDs. Key is empty if the limits are those of a user.
	User    string  `json:"user"`
	Key     string  `json:"key,omitempty"`
	Limits  []Limit `json:"limits"`
	Changed bool    `json:"changed,omitempty"`
}

// Limit is one limit. A Value of 0 means no limit.
type Limit struct {
	Limit string `json:"limit"`
	Value int64  `json:"value"`
	// Set tells that an operator set the limit; otherwise it is the default.
	Set  bool  `json:"set"`
	Used int64 `json:"used"`
	// Resets is when the hour or the day ends; zero for other limits.
	Resets time.Time `json:"resets,omitzero"`
}

// Usage returns the caller's limits and how much of them is used.
func (c *Client) Usage(ctx context.Context, options ...CallOption) (Limits, error) {
	var out Limits
	return out, c.get(ctx, route("usage"), nil, &out, options)
}

// Request is an API request of a key.
type Request struct {
	ID string    `json:"id"`
	At time.Time `json:"at"` // when it was answered
	// Method and Path are those of the request; the path is a pattern like /v1/batches/:id.
	Method string `json:"method"`
	Path   string `json:"path"`
	Status int    `json:"status"`
	// Code is that of the error.
	Code      string  `json:"code,omitempty"`
	RequestID string  `json:"request_id"`
	BatchID   string  `json:"batch_id,omitempty"`
	TookMS    float64 `json:"took_ms"`
	// Omitted counts older requests that follow and were only counted.
	Omitted int `json:"omitted,omitempty"`
}

// Requests returns the requests of a key of the last 7 days, newest first. key is the ID of a key; empty: that of the
// client. The keys of others need the scope operate.
func (c *Client) Requests(ctx context.Context, key string, o ListOptions) iter.Seq2[Request, error] {
	query := parameters(map[string]string{"key": key})
	return list[Request](ctx, c, listing{path: route("requests"), name: "requests", query: query}, o)
}

// UserLimits returns the limits of a user, given by ID or name, or of one of the user's keys, given by ID. It needs the
// scope operate.
func (c *Client) UserLimits(ctx context.Context, user, key string, options ...CallOption) (Limits, error) {
	var out Limits
	return out, c.get(ctx, limitsRoute(user, key), nil, &out, options)
}

// SetUserLimits replaces the limits that were set for a user or one of the user's keys. Limits that are not given take
// their defaults. It needs the scope operate.
func (c *Client) SetUserLimits(
	ctx context.Context,
	user, key string,
	limits map[string]int64,
	why string,
	options ...CallOption,
) (Limits, error) {
	body := map[string]any{"why": why}
	for name, value := range limits {
		body[name] = value
	}
	var out Limits
	return out, c.put(ctx, limitsRoute(user, key), body, &out, options)
}

func limitsRoute(user, key string) string {
	if key == "" {
		return route("users", user, "limits")
	}
	return route("users", user, "keys", key, "limits")
}

// AuditEntry is a command and who gave it.
type AuditEntry struct {
	Number int64     `json:"number"`
	At     time.Time `json:"at"`
	// By is a user's id, or "cli:" and a name.
	By       string   `json:"by"`
	Command  string   `json:"command"`
	Why      string   `json:"why,omitempty"`
	BatchID  string   `json:"batch_id,omitempty"`
	LogID    string   `json:"log_id,omitempty"`
	LogIDs   []string `json:"log_ids,omitempty"`
	User     string   `json:"user,omitempty"`
	Provider string   `json:"provider,omitempty"`
	Senders  []string `json:"senders,omitempty"`
	Block    *Block   `json:"block,omitempty"`
	// Limits are those that user.limits set.
	Limits map[string]int64 `json:"limits,omitempty"`
	Before time.Time        `json:"before,omitzero"`
	// Subject names anything else that the command was about.
	Subject string `json:"subject,omitempty"`
	// Defaults are those that user.defaults set.
	Defaults *Defaults `json:"defaults,omitempty"`
	// DeliverAt, SendWindow and ExpiresAt are the times that batch.reschedule set.
	DeliverAt  time.Time   `json:"deliver_at,omitzero"`
	SendWindow *SendWindow `json:"send_window,omitempty"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
}

// Audit returns all commands, newest first. It needs the scope operate.
func (c *Client) Audit(ctx context.Context, o ListOptions) iter.Seq2[AuditEntry, error] {
	return list[AuditEntry](ctx, c, listing{path: route("audit"), name: "commands"}, o)
}

// Queue says how full a queue is.
type Queue struct {
	Name     string `json:"name"`
	Provider string `json:"provider,omitempty"`
	// Absent for a queue that is not about mail.
	Lane Lane `json:"lane,omitempty" schema:"Lane"`
	// Waiting messages.
	Ready int `json:"ready"`
	// Messages that workers have; -1 if the broker does not say.
	Working int `json:"working"`
	// Upper bound of the age of the oldest waiting message. `null` if no message waits, or if no worker has seen the queue
	// move or empty yet.
	OldestSeconds *float64 `json:"oldest_seconds"`
}

// Age returns OldestSeconds as a duration, or 0 if it is unknown.
func (q *Queue) Age() time.Duration {
	if q.OldestSeconds == nil {
		return 0
	}
	return time.Duration(*q.OldestSeconds * float64(time.Second))
}

// QueueList has all queues.
type QueueList struct {
	Queues []Queue `json:"queues"`
}

// ParkedMessage is a message that no worker could handle.
type ParkedMessage struct {
	ID string `json:"id"`
	// Routing key of the message.
	Key string `json:"key"`
	// Why no worker could handle it. Empty if that is unknown.
	Why string `json:"why"`
	// When it was parked. Absent if that is unknown.
	At time.Time `json:"at,omitzero"`
}

// ParkedPage is a page of parked messages.
type ParkedPage struct {
	Parked []ParkedMessage `json:"parked"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// UnmatchedEvent is an event of a provider that names no message, and fits none or several.
type UnmatchedEvent struct {
	ID string `json:"id" format:"uuid"`
	// Name of the provider.
	Provider string `json:"provider"`
	// When the post came in.
	ReceivedAt time.Time `json:"received_at"`
	// When it happened, by the provider's clock.
	At time.Time `json:"at"`
	// Like `bounced`.
	Kind string `json:"kind"`
	// Reason of a failure, like `mailbox_invalid`.
	Reason string `json:"reason,omitempty"`
	// What the provider or the receiving server said.
	Text string `json:"text,omitempty"`
	// Address of the recipient. Absent if the event has none.
	Email string `json:"email,omitempty"`
	// ID that the provider gave the message. Absent if the event has none.
	MessageID string `json:"message_id,omitempty"`
	// Some of the recipients that it fits. Empty: it fits none.
	Logs []string `json:"logs"`
	// Body of the post. Only of one event that is asked for.
	Post string `json:"post,omitempty"`
}

// UnmatchedPage is a page of unmatched events.
type UnmatchedPage struct {
	Events []UnmatchedEvent `json:"events"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// Worker is a process that hands mail over to providers.
type Worker struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started,omitzero"`
	// Part of each provider's rate and concurrency that the worker may use; 0 while it may use none.
	Share float64 `json:"share"`
}

// WorkerList has all workers.
type WorkerList struct {
	Workers []Worker `json:"workers"`
}

// Check is the result of a recount of sums from the ledgers.
type Check struct {
	At time.Time `json:"at"`
	// Users whose mail was recounted.
	Users      int   `json:"users"`
	Batches    int   `json:"batches"`
	Chunks     int   `json:"chunks"`
	Recipients int64 `json:"recipients"`
	Days       int   `json:"days"`
	// Stored sums that differ from the recount.
	Differences int `json:"differences"`
	// Sums that were corrected.
	Repaired int `json:"repaired"`
}

// OpenAPI returns the description of the API that the server has, in YAML. It needs no key.
func (c *Client) OpenAPI(ctx context.Context, options ...CallOption) ([]byte, error) {
	var out []byte
	return out, c.get(ctx, route("openapi.yaml"), nil, &out, options)
}

// Health returns nil if the server answers. It needs no key.
func (c *Client) Health(ctx context.Context, options ...CallOption) error {
	return c.get(ctx, "/healthz", nil, nil, options)
}

// Readiness says whether a server accepts batches.
type Readiness struct {
	Status string `json:"status"`
	// Missing lists the parts that cannot be reached: store, broker, providers.
	Missing []string `json:"missing"`
	// Checks has "ok", or what is wrong, for each part.
	Checks map[string]string `json:"checks"`
}

// Ready reports whether the server accepts batches.
func (r *Readiness) Ready() bool { return r.Status == "ready" }

// Readiness returns what a server says of its parts, also if it is not ready. It needs no key.
func (c *Client) Readiness(ctx context.Context, options ...CallOption) (Readiness, error) {
	call := newCall(http.MethodGet, "/readyz", options)
	call.accept = http.StatusServiceUnavailable
	var out Readiness
	err := c.do(ctx, call, &out)
	if err == nil && out.Status == "" {
		err = errors.New("GET /readyz: the answer is not from Safedelivr")
	}
	return out, err
}
