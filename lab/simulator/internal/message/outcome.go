package message

import (
	"slices"
	"strings"
)

// An Outcome is what happens to one copy. The local part of its address or a fault
// chooses it. It indexes the tables of stages of the providers.
type Outcome uint8

// The outcomes. OutcomeCount is their number.
const (
	Deliver Outcome = iota
	HardBounce
	Blocked
	Defer
	Expire
	MailboxFull
	SuppressedBounce
	SuppressedSpam
	SuppressedUnsub
	Invalid
	Rejected
	OverQuota
	Complain
	Unsubscribe
	Open
	Click
	Async
	LostEvent
	Silent
	Refused
	OutcomeCount
)

// outcomeNames holds the local parts that choose each outcome. The first is the
// name of the outcome.
var outcomeNames = [OutcomeCount][]string{
	Deliver:          {"deliver"},
	HardBounce:       {"hardbounce"},
	Blocked:          {"blocked"},
	Defer:            {"defer-then-deliver", "softbounce"},
	Expire:           {"expire"},
	MailboxFull:      {"mailboxfull"},
	SuppressedBounce: {"suppressed-bounce"},
	SuppressedSpam:   {"suppressed-spam"},
	SuppressedUnsub:  {"suppressed-unsub"},
	Invalid:          {"invalid"},
	Rejected:         {"rejected"},
	OverQuota:        {"overquota"},
	Complain:         {"complain"},
	Unsubscribe:      {"unsubscribe"},
	Open:             {"open"},
	Click:            {"click"},
	Async:            {"async"},
	LostEvent:        {"lostevent"},
	Silent:           {"silent"},
	Refused:          {"refused"},
}

// String returns the first name of the outcome.
func (o Outcome) String() string { return outcomeNames[o][0] }

// OutcomeNames returns the names of all outcomes, sorted.
func OutcomeNames() []string { return slices.Sorted(slices.Values(slices.Concat(outcomeNames[:]...))) }

// OutcomeNamed returns the outcome with the given name.
func OutcomeNamed(name string) (o Outcome, ok bool) {
	i := slices.IndexFunc(outcomeNames[:], func(names []string) bool { return slices.Contains(names, name) })
	return Outcome(max(i, 0)), i >= 0
}

// OutcomeOf returns the outcome that the address chooses at the given account.
func OutcomeOf(addr string, account string) Outcome {
	at := strings.LastIndexByte(addr, '@')
	domain, test := strings.CutSuffix(strings.ToLower(addr[at+1:]), ".test")
	if at < 0 || !test || domain == "" {
		return Deliver
	}
	name := addr[:at]
	if i := strings.IndexAny(name, "+."); i >= 0 {
		name = name[:i]
	}
	name = strings.ToLower(name)
	o, ok := OutcomeNamed(name)
	if general, restricted := strings.CutSuffix(name, "-"+account); !ok && restricted {
		o, _ = OutcomeNamed(general)
	}
	return o // an unknown name is Deliver
}
