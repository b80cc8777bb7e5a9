package feed

import (
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// Type is the kind of an update of a log.
type Type string

// The types: changes of the state of a log, and events.
const (
	Delivered    Type = "log.delivered"
	Failed       Type = "log.failed"
	Cancelled    Type = "log.cancelled"
	Queued       Type = "log.queued" // it was final before
	Deferred     Type = "log.deferred"
	Bounced      Type = "log.bounced"
	Complained   Type = "log.complained"
	Unsubscribed Type = "log.unsubscribed"
	Opened       Type = "log.opened"
	Clicked      Type = "log.clicked"
	BatchDone    Type = "batch.done" // no log of the batch is queued any more
)

// The types of notices, for operators.
const (
	ProviderSuspended = Type(models.ProviderSuspended)
	ProviderRecovered = Type(models.ProviderRecovered)
	FailoverStarted   = Type(models.FailoverStarted)
	FailoverEnded     = Type(models.FailoverEnded)
	CheckDifference   = Type(models.CheckDifference)
	UnknownOutcomes   = Type(models.UnknownOutcomes)
	QuotaNear         = Type(models.QuotaNear)
	ComplaintsHigh    = Type(models.ComplaintsHigh)
	SuppressionAdded  = Type(models.SuppressionAdded) // also of users
	EndpointDisabled  = Type(models.EndpointDisabled) // also of users
	WebhooksRefused   = Type(models.WebhooksRefused)
	WebhooksAccepted  = Type(models.WebhooksAccepted)
	AcceptanceStopped = Type(models.AcceptanceStopped)
	AcceptanceResumed = Type(models.AcceptanceResumed)
	SendingStopped    = Type(models.SendingStopped)
	SendingResumed    = Type(models.SendingResumed)
)

// All selects all types, also for those that are added later.
const All Type = "all"

// Types lists the types of updates of a user, those of changes first.
var Types = []Type{
	Delivered, Failed, Cancelled, Queued, Deferred, Bounced, Complained, Unsubscribed, Opened, Clicked, BatchDone,
	SuppressionAdded, EndpointDisabled,
}

// NoticeTypes lists the types of updates of the installation: notices, and additions to everyone's suppression list.
var NoticeTypes = []Type{
	ProviderSuspended, ProviderRecovered, FailoverStarted, FailoverEnded, CheckDifference, UnknownOutcomes,
	Type(models.QueueStalled), QuotaNear, ComplaintsHigh, SuppressionAdded, EndpointDisabled, WebhooksRefused,
	WebhooksAccepted, AcceptanceStopped, AcceptanceResumed, SendingStopped, SendingResumed,
}

// TypesOf lists the types that a feed has: that of the installation, or of a user.
func TypesOf(owner string) []Type {
	if owner == Installation {
		return NoticeTypes
	}
	return Types
}

// Event reports whether t is an event about mail, and no change of the state.
func (t Type) Event() bool {
	return t != EndpointDisabled && slices.Index(Types, t) > slices.Index(Types, Queued)
}

// typeWords says what happened, for people.
var typeWords = map[Type]string{
	Delivered:                 "delivered",
	Failed:                    "failed",
	Cancelled:                 "cancelled",
	Queued:                    "sent again",
	Deferred:                  "deferred",
	Bounced:                   "bounced",
	Complained:                "complaint",
	Unsubscribed:              "unsubscribed",
	Opened:                    "opened",
	Clicked:                   "clicked",
	BatchDone:                 "batch done",
	SuppressionAdded:          "address suppressed",
	ProviderSuspended:         "provider suspended",
	ProviderRecovered:         "provider recovered",
	FailoverStarted:           "failover started",
	FailoverEnded:             "failover ended",
	CheckDifference:           "sums differ",
	UnknownOutcomes:           "unknown outcomes",
	Type(models.QueueStalled): "queue stalled",
	QuotaNear:                 "limit nearly used up",
	ComplaintsHigh:            "many complaints",
	EndpointDisabled:          "endpoint disabled",
	WebhooksRefused:           "webhooks refused",
	WebhooksAccepted:          "webhooks accepted again",
	AcceptanceStopped:         "batches refused",
	AcceptanceResumed:         "batches accepted again",
	SendingStopped:            "no provider accepts mail",
	SendingResumed:            "a provider accepts mail again",
	All:                       "everything",
}

// Words says what happened, for people.
func (t Type) Words() string {
	if words, ok := typeWords[t]; ok {
		return words
	}
	return string(t)
}

// TypeOf returns the type of an update to a state, or if there is none, of an event.
func TypeOf(s models.State, event models.EventKind) Type {
	switch s {
	case models.Success:
		return Delivered
	case models.Failed:
		return Failed
	case models.Cancelled:
		return Cancelled
	case models.Queued:
		return Queued
	}
	switch event {
	case models.BatchEnded:
		return BatchDone
	case models.AddressSuppressed:
		return SuppressionAdded
	case models.EndpointFailed:
		return EndpointDisabled
	}
	return Type("log." + event)
}

// Type returns the type of the update.
func (u *Update) Type() Type {
	if u.Notice != nil {
		return Type(u.Notice.Kind)
	}
	return TypeOf(u.State, u.Event)
}

// Wanted reports whether a list of types has t. An empty list has all changes of the state, that an endpoint was
// disabled, and all notices.
func Wanted(types []Type, t Type) bool {
	if len(types) == 0 {
		return !t.Event()
	}
	return slices.Contains(types, t) || slices.Contains(types, All)
}

// Names are the words that a list of types may have in a feed, for people.
func Names(owner string) (names string) {
	for _, t := range TypesOf(owner) {
		names += string(t) + ", "
	}
	return names + string(All)
}

// Known reports whether t may be in a list of types in a feed.
func (t Type) Known(owner string) bool { return t == All || slices.Contains(TypesOf(owner), t) }
