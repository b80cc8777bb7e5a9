package models

import (
	"fmt"
	"time"
)

// NoticeKind is the subject of a Notice.
type NoticeKind string

// The kinds of notice.
const (
	ProviderSuspended NoticeKind = "provider.suspended" // it gets no mail
	ProviderRecovered NoticeKind = "provider.recovered" // it gets mail again
	FailoverStarted   NoticeKind = "failover.started"   // its calls fail; others carry its mail if they accept it
	FailoverEnded     NoticeKind = "failover.ended"     // its calls succeed again
	CheckDifference   NoticeKind = "check.difference"   // sums differ from their recount
	UnknownOutcomes   NoticeKind = "outcome.unknown"    // calls ended without an answer
	QueueStalled      NoticeKind = "queue.stalled"      // a queue of the broker delivered to no worker
	QuotaNear         NoticeKind = "quota.near"         // a user has used most of a limit
	ComplaintsHigh    NoticeKind = "complaints.high"    // many of a user's mails of a day were reported as spam
	WebhooksRefused   NoticeKind = "webhooks.refused"   // the posts of a provider cannot be verified
	WebhooksAccepted  NoticeKind = "webhooks.accepted"  // they can be again
	AcceptanceStopped NoticeKind = "acceptance.stopped" // a disk is nearly full: batches are refused
	AcceptanceResumed NoticeKind = "acceptance.resumed" // they are accepted again
	SendingStopped    NoticeKind = "sending.stopped"    // no provider accepts mail
	SendingResumed    NoticeKind = "sending.resumed"    // one does again
	BrokerLost        NoticeKind = "broker.lost"        // the broker takes and delivers no messages
	BrokerRecovered   NoticeKind = "broker.recovered"   // it does again
	EndpointDisabled  NoticeKind = "endpoint.disabled"  // it failed, and gets no posts; also in the feed of its user
)

// Notice is an update of the installation's feed: something that operators want to hear of. It is about no single mail.
type Notice struct {
	Kind     NoticeKind `json:"type"`
	Number   int        `json:"number"` // the notices of the feed are 1, 2, 3, …
	Provider string     `json:"provider,omitempty"`
	Reason   string     `json:"reason,omitempty"` // the source of a suspension, in a word
	Why      string     `json:"why,omitempty"`    // for people
	Since    time.Time  `json:"since,omitzero"`   // when the subject began
	Until    time.Time  `json:"until,omitzero"`   // when it ends at the earliest
	Count    int64      `json:"count,omitempty"`  // of differences, recipients, messages, complaints or uses of a limit
	User     string     `json:"user,omitempty"`   // ID
	Limit    Limit      `json:"limit,omitempty"`
	Most     int64      `json:"most,omitempty"` // value of the limit

	Delivered int64 `json:"delivered,omitempty"` // of ComplaintsHigh: what was delivered of the same mail

	Endpoint *FailedEndpoint `json:"endpoint,omitempty"` // of EndpointDisabled
}

// FailedEndpoint is an endpoint that was disabled because its posts failed.
type FailedEndpoint struct {
	ID    string    `json:"id"`
	Why   string    `json:"why"`   // for people
	Since time.Time `json:"since"` // when its posts began to fail
}

// Text describes the notice for people.
func (n *Notice) Text() string {
	var s string
	switch n.Kind {
	case ProviderSuspended:
		s = fmt.Sprintf("Provider %s is suspended: it gets no mail until %s at the earliest.", n.Provider, clock(n.Until))
	case ProviderRecovered:
		s = fmt.Sprintf("Provider %s has recovered. It was suspended since %s.", n.Provider, clock(n.Since))
	case FailoverStarted:
		s = fmt.Sprintf(
			"Calls to provider %s fail since %s. Other providers carry its mail if they accept it.",
			n.Provider,
			clock(n.Since),
		)
	case FailoverEnded:
		s = fmt.Sprintf("Calls to provider %s succeed again. They failed since %s.", n.Provider, clock(n.Since))
	case CheckDifference:
		s = fmt.Sprintf("%d sums differ from their recount. Run safedelivr check.", n.Count)
	case UnknownOutcomes:
		s = fmt.Sprintf("Calls to provider %s ended without an answer: whether it has the mail to %d recipients is unknown "+
			"until evidence settles it.", n.Provider, n.Count)
	case WebhooksRefused, WebhooksAccepted, AcceptanceStopped, AcceptanceResumed, SendingStopped, SendingResumed,
		BrokerLost, BrokerRecovered:
		s = n.conditionText()
	case QueueStalled:
		s = n.stalledText()
	case SuppressionAdded:
		return n.Why
	case QuotaNear:
		s = fmt.Sprintf("User %s has used %d of %d of the limit %s.", n.User, n.Count, n.Most, n.Limit)
	case ComplaintsHigh:
		s = fmt.Sprintf(
			"%d of the %d mails of user %s that were accepted on %s and delivered were reported as spam (%.2f %%). "+
				"Mailbox providers slow down or refuse such senders.",
			n.Count,
			n.Delivered,
			n.User,
			n.Since.UTC().Format("2 January"),
			100*float64(n.Count)/float64(max(n.Delivered, 1)),
		)
	case EndpointDisabled:
		of := "the installation"
		if n.User != "" {
			of = "user " + n.User
		}
		s = fmt.Sprintf("Endpoint %s of %s is disabled: %s. Nothing is posted to it until it is enabled.",
			n.Endpoint.ID, of, n.Endpoint.Why)
	}
	switch {
	case n.Why == "":
		return s
	case n.Kind == SendingStopped || n.Kind == BrokerLost: // a sentence of its own
		return s + " " + OneLine(n.Why)
	}
	return s + " Reason: " + OneLine(n.Why)
}

// conditionText says that a condition begins or ends, for people.
func (n *Notice) conditionText() string {
	switch n.Kind {
	case WebhooksRefused:
		return fmt.Sprintf("Webhooks of provider %s are refused since %s. Its mail stays sent without a report.",
			n.Provider, clock(n.Since))
	case WebhooksAccepted:
		return fmt.Sprintf("Webhooks of provider %s are accepted again. They were refused since %s.", n.Provider, clock(n.Since))
	case AcceptanceStopped:
		return fmt.Sprintf("Batches are refused since %s, because a disk is nearly full.", clock(n.Since))
	case AcceptanceResumed:
		return fmt.Sprintf("Batches are accepted again. They were refused since %s.", clock(n.Since))
	case SendingStopped:
		return fmt.Sprintf("No provider accepts mail since %s.", clock(n.Since))
	case SendingResumed:
		return fmt.Sprintf("A provider accepts mail again. None did since %s.", clock(n.Since))
	case BrokerLost:
		return fmt.Sprintf("The broker takes no messages since %s.", clock(n.Since))
	case BrokerRecovered:
		return fmt.Sprintf("The broker takes messages again. It took none since %s.", clock(n.Since))
	}
	return ""
}

// stalledText says what happened to a queue, for people.
func (n *Notice) stalledText() string {
	s := fmt.Sprintf("A queue of the broker delivers nothing to any worker since %s. The agenda sends its mail, "+
		"minutes late. Look at the log of the broker.", clock(n.Since))
	if n.Count > 0 {
		s += fmt.Sprintf(" Safedelivr subscribed anew, while %d messages waited.", n.Count)
	}
	return s
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC on 2 January") }
