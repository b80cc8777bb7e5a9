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
	// Lane is empty for a queue that is not about mail.
	Lane  Lane `json:"lane,omitempty"`
	Ready int  `json:"ready"`
	// Working counts the messages that workers have; -1 if the broker does not say.
	Working int `json:"working"`
	// OldestSeconds is an upper bound of how long the oldest message has waited; nil if none waits or if it is unknown.
	OldestSeconds *float64 `json:"oldest_seconds"`
}

// Queues returns all queues. It needs the scope operate.
func (c *Client) Queues(ctx context.Context, options ...CallOption) ([]Queue, error) {
	var out struct {
		Queues []Queue `json:"queues"`
	}
	err := c.get(ctx, route("queues"), nil, &out, options)
	return out.Queues, err
}

// ParkedMessage is a message that no worker could handle.
type ParkedMessage struct {
	ID  string    `json:"id"`
	Key string    `json:"key"`
	Why string    `json:"why"`
	At  time.Time `json:"at,omitzero"`
}

// Parked returns all parked messages, oldest first if the broker knows. It needs the scope operate.
func (c *Client) Parked(ctx context.Context, o ListOptions) iter.Seq2[ParkedMessage, error] {
	return list[ParkedMessage](ctx, c, listing{path: route("parked"), name: "parked"}, o)
}

// UnmatchedEvent is an event of a provider that names no message, and fits none or several.
type UnmatchedEvent struct {
	ID         string    `json:"id"`
	Provider   string    `json:"provider"`
	ReceivedAt time.Time `json:"received_at"`
	At         time.Time `json:"at"` // by the provider's clock
	Kind       string    `json:"kind"`
	Reason     string    `json:"reason"`
	Text       string    `json:"text"`
	Email      string    `json:"email"`      // empty: the event does not tell
	MessageID  string    `json:"message_id"` // of the provider
	Logs       []string  `json:"logs"`       // some of those that it fits; empty: none
	Post       string    `json:"post"`       // the body of its post, if one event is asked for
}

// UnmatchedEvents returns the events that fitted no message, or several, newest first. It needs the scope operate.
func (c *Client) UnmatchedEvents(ctx context.Context, o ListOptions) iter.Seq2[UnmatchedEvent, error] {
	return list[UnmatchedEvent](ctx, c, listing{path: route("unmatched"), name: "events"}, o)
}

// UnmatchedEvent returns an unmatched event with its post. It needs the scope operate.
func (c *Client) UnmatchedEvent(ctx context.Context, id string, options ...CallOption) (UnmatchedEvent, error) {
	var out UnmatchedEvent
	err := c.get(ctx, route("unmatched", id), nil, &out, options)
	return out, err
}

// RequeueParked publishes a parked message again. It needs the scope operate.
func (c *Client) RequeueParked(ctx context.Context, id, why string, options ...CallOption) error {
	return c.post(ctx, route("parked", id, "requeue"), commandBody{why}, nil, options)
}

// DiscardParked drops a parked message. It needs the scope operate.
func (c *Client) DiscardParked(ctx context.Context, id, why string, options ...CallOption) error {
	return c.remove(ctx, route("parked", id), why, options)
}

// Worker is a worker that reported lately.
type Worker struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started,omitzero"`
	// Share is the part of every provider's rate and concurrency that the worker may use, up to 1.
	Share float64 `json:"share"`
}

// Workers returns all workers that reported lately. It needs the scope operate.
func (c *Client) Workers(ctx context.Context, options ...CallOption) ([]Worker, error) {
	var out struct {
		Workers []Worker `json:"workers"`
	}
	err := c.get(ctx, route("workers"), nil, &out, options)
	return out.Workers, err
}

// Check is the result of a recount of sums from the ledgers.
type Check struct {
	At         time.Time `json:"at"`
	Users      int64     `json:"users"`
	Batches    int64     `json:"batches"`
	Chunks     int64     `json:"chunks"`
	Recipients int64     `json:"recipients"`
	Days       int64     `json:"days"`
	// Differences counts the sums that were wrong, and Repaired those of them that were repaired.
	Differences int64 `json:"differences"`
	Repaired    int64 `json:"repaired"`
}

// Check returns the newest recount that the workers made; not_found if there was none in the last week. It needs the
// scope operate.
func (c *Client) Check(ctx context.Context, options ...CallOption) (Check, error) {
	var out Check
	return out, c.get(ctx, route("check"), nil, &out, options)
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
