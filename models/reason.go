package models

import (
	"maps"
	"slices"
)

// Reason is a stable word for why a log has its state, or why an attempt failed. The
// words are part of the API.
type Reason string

// Reasons given by providers. The providers' own words are stored beside them.
const (
	MailboxInvalid        Reason = "mailbox_invalid"
	MailboxFull           Reason = "mailbox_full"
	PolicyContent         Reason = "policy_content"
	PolicyReputation      Reason = "policy_reputation"
	SuppressedBounce      Reason = "provider_suppressed_bounce"
	SuppressedComplaint   Reason = "provider_suppressed_complaint"
	SuppressedUnsubscribe Reason = "provider_suppressed_unsubscribe"
	ProviderAccount       Reason = "provider_account"
	SenderNotVerified     Reason = "sender_not_verified"
	DeliveryTimeout       Reason = "delivery_timeout"
	DNSOrConnect          Reason = "dns_or_connect"
	Greylisted            Reason = "greylisted"
	RateLimited           Reason = "rate_limited"
	TooLarge              Reason = "too_large"
	InvalidRequest        Reason = "invalid_request"
	Virus                 Reason = "virus"
	ProviderUnavailable   Reason = "provider_unavailable"
	RejectedHere          Reason = "rejected_here"
	BounceUnknown         Reason = "bounce_unknown"
	ProviderDropped       Reason = "provider_dropped"
	refusedTogether       Reason = "refused_together"
)

// Reasons given by Safedelivr.
const (
	NoProviderLeft Reason = "no_provider_left"
	RetriesUsedUp  Reason = "retries_used_up"
	OutcomeUnknown Reason = "outcome_unknown"
	NoFinalEvent   Reason = "no_final_event"
	Expired        Reason = "expired"
	StartByPassed  Reason = "start_by_passed"
	NotComposed    Reason = "not_composed"
	Unconfirmed    Reason = "unconfirmed"
	Implied        Reason = "implied"
	optedOut       Reason = "opted_out"
	CancelledByRq  Reason = "cancelled"
	BlockedByRule  Reason = "blocked"
	Erased         Reason = "erased"
	Suppressed     Reason = "suppressed"
	ToFailed       Reason = "to_failed"
)

var reasonWords = map[Reason]string{
	MailboxInvalid:        "the mailbox does not exist",
	MailboxFull:           "the mailbox is full or not available",
	PolicyContent:         "the receiving server rejected the content",
	PolicyReputation:      "the receiving server rejected this sender or its network",
	SuppressedBounce:      "the provider suppressed it: the address bounced before",
	SuppressedComplaint:   "the provider suppressed it: the recipient complained about earlier mail",
	SuppressedUnsubscribe: "the provider suppressed it: the recipient unsubscribed",
	ProviderAccount:       "the provider rejected the key, the quota or the account",
	SenderNotVerified:     "the sender is not verified at the provider",
	DeliveryTimeout:       "the provider gave up after its last delivery attempt",
	DNSOrConnect:          "the receiving server could not be reached",
	Greylisted:            "the receiving server asked to retry later",
	RateLimited:           "too many messages for the receiving server or the provider",
	TooLarge:              "the message is too large",
	InvalidRequest:        "the provider says that the message is not valid",
	Virus:                 "the provider found a virus",
	ProviderUnavailable:   "the provider was not available",
	RejectedHere:          "the message exceeds a limit of this provider",
	BounceUnknown:         "the receiving server rejected it without a usable reason",
	ProviderDropped:       "the provider dropped it without an attempt, for a reason of its own",
	refusedTogether:       "the provider rejected the whole request because of one address in it",
	NoProviderLeft:        "all providers that could be used have failed",
	RetriesUsedUp:         "all retries have failed",
	OutcomeUnknown:        "it is unknown whether the provider accepted the message, and it was not sent again",
	NoFinalEvent:          "the provider accepted the message and never reported its outcome",
	Expired:               "it expired before it could be sent",
	StartByPassed:         "the worker was too late to make the call",
	NotComposed:           "the worker needed too long to compose the request",
	Unconfirmed:           "the provider accepted the message; it does not report deliveries",
	Implied:               "the recipient opened or answered it; the provider did not report the delivery",
	optedOut:              "the recipient complained or unsubscribed, so it is not sent again",
	CancelledByRq:         "cancelled before it was sent",
	BlockedByRule:         "stopped by a block rule",
	Erased:                "the address was erased before the message was sent",
	Suppressed:            "the address is on a suppression list",
	ToFailed:              "no address in to can get the mail, so that cc and bcc got no copy",
}

// Words returns the reason as a sentence fragment for people.
func (r Reason) Words() string {
	if w, ok := reasonWords[r]; ok {
		return w
	}
	return string(r)
}

// Known reports whether r is one of the reasons above.
func (r Reason) Known() bool { _, ok := reasonWords[r]; return ok }

// onlyEnds reports whether r says what ended a log, and the last attempt says why.
func (r Reason) onlyEnds() bool { return r == NoProviderLeft || r == RetriesUsedUp }

// Uncalled reports whether r says that no call was made, so that nothing is known about the provider.
func (r Reason) Uncalled() bool { return r == StartByPassed || r == NotComposed }

// Hard reports whether r ends a log by itself: no other provider could deliver the mail,
// or the recipient does not want it. Mail is never rerouted after a hard reason.
func (r Reason) Hard() bool {
	switch r {
	case MailboxInvalid, SuppressedComplaint, SuppressedUnsubscribe, Virus, InvalidRequest, optedOut, Erased:
		return true
	}
	return false
}

// Reasons lists all reasons, sorted.
func Reasons() []Reason { return slices.Sorted(maps.Keys(reasonWords)) }
