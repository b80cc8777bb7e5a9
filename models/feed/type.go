package feed

import (
	"cmp"
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
	BrokerLost        = Type(models.BrokerLost)
	BrokerRecovered   = Type(models.BrokerRecovered)
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
	WebhooksAccepted, AcceptanceStopped, AcceptanceResumed, SendingStopped, SendingResumed, BrokerLost, BrokerRecovered,
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

// typeWords says what happened, for people: in a few words, and as the title of a post.
var typeWords = map[Type]struct{ words, title string }{
	Delivered: {
		"delivered", "The mail to a recipient was delivered, or accepted by a provider that reports no deliveries",
	},
	Failed:       {"failed", "The mail to a recipient failed"},
	Cancelled:    {"cancelled", "The mail to a recipient was cancelled"},
	Queued:       {"sent again", "The mail to a recipient is sent again"},
	Deferred:     {"deferred", "A provider reported the first deferral"},
	Bounced:      {"bounced", "A provider has given up the mail to a recipient"},
	Complained:   {"complaint", "A recipient has reported the mail as spam"},
	Unsubscribed: {"unsubscribed", "A recipient has unsubscribed"},
	Opened:       {"opened", "The mail was opened for the first time"},
	Clicked:      {"clicked", "A link in the mail was followed for the first time"},
	BatchDone:    {"batch done", "No log of a batch is queued any more"},
	SuppressionAdded: {
		"address suppressed",
		"An address was added to the suppression list; of an endpoint of the installation, to everyone's",
	},
	ProviderSuspended: {"provider suspended", "A provider gets no mail"},
	ProviderRecovered: {"provider recovered", "A provider gets mail again"},
	FailoverStarted:   {"failover started", "Calls to a provider fail; other providers carry its mail if they accept it"},
	FailoverEnded:     {"failover ended", "Calls to a provider succeed again"},
	CheckDifference:   {"sums differ", "More sums differ from their recount than before"},
	UnknownOutcomes: {
		"unknown outcomes", "Calls to a provider have ended without an answer, in the last minute",
	},
	Type(models.QueueStalled): {
		"queue stalled", "A queue of the broker delivered its messages to no worker, and was subscribed anew",
	},
	QuotaNear: {"limit nearly used up", "A user has used more than four fifths of a limit of an hour or day"},
	ComplaintsHigh: {
		"many complaints", "Too much of a user's mail that was accepted on a day and delivered was reported as spam",
	},
	EndpointDisabled: {
		"endpoint disabled",
		"An endpoint was disabled because its posts failed; another endpoint of its user, or of the installation, reports it",
	},
	WebhooksRefused:   {"webhooks refused", "The webhooks of a provider are refused"},
	WebhooksAccepted:  {"webhooks accepted again", "The webhooks of a provider are accepted again"},
	AcceptanceStopped: {"batches refused", "Batches are refused, because a disk is nearly full"},
	AcceptanceResumed: {"batches accepted again", "Batches are accepted again"},
	SendingStopped:    {"no provider accepts mail", "No provider accepts mail"},
	SendingResumed:    {"a provider accepts mail again", "A provider accepts mail again"},
	BrokerLost:        {"no broker", "The broker takes no messages"},
	BrokerRecovered:   {"broker recovered", "The broker takes messages again"},
	All:               {"everything", ""},
}

// Words says what happened, for people.
func (t Type) Words() string {
	return cmp.Or(typeWords[t].words, string(t))
}

// Title says in a sentence what happened.
func (t Type) Title() string { return typeWords[t].title }

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
func Wanted[T ~string](types []T, t Type) bool {
	if len(types) == 0 {
		return !t.Event()
	}
	return slices.Contains(types, T(t)) || slices.Contains(types, T(All))
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
