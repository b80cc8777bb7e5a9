package simulator

import (
	"bytes"
	"slices"
	"strings"
	"time"
)

// An outcome is what becomes of one copy, chosen by the local part of its
// address (or by a Fault). It indexes the tables of stages in
// sendgrid_stages.go and mailgun_stages.go.
type outcome uint8

const (
	outDeliver outcome = iota
	outHardBounce
	outBlocked
	outDefer
	outExpire
	outMailboxFull
	outSuppressedBounce
	outSuppressedSpam
	outSuppressedUnsub
	outInvalid
	outRejected
	outOverQuota
	outComplain
	outUnsubscribe
	outOpen
	outClick
	outAsync
	outLostEvent
	outSilent
	outRefused
	outcomeCount
)

// outcomeNames gives the local parts that stand for each outcome. The first
// name is the one that a Copy shows.
var outcomeNames = [outcomeCount][]string{
	outDeliver:          {"deliver"},
	outHardBounce:       {"hardbounce"},
	outBlocked:          {"blocked"},
	outDefer:            {"defer-then-deliver", "softbounce"},
	outExpire:           {"expire"},
	outMailboxFull:      {"mailboxfull"},
	outSuppressedBounce: {"suppressed-bounce"},
	outSuppressedSpam:   {"suppressed-spam"},
	outSuppressedUnsub:  {"suppressed-unsub"},
	outInvalid:          {"invalid"},
	outRejected:         {"rejected"},
	outOverQuota:        {"overquota"},
	outComplain:         {"complain"},
	outUnsubscribe:      {"unsubscribe"},
	outOpen:             {"open"},
	outClick:            {"click"},
	outAsync:            {"async"},
	outLostEvent:        {"lostevent"},
	outSilent:           {"silent"},
	outRefused:          {"refused"},
}

// outcomes is outcomeNames turned round.
var outcomes = func() map[string]outcome {
	m := map[string]outcome{}
	for o, list := range outcomeNames {
		for _, name := range list {
			m[name] = outcome(o)
		}
	}
	return m
}()

func (o outcome) String() string { return outcomeNames[o][0] }

// Outcomes returns the local parts that decide a copy's fate, at any domain
// whose name ends in .test, sorted. A suffix that begins with + or . is ignored
// (hardbounce+17@sim.test), and -<account> makes it true at that account alone
// (blocked-sg+17@sim.test bounces as blocked at the account sg and is delivered
// by all others). The outcome refused makes the provider refuse the whole call
// because of that address; silent is delivered without any webhook, lostevent
// without that of the last event.
func Outcomes() []string {
	var list []string
	for name := range outcomes {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// outcomeOf reads the outcome from addr for the given account.
func outcomeOf(addr []byte, account string) outcome {
	at := bytes.LastIndexByte(addr, '@')
	if at < 0 || !magicDomain(addr[at+1:]) {
		return outDeliver
	}
	name := addr[:at]
	if i := bytes.IndexAny(name, "+."); i >= 0 {
		name = name[:i]
	}
	name = lower(name)
	if o, ok := outcomes[string(name)]; ok {
		return o
	}
	if cut := len(name) - len(account) - 1; cut > 0 && name[cut] == '-' && string(name[cut+1:]) == account {
		return outcomes[string(name[:cut])] // an unknown name is outDeliver
	}
	return outDeliver
}

func magicDomain(domain []byte) bool {
	const suffix = ".test"
	n := len(domain) - len(suffix)
	return n > 0 && domain[n] == '.' && strings.EqualFold(string(domain[n:]), suffix)
}

// A stage is one event in the life of a copy. The event is named in the
// provider's own words, and the fields that depend on the outcome alone are kept
// as ready JSON.
type stage struct {
	after  time.Duration // simulated time since acceptance
	event  string        // value of the event field
	kind   string        // SendGrid: kind within sg_event_id; Mailgun: webhook type, "" = sent to none
	fields string        // further JSON members: "a":1,"b":"c"
	quiet  bool          // the event happens, but its webhook is lost
	bare   bool          // SendGrid: without sg_message_id and custom args (asynchronous bounce)
	late   bool          // Mailgun: flags.is-delayed-bounce
}
