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
)

// Notice is what operators may want to hear of.
type Notice struct {
	Type string `json:"type"`
	// Number is unique: the notices are 1, 2, 3, ….
	Number   int    `json:"number"`
	Provider string `json:"provider,omitempty"`
	// Reason is the source of a suspension in a word: calls, rejected, retry_after or silence. Why is for people.
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
	// Since is the start of the condition that the notice reports, and Until when it ends at the earliest.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Count is that of sums that differ, of recipients, of messages in a queue, of complaints, or what User has used of
	// Limit. Most is the limit.
	Count int64  `json:"count,omitempty"`
	User  string `json:"user,omitempty"`
	Limit string `json:"limit,omitempty"`
	Most  int64  `json:"most,omitempty"`
	// Delivered is how many of the mails that User sent on the day Since were delivered, of ComplaintsHigh.
	Delivered int64     `json:"delivered,omitempty"`
	At        time.Time `json:"at"`
	// Suppression is what was added to everyone's suppression list, if the notice is about that; its Number is 1.
	Suppression *AddedSuppression `json:"suppression,omitempty"`
	// Endpoint is that which was disabled, of User or, if that is empty, of the installation.
	Endpoint *DisabledEndpoint `json:"endpoint,omitempty"`
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
	// Next is the cursor behind the page. It is there even if nothing is new.
	Next string `json:"next_cursor"`
	// More says that there is more to read now, also if the page is empty.
	More bool `json:"more"`
	// Complete is a time: no notice before it follows. It is zero if nothing was ever written.
	Complete time.Time `json:"complete_until,omitzero"`
}

// NoticePage reads one page of notices. Call it again with its Next as the Cursor. It needs the scope operate.
func (c *Client) NoticePage(ctx context.Context, o NoticeOptions, options ...CallOption) (NoticePage, error) {
	query := UpdateOptions{
		PageSize: o.PageSize, Cursor: o.Cursor, From: o.From, To: o.To, Events: o.Types, Wait: o.Wait,
	}
	var out NoticePage
	return out, c.get(ctx, route("notices"), query.query(), &out, options)
}
