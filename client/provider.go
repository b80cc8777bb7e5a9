package client

import (
	"context"
	"iter"
	"net/url"
	"time"
)

// Provider is a configured set of credentials and its present health.
type Provider struct {
	Name string `json:"name"`
	// Kind is whose API it is, such as sendgrid.
	Kind          string  `json:"kind"`
	Weight        int     `json:"weight"`
	Concurrency   int     `json:"concurrency"`
	RatePerSecond float64 `json:"rate_per_second,omitempty"`
	ChunkLimit    int     `json:"chunk_limit"`
	// Events is webhook or none.
	Events string `json:"events"`
	// Health is nil if no worker has reported.
	Health *Health `json:"health"`
	// RateUsed is the number of recipients accepted per second over the last seconds, by all workers.
	RateUsed float64 `json:"rate_used"`
	// AnswerMS is how long calls usually take; zero if it is unknown.
	AnswerMS float64 `json:"answer_ms,omitempty"`
	// ReportedWithinMS is an upper bound of the time within which nine of ten mails are reported on; zero if it is
	// unknown.
	ReportedWithinMS float64 `json:"reported_within_ms,omitempty"`
	// LastWebhook is when the last verified webhook arrived, to ten seconds.
	LastWebhook time.Time `json:"last_webhook_at,omitzero"`
	// EventsSeen is when an event of each kind came in last, to an hour. It has the kinds of the last 30 days.
	EventsSeen map[string]time.Time `json:"events_seen_at,omitempty"`
	Worker     *WorkerCounts        `json:"worker,omitempty"`
	// Lists tells how the provider's own suppression lists are read; nil if it keeps none.
	Lists *ListsRead `json:"lists,omitempty"`
}

// ListsRead tells how the suppression lists of a provider are read.
type ListsRead struct {
	// ReadAt is when all were last read without an error; zero: never.
	ReadAt time.Time `json:"read_at,omitzero"`
	// Error is why they could not be read last time.
	Error string `json:"error,omitempty"`
	// Refused are lists that the provider's key may not read.
	Refused []string `json:"refused,omitempty"`
}

// Health says whether a provider may take mail.
type Health struct {
	// State is healthy, failing, draining, probation, probing, suspended or offline.
	State string `json:"state"`
	// Source is calls, rejected, retry_after, silence or operator; empty if the provider is healthy.
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
	// Peer is the worker that found it out, if that is not the one that reports it.
	Peer  string    `json:"peer,omitempty"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until,omitzero"`
	// FailedCalls is how many calls failed since one succeeded, LastError what the newest was answered.
	FailedCalls int    `json:"failed_calls,omitempty"`
	LastError   string `json:"last_error,omitempty"`
	// RefusedSenders are domains of senders that the provider has not verified; for operators.
	RefusedSenders []string `json:"refused_senders,omitempty"`
}

// WorkerCounts is what the worker that reported has done since it started.
type WorkerCounts struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"`
	Refused   int64 `json:"refused"`
	Unknown   int64 `json:"unknown"`
	Delivered int64 `json:"delivered"`
	Failures  int64 `json:"failures"`
	// Unmatched counts events that name no log and fit none.
	Unmatched int64 `json:"unmatched"`
	InFlight  int64 `json:"inflight"`
}

// Providers returns all providers.
func (c *Client) Providers(ctx context.Context, options ...CallOption) ([]Provider, error) {
	var out struct {
		Providers []Provider `json:"providers"`
	}
	err := c.get(ctx, route("providers"), nil, &out, options)
	return out.Providers, err
}

// ProviderOffline keeps all calls from a provider until ProviderOnline. It needs the scope operate.
func (c *Client) ProviderOffline(ctx context.Context, name, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("providers", name, "offline"), why, options)
}

// ProviderOnline uses a provider again. It needs the scope operate.
func (c *Client) ProviderOnline(ctx context.Context, name, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("providers", name, "online"), why, options)
}

// DrainProvider gives a provider only mail that no other provider may take. It needs the scope operate.
func (c *Client) DrainProvider(ctx context.Context, name, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("providers", name, "drain"), why, options)
}

// ProbeProvider ends the suspension of a provider early, for example after its key was renewed; one mail shows
// whether it works. A provider that is offline answers provider_offline. It needs the scope operate.
func (c *Client) ProbeProvider(ctx context.Context, name, why string, options ...CallOption) (ControlResult, error) {
	return c.control(ctx, route("providers", name, "probe"), why, options)
}

// ProviderSuppression is an address that a provider suppresses and Safedelivr does not.
type ProviderSuppression struct {
	Email string `json:"email"`
	// List is the provider's name of the list, like bounces.
	List string `json:"list"`
	// Reason is as that of a Suppression; empty if it is none that holds everywhere.
	Reason string `json:"reason,omitempty"`
	// Category is empty if the recipient wants no mail at all.
	Category string `json:"category,omitempty"`
	// Text is what the provider says.
	Text string    `json:"text,omitempty"`
	At   time.Time `json:"at"`
	// RemovedBy is who removed the address from everyone's list; empty if it was not removed.
	RemovedBy  string `json:"removed_by,omitempty"`
	RemovedWhy string `json:"removed_why,omitempty"`
}

// ProviderSuppressions returns the addresses that a provider suppresses and Safedelivr does not, as its lists were last
// read, in an order that means nothing. It needs the scope operate.
func (c *Client) ProviderSuppressions(
	ctx context.Context, name string, o ListOptions,
) iter.Seq2[ProviderSuppression, error] {
	l := listing{path: route("providers", name, "suppressions"), name: "suppressions"}
	return list[ProviderSuppression](ctx, c, l, o)
}

// ClearProviderSuppression removes an address from a suppression list of a provider, or from all of them if list is
// empty. It needs the scope operate.
func (c *Client) ClearProviderSuppression(
	ctx context.Context, name, email, list, why string, options ...CallOption,
) error {
	if list != "" {
		options = append(options, func(c *call) { c.set("list", list) })
	}
	return c.remove(ctx, route("providers", name, "suppressions", email), why, options)
}

// HistoryRange is how far back a History goes.
type HistoryRange string

// The ranges of a History. Their steps are a minute, 15 minutes, 2 hours and 6 hours.
const (
	Hour  HistoryRange = "hour"
	Day   HistoryRange = "day"
	Week  HistoryRange = "week"
	Month HistoryRange = "month"
)

// History is what happened at the providers over time, for all users together. It is approximate; exact sums are in
// [Stats].
type History struct {
	Range       HistoryRange      `json:"range"`
	From        time.Time         `json:"from"`
	To          time.Time         `json:"to"`
	StepSeconds int               `json:"step_seconds"`
	Providers   []ProviderHistory `json:"providers"`
}

// ProviderHistory is what happened at one provider.
type ProviderHistory struct {
	Provider string        `json:"provider"`
	Totals   HistoryCounts `json:"totals"`
	Steps    []HistoryStep `json:"steps"`
}

// HistoryStep is what happened in one step, which begins at At.
type HistoryStep struct {
	At time.Time `json:"at"`
	HistoryCounts
}

// HistoryCounts are calls, recipients and events. The times are medians and ninetieth percentiles in milliseconds; zero
// if nothing was measured.
type HistoryCounts struct {
	Calls        int64   `json:"calls"`
	Accepted     int64   `json:"accepted"`
	Refused      int64   `json:"refused"`
	Unknown      int64   `json:"unknown"`
	Delivered    int64   `json:"delivered"`
	Failed       int64   `json:"failed"`
	Deferred     int64   `json:"deferred"`
	AnswerMS     float64 `json:"answer_ms,omitempty"`
	Answer90MS   float64 `json:"answer_90_ms,omitempty"`
	DeliveryMS   float64 `json:"delivery_ms,omitempty"`
	Delivery90MS float64 `json:"delivery_90_ms,omitempty"`
}

// ProviderHistory returns what happened at the providers over time.
func (c *Client) ProviderHistory(ctx context.Context, r HistoryRange, options ...CallOption) (History, error) {
	var out History
	return out, c.get(ctx, route("providers", "history"), url.Values{"range": {string(r)}}, &out, options)
}
