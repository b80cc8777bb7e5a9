package client

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Stats are sums per day. A recipient counts on the UTC day on which its batch was accepted.
type Stats struct {
	From     string      `json:"from" format:"date"`
	To       string      `json:"to" format:"date"`
	TimeZone string      `json:"time_zone" enum:"UTC"`
	Days     []DayCounts `json:"days"`
	Totals   Counts      `json:"totals"`
	// With `by`: the counts of all days, most mail first. A mail with several tags is in several groups. With
	// `by=provider` a mail counts for the provider that decided its state, or else for the newest one that was tried, and
	// for none if none was. Its events count for the provider that reported them. `rerouted` are the mails that were tried
	// there and count for another provider, so that `tried` in `providers`, which has that provider only, is `accepted`
	// and `rerouted` together.
	Groups []GroupCounts `json:"groups,omitempty"`
	// There are groups that are not counted apart. Of a user's mail in a day, 100 groups are: by provider, category,
	// sender and template, and then by tag, each in the order of their names.
	MoreGroups bool `json:"more_groups,omitempty"`
}

// GroupCounts are the counts of mail with the same provider, category, sender, template or tag.
type GroupCounts struct {
	Name string `json:"name"`
	Counts
	Rates Rates `json:"rates"`
}

// Rates are shares of mail, from 0 to 1. A share of nothing is 0.
type Rates struct {
	// Of the mail that ended as delivered or failed.
	Delivered float64 `json:"delivered"`
	// Of the mail that ended: failed because the mailbox does not exist.
	Bounced float64 `json:"bounced"`
	// Of the mail that was delivered.
	Complained float64 `json:"complained"`
	// Of the mail that was delivered.
	Unsubscribed float64 `json:"unsubscribed"`
	// Of the mail that was delivered.
	Opened float64 `json:"opened"`
	// Of the mail that was delivered.
	Clicked float64 `json:"clicked"`
}

// DayCounts are the counts of one day.
type DayCounts struct {
	Date string `json:"date" format:"date"`
	Counts
}

// Limits are the limits of a user or an API key, and how much of them is used.
type Limits struct {
	// ID of the user.
	User string `json:"user"`
	// ID of the API key, if these are the limits of one.
	Key    string     `json:"key,omitempty"`
	Limits []LimitUse `json:"limits"`
	// Whether the request changed the limits.
	Changed bool `json:"changed,omitempty"`
}

// LimitUse is one limit and how much of it is used.
type LimitUse struct {
	Limit string `json:"limit" schema:"LimitName"`
	// 0: no limit.
	Value int64 `json:"value"`
	// An operator set the limit; otherwise it is the default.
	Set bool `json:"set"`
	// How much is used, at most. Requests and bytes are those of the process that answers.
	Used int64 `json:"used"`
	// When the hour or the day ends. Absent for other limits.
	Resets time.Time `json:"resets,omitzero"`
}

// NewLimits are limits to set. Those that are left out take their defaults; 0 is no limit.
type NewLimits struct {
	// Requests to the API in a second, and as many at once after a pause. 0: no limit.
	RequestsPerSecond *int64 `json:"requests_per_second,omitempty" max:"1000000000000"`
	// Requests to the API that run at the same time. 0: no limit.
	RequestsAtOnce *int64 `json:"requests_at_once,omitempty" max:"1000000000000"`
	// Recipients of the batches accepted in a UTC hour. 0: no limit.
	RecipientsPerHour *int64 `json:"recipients_per_hour,omitempty" max:"1000000000000"`
	// Recipients of the batches accepted in a UTC day. 0: no limit.
	RecipientsPerDay *int64 `json:"recipients_per_day,omitempty" max:"1000000000000"`
	// Recipients of urgent batches that may leave in a UTC hour. A batch over it is not refused, but becomes bulk. 0: no
	// limit.
	UrgentRecipientsPerHour *int64 `json:"urgent_recipients_per_hour,omitempty" max:"1000000000000"`
	// Batches accepted in a UTC day. 0: no limit.
	BatchesPerDay *int64 `json:"batches_per_day,omitempty" max:"1000000000000"`
	// Batches that are stored at a time. They are removed when they are older than `KEEP_LOGS`. Of a key, those that it
	// posted since it has this limit. 0: no limit.
	StoredBatches *int64 `json:"stored_batches,omitempty" max:"1000000000000"`
	// Bytes of content, recipients and attachments that are stored at a time, before they are compressed. They are removed
	// when they are older than `KEEP_CONTENT`. Of a key, those that it posted since it has this limit. 0: no limit.
	StoredBytes *int64 `json:"stored_bytes,omitempty" max:"1000000000000"`
	// Bytes of recipients and attachments that are on disk while requests are read. The processes of an installation
	// divide it, and a request must fit into the part of one. 0: no limit.
	SpoolBytes *int64 `json:"spool_bytes,omitempty" max:"1000000000000"`
	// Reason for the audit trail.
	Why string `json:"why,omitempty" max:"500"`
}

// Request is an API request of a key.
type Request struct {
	ID string `json:"id" format:"uuid"`
	// When it was answered.
	At time.Time `json:"at"`
	// `SMTP` of a message that came by SMTP.
	Method string `json:"method"`
	// Without IDs and query, like `/v1/batches/:id`; `DATA` of a message by SMTP.
	Path string `json:"path"`
	// HTTP status, or the code of the reply by SMTP.
	Status int `json:"status"`
	// The code of the error.
	Code string `json:"code,omitempty"`
	// The header X-Request-Id of the answer.
	RequestID string `json:"request_id"`
	BatchID   string `json:"batch_id,omitempty" schema:"BatchId"`
	// From the head of the request to the answer, in milliseconds.
	TookMS float64 `json:"took_ms"`
	// How many older requests follow that were only counted.
	Omitted int `json:"omitted,omitempty"`
}

// RequestPage is a page of the requests of a key.
type RequestPage struct {
	// ID of the key.
	Key      string    `json:"key"`
	Requests []Request `json:"requests"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
}

// AuditEntry is a command and who gave it.
type AuditEntry struct {
	// Position in the command log.
	Number int       `json:"number"`
	At     time.Time `json:"at"`
	// Who gave the command: the ID of a user, or `cli:` and a name.
	By      string `json:"by"`
	Command string `json:"command" schema:"CommandKind"`
	// The reason given.
	Why     string `json:"why,omitempty"`
	BatchID string `json:"batch_id,omitempty" schema:"BatchId"`
	LogID   string `json:"log_id,omitempty" schema:"BatchId"`
	// The logs of a retry or release, if they were selected one by one.
	LogIDs   []string `json:"log_ids,omitempty" schema:"BatchId"`
	User     string   `json:"user,omitempty"`
	Provider string   `json:"provider,omitempty"`
	Senders  []string `json:"senders,omitempty"`
	Block    *Block   `json:"block,omitempty"`
	// Of user.limits: the limits that were set.
	Limits map[string]int64 `json:"limits,omitempty"`
	// Of a hold: mail that was accepted before this time is held.
	Before time.Time `json:"before,omitzero"`
	// ID of the key or of the parked message.
	Subject string `json:"subject,omitempty"`
	// Of user.defaults: what it set.
	Defaults *DefaultsSet `json:"defaults,omitempty"`
	// Of batch.reschedule, like the next two: the times that it set.
	DeliverAt  time.Time   `json:"deliver_at,omitzero"`
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"SendWindow"`
	ExpiresAt  time.Time   `json:"expires_at,omitzero"`
}

// DefaultsSet are the defaults of a user that a command set.
type DefaultsSet struct {
	TimeZone   string      `json:"time_zone,omitempty"`
	SendWindow *SendWindow `json:"send_window,omitempty" schema:"SendWindow"`
}

// AuditPage is a page of the audit trail.
type AuditPage struct {
	Commands []AuditEntry `json:"commands"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
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

// WaitingMail is the mail of a lane that waits for the same.
type WaitingMail struct {
	Lane Lane `json:"lane" schema:"Lane"`
	// What it waits for, in one stable word.
	Code string `json:"code"`
	// The provider that it waits for, if it is one.
	Provider   string `json:"provider,omitempty"`
	Recipients int64  `json:"recipients"`
	Batches    int    `json:"batches"`
	// When the oldest batch began to wait. Absent if no time has come yet.
	Since time.Time `json:"since,omitzero"`
	// The first time at which some of it is tried again. Absent if that is unknown.
	Until time.Time `json:"until,omitzero"`
	// What the oldest batch waits for, for people.
	Text string `json:"text"`
	// ID of the batch that waits longest.
	Oldest string `json:"oldest_batch" schema:"BatchId"`
}

// Waiting is the mail of all users that waits at Safedelivr.
type Waiting struct {
	At time.Time `json:"at"`
	// Recipients whose mail is queued.
	Queued int64 `json:"queued"`
	// Recipients whose mail a provider has accepted and not reported on.
	Sent int64 `json:"sent"`
	// Urgent mail first, and of a lane what waits longest.
	Waits []WaitingMail `json:"waits"`
	// More batches wait than were read: `waits` is about the oldest and the newest ones.
	Partial bool `json:"partial,omitempty"`
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
	Status  string            `json:"status" enum:"ready,not ready"`
	Missing []string          `json:"missing" enum:"store,broker,providers"` // The checks that failed.
	Checks  map[string]string `json:"checks"`                                // For each check `ok`, or what is wrong.
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
