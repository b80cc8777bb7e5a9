package client

import (
	"context"
	"time"
)

// The types of notices.
const (
	ProviderSuspended = "provider.suspended"
	ProviderRecovered = "provider.recovered"
	FailoverStarted   = "failover.started"
	FailoverEnded     = "failover.ended"
	CheckDifference   = "check.difference"
	OutcomeUnknown    = "outcome.unknown"
	QueueStalled      = "queue.stalled"
	QuotaNear         = "quota.near"
	ComplaintsHigh    = "complaints.high"
	WebhooksRefused   = "webhooks.refused"
	WebhooksAccepted  = "webhooks.accepted"
	AcceptanceStopped = "acceptance.stopped"
	AcceptanceResumed = "acceptance.resumed"
	SendingStopped    = "sending.stopped"
	SendingResumed    = "sending.resumed"
	BrokerLost        = "broker.lost"
	BrokerRecovered   = "broker.recovered"
)

// Notice is what operators may want to hear of.
type Notice struct {
	Type string `json:"type" schema:"NoticeType"`
	// The notices of the installation are 1, 2, 3, …. Of `suppression.added` it is 1.
	Number   int    `json:"number" min:"1"`
	Provider string `json:"provider,omitempty"`
	// Source of a suspension or of an outage: `calls`, `rejected`, `retry_after` or `silence`.
	Reason string    `json:"reason,omitempty"`
	Why    string    `json:"why,omitempty"`  // The same for people, like the answer of the provider.
	Since  time.Time `json:"since,omitzero"` // Start of the condition that the notice reports, or whose end it reports.
	Until  time.Time `json:"until,omitzero"` // When it ends at the earliest.
	// The number of sums that differ, recipients with an unknown outcome, messages that waited in a queue, or mails that
	// were reported as spam. Or the used part of the limit.
	Count int64 `json:"count,omitempty"`
	// ID of the user whose limit, mail or endpoint it is. Absent: it is an endpoint of the installation.
	User  string `json:"user,omitempty"`
	Limit string `json:"limit,omitempty"` // Name of the limit, like `recipients_per_hour`.
	Most  int64  `json:"most,omitempty"`  // Its value.
	// Of `complaints.high`: how many of the mails that the user sent on the day `since` were delivered.
	Delivered   int64             `json:"delivered,omitempty"`
	At          time.Time         `json:"at"` // When the notice was written.
	Suppression *AddedSuppression `json:"suppression,omitempty"`
	Endpoint    *DisabledEndpoint `json:"endpoint,omitempty"`
}

// NoticeOptions select notices. The zero value selects all that are kept.
type NoticeOptions struct {
	// PageSize is how many notices a request asks for, 1 to 1,000. The default is 1,000.
	PageSize int
	// Cursor is where to begin: that of an earlier read. By default it is the oldest notice that is kept.
	Cursor string
	// From and To bound the time of the notices: [From, To).
	From, To time.Time
	// Types are types of notices; the default is all but SuppressionAdded.
	Types []string
	// Wait is how long the request waits for a notice, up to a minute. Zero: it does not wait.
	Wait time.Duration
}

// NoticePage is a part of the notices.
type NoticePage struct {
	Notices []Notice `json:"notices"`
	UpdatesEnd
}

// NoticePage reads one page of notices. Call it again with its Next as the Cursor. It needs the scope operate.
func (c *Client) NoticePage(ctx context.Context, o NoticeOptions, options ...CallOption) (NoticePage, error) {
	query := UpdateOptions{
		PageSize: o.PageSize, Cursor: o.Cursor, From: o.From, To: o.To, Events: o.Types, Wait: o.Wait,
	}
	var out NoticePage
	return out, c.get(ctx, route("notices"), query.query(), &out, options)
}
