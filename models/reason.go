package models

// Reason says in one stable word why a log is where it is, or why an attempt
// failed. The words are part of the API.
type Reason string

// Reasons that providers give (their own words are kept beside them).
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
	RefusedTogether       Reason = "refused_together"
)

// Reasons that Safedelivr gives.
const (
	NoProviderLeft Reason = "no_provider_left"
	RetriesUsedUp  Reason = "retries_used_up"
	OutcomeUnknown Reason = "outcome_unknown"
	NoFinalEvent   Reason = "no_final_event"
	Expired        Reason = "expired"
	StartByPassed  Reason = "start_by_passed"
	Unconfirmed    Reason = "unconfirmed"
	CancelledByRq  Reason = "cancelled"
	BlockedByRule  Reason = "blocked"
)

var reasonWords = map[Reason]string{
	MailboxInvalid:        "the mailbox does not exist",
	MailboxFull:           "the mailbox is full or not available",
	PolicyContent:         "the receiving side refused the content",
	PolicyReputation:      "the receiving side refused this sender or its network",
	SuppressedBounce:      "the provider refused: the address bounced there before",
	SuppressedComplaint:   "the provider refused: the recipient complained about earlier mail",
	SuppressedUnsubscribe: "the provider refused: the recipient unsubscribed",
	ProviderAccount:       "the provider rejected the key, the quota or the account",
	SenderNotVerified:     "the sender is not verified at the provider",
	DeliveryTimeout:       "the provider gave up after trying to deliver for its full time",
	DNSOrConnect:          "the receiving server could not be reached",
	Greylisted:            "the receiving server asked to come back later",
	RateLimited:           "too many messages for the receiving server or the provider",
	TooLarge:              "the message is too large",
	InvalidRequest:        "the provider says the message itself is not valid",
	Virus:                 "the provider found a virus",
	ProviderUnavailable:   "the provider could not be reached",
	RejectedHere:          "the message does not fit a limit of this provider",
	BounceUnknown:         "the receiving side refused without a usable reason",
	RefusedTogether:       "the provider refused the call for the sake of some recipient in it",
	NoProviderLeft:        "no provider is left to try",
	RetriesUsedUp:         "the retries are used up",
	OutcomeUnknown:        "it is not known whether the provider took the mail, and it was not sent again",
	NoFinalEvent:          "the provider took the mail and never said what became of it",
	Expired:               "the deadline of the batch passed before the mail could be handed over",
	StartByPassed:         "the worker was too late to make the call",
	Unconfirmed:           "the provider took the mail; this provider reports no deliveries",
	CancelledByRq:         "cancelled before it was handed over",
	BlockedByRule:         "a block rule of the operator meets this mail",
}

// Words is the reason as a sentence fragment for people.
func (r Reason) Words() string {
	if w, ok := reasonWords[r]; ok {
		return w
	}
	return string(r)
}

// Known reports whether r is one of the reasons above.
func (r Reason) Known() bool { _, ok := reasonWords[r]; return ok }

// Hard reports whether r ends a log by itself: no other provider could cure it,
// or the recipient does not want the mail. Hard reasons are never routed
// around.
func (r Reason) Hard() bool {
	switch r {
	case MailboxInvalid, SuppressedComplaint, SuppressedUnsubscribe, Virus, InvalidRequest:
		return true
	}
	return false
}
