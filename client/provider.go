package client

import "time"

// Provider is a configured set of credentials and its present health.
type Provider struct {
	Name string `json:"name"`
	// The service, like `sendgrid`.
	Kind string `json:"kind"`
	// Share of mail relative to the other providers.
	Weight int `json:"weight"`
	// Most calls at the same time.
	Concurrency int `json:"concurrency"`
	// Most recipients per second. Absent if there is no limit.
	RatePerSecond float64 `json:"rate_per_second,omitempty"`
	// Most recipients of one call.
	ChunkLimit int `json:"chunk_limit"`
	// How the provider reports deliveries.
	Events string `json:"events" enum:"webhook,none"`
	// `null` if no worker has reported, and no operator has taken it offline.
	Health *Health `json:"health"`
	// Recipients accepted per second during the last seconds, by all workers.
	RateUsed float64 `json:"rate_used"`
	// Usual duration of a call in milliseconds. Absent if unknown.
	AnswerMS float64 `json:"answer_ms,omitempty"`
	// Upper bound of the time within which 90 % of mails have a final event, in milliseconds. Absent if unknown.
	ReportedWithinMS float64 `json:"reported_within_ms,omitempty"`
	// Time of the last verified webhook post, accurate to ten seconds. Absent if there was none.
	LastWebhook time.Time `json:"last_webhook_at,omitzero"`
	// Since when its webhook posts are refused. Absent: they are not.
	WebhooksRefused *RefusedWebhooks `json:"webhooks_refused,omitempty"`
	// When an event of each kind came in last, accurate to an hour. Kinds that did not come in during the last 30 days are
	// absent.
	EventsSeen map[string]time.Time `json:"events_seen_at,omitempty"`
	// Sums of the workers since they started.
	Worker *WorkerCounts `json:"worker,omitempty"`
	// How Safedelivr reads the suppression lists of the provider itself. Absent if its kind keeps none.
	Lists *ListsRead `json:"lists,omitempty"`
}

// RefusedWebhooks says how many webhook posts of a provider are refused.
type RefusedWebhooks struct {
	Since time.Time `json:"since"`
	// Posts that were refused.
	Posts int64 `json:"posts"`
}

// ProviderList has all providers, in the order of the configuration.
type ProviderList struct {
	Providers []Provider `json:"providers"`
}

// ListsRead says how Safedelivr reads the suppression lists of a provider.
type ListsRead struct {
	// When all were last read without an error. Absent: never.
	ReadAt time.Time `json:"read_at,omitzero"`
	// Why they could not be read last time.
	Error string `json:"error,omitempty"`
	// Lists that the provider's key may not read.
	Refused []string `json:"refused,omitempty"`
}

// Health says whether a provider may take mail.
type Health struct {
	// failing: its newest calls failed, too few to suspend it; gets all mail. draining: gets only mail that no other
	// provider may take. probation: gets a few recipients at a time until it reports on its mail again. probing: gets one
	// message at a time until it answers one. suspended: gets no mail before `until`. offline: an operator took it
	// offline.
	State string `json:"state" enum:"healthy,failing,draining,probation,probing,suspended,offline"`
	// Why it is not healthy. calls: calls failed, hung or were slow. rejected: it rejected its credentials or quota.
	// retry_after: it asked to wait. silence: it accepted mail and reported nothing. operator: an operator's command.
	// Absent while it is healthy.
	Source string `json:"source,omitempty" enum:"calls,rejected,retry_after,silence,operator"`
	// What happened, in words.
	Why string `json:"why,omitempty"`
	// The worker that found it out, if that is not the one that reports it.
	Peer  string    `json:"peer,omitempty"`
	Since time.Time `json:"since"`
	// It gets mail again at this time at the earliest.
	Until time.Time `json:"until,omitzero"`
	// Number of calls that failed since a call succeeded. Absent if none did.
	FailedCalls int `json:"failed_calls,omitempty"`
	// What the provider answered to the newest failed call, in words.
	LastError string `json:"last_error,omitempty"`
	// Domains of senders that the provider has not verified. Their mail uses other providers and tries this one again
	// later. Only operators see them.
	RefusedSenders []string `json:"refused_senders,omitempty"`
}

// WorkerCounts is what the workers have done at a provider since they started.
type WorkerCounts struct {
	// Calls to the provider.
	Calls int64 `json:"calls"`
	// Recipients that the provider accepted.
	Accepted int64 `json:"accepted"`
	// Recipients that the provider refused.
	Refused int64 `json:"refused"`
	// Recipients whose outcome was unknown after the call.
	Unknown int64 `json:"unknown"`
	// Delivery events.
	Delivered int64 `json:"delivered"`
	// Events that accepted mail bounced or was dropped, blocked or rejected.
	Failures int64 `json:"failures"`
	// Events that name no log and fit none.
	Unmatched int64 `json:"unmatched"`
	// Calls in flight.
	InFlight int64 `json:"inflight"`
}

// ProviderSuppression is an address that a provider suppresses and Safedelivr does not.
type ProviderSuppression struct {
	// In lower case.
	Email string `json:"email"`
	// The list of the provider, like `bounces`.
	List string `json:"list"`
	// Absent if it is none that holds everywhere.
	Reason string `json:"reason,omitempty" schema:"SuppressionReason"`
	// Kind of mail. Absent if the recipient wants no mail at all.
	Category string `json:"category,omitempty"`
	// What the provider says.
	Text string `json:"text,omitempty"`
	// Since when.
	At time.Time `json:"at"`
	// Who removed the address from everyone's list. Absent if it was not removed.
	RemovedBy string `json:"removed_by,omitempty"`
	// The reason that they gave.
	RemovedWhy string `json:"removed_why,omitempty"`
}

// ProviderSuppressionPage is a page of what a provider suppresses and Safedelivr does not.
type ProviderSuppressionPage struct {
	Suppressions []ProviderSuppression `json:"suppressions"`
	// Empty on the last page.
	Next string `json:"next_cursor"`
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
	Range HistoryRange `json:"range" schema:"HistoryRange"`
	// Start of the first step.
	From time.Time `json:"from"`
	// End of the last step, which is not over yet.
	To          time.Time         `json:"to"`
	StepSeconds int               `json:"step_seconds"`
	Providers   []ProviderHistory `json:"providers"`
}

// ProviderHistory is what happened at one provider.
type ProviderHistory struct {
	Provider string        `json:"provider"`
	Totals   HistoryCounts `json:"totals"`
	// At most 120 consecutive steps.
	Steps []HistoryStep `json:"steps"`
}

// HistoryStep is what happened in one step.
type HistoryStep struct {
	// Start of the step.
	At time.Time `json:"at"`
	HistoryCounts
}

// HistoryCounts are calls, recipients and events. Times are in milliseconds; absent if nothing was measured.
type HistoryCounts struct {
	// Calls that ended in this time.
	Calls int64 `json:"calls"`
	// Recipients that the provider accepted in these calls.
	Accepted int64 `json:"accepted"`
	// Recipients that the provider refused in these calls.
	Refused int64 `json:"refused"`
	// Recipients whose outcome was unknown after these calls.
	Unknown int64 `json:"unknown"`
	// Delivery events, by the time that the provider reports.
	Delivered int64 `json:"delivered"`
	// Events that mail bounced or was dropped, blocked or rejected after the provider had accepted it.
	Failed int64 `json:"failed"`
	// Events that a delivery was delayed.
	Deferred int64 `json:"deferred"`
	// Median duration of a call, accurate to about 10 %.
	AnswerMS float64 `json:"answer_ms,omitempty"`
	// 90th percentile of the duration of a call.
	Answer90MS float64 `json:"answer_90_ms,omitempty"`
	// Median time from the call to the delivery, by the provider's clock.
	DeliveryMS float64 `json:"delivery_ms,omitempty"`
	// 90th percentile of the time from the call to the delivery.
	Delivery90MS float64 `json:"delivery_90_ms,omitempty"`
}
