package provider

import (
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
)

// A Step is what happens to a mail.
type Step uint8

// The steps.
const (
	Taken Step = iota
	Delivered
	Deferred
	Expired
	BouncedHard
	BouncedBlocked
	BouncedFull
	BouncedLate // after it was delivered
	DroppedBounce
	DroppedSpam
	DroppedUnsub
	DroppedInvalid
	DroppedContent
	DroppedQuota
	Complained
	Unsubscribed
	Opened
	Clicked
)

// Ends reports whether the step decides whether the mail arrives.
func (s Step) Ends() bool { return s >= Delivered && s <= DroppedQuota && s != Deferred }

// A Reply is what the recipient's mail server says.
type Reply struct{ Code, Enhanced, Text string }

var replies = map[Step]Reply{
	Deferred:       {"451", "4.7.1", "Greylisted, please try again later"},
	BouncedHard:    {"550", "5.1.1", "The email account that you tried to reach does not exist"},
	BouncedBlocked: {"550", "5.7.1", "Refused because of the reputation of the sending address"},
	BouncedFull:    {"552", "5.2.2", "Mailbox full"},
	BouncedLate:    {"550", "5.1.1", "User unknown (reported after delivery)"},
	DroppedBounce:  {"550", "5.1.1", "User unknown"},
	DroppedInvalid: {"501", "5.1.3", "Bad destination mailbox address syntax"},
}

// fill replaces <code>, <enhanced> and <text>.
func (r Reply) fill(text string) string {
	return strings.NewReplacer("<code>", r.Code, "<enhanced>", r.Enhanced, "<text>", r.Text).Replace(text)
}

// A Word is how a provider reports a step.
type Word struct {
	Event  string // value of the event field
	Kind   string // another name: the type of the webhook, or a part of ids
	Fields string // in place of <fields>; <code>, <enhanced> and <text> are the Reply's, <attempt>, <retry> a deferral's
	Detail string // in place of <detail>, with the same holes as Fields
	Status string // of the message in look-ups; empty = as before
	Hook   string // in place of Wording.Hook
	Alone  bool   // Taken does not happen before
	Hidden bool   // there is no webhook, look-ups alone show it
}

// A Wording is how a kind of provider reports what happens to mail.
type Wording struct {
	Words map[Step]Word // a step without a word is not reported
	// Hook and Log are forms of an event: in webhooks, and in look-ups. <event>, <kind>, <fields> and <detail> are those
	// of the Word.
	Hook, Log string
	Holes     Holes
	Retry     time.Duration   // after which deferred mail is delivered
	Expire    []time.Duration // between the tries of mail that expires, and until it does
}

// A Stage is one event in the life of a copy.
type Stage struct {
	Word
	Step      Step
	After     time.Duration // simulated time since acceptance
	Quiet     bool          // the event happens, but its webhook is lost
	Hook, Log Form
}

// Stages are the events of a copy by its outcome.
type Stages [message.OutcomeCount][]Stage

// A moment is a step of an outcome.
type moment struct {
	step  Step
	after time.Duration // retry = Wording.Retry
	quiet bool
}

const retry time.Duration = -1

// moments has what happens to mail with each outcome. Before each, Taken happens. Mail that expires is deferred before.
var moments = [message.OutcomeCount][]moment{
	message.Deliver:          {{step: Delivered}},
	message.HardBounce:       {{step: BouncedHard}},
	message.Blocked:          {{step: BouncedBlocked}},
	message.Defer:            {{step: Deferred}, {step: Delivered, after: retry}},
	message.Expire:           {{step: Expired}},
	message.MailboxFull:      {{step: BouncedFull}},
	message.SuppressedBounce: {{step: DroppedBounce}},
	message.SuppressedSpam:   {{step: DroppedSpam}},
	message.SuppressedUnsub:  {{step: DroppedUnsub}},
	message.Invalid:          {{step: DroppedInvalid}},
	message.Rejected:         {{step: DroppedContent}},
	message.OverQuota:        {{step: DroppedQuota}},
	message.Complain:         {{step: Delivered}, {step: Complained, after: 10 * time.Minute}},
	message.Unsubscribe:      {{step: Delivered}, {step: Unsubscribed, after: 10 * time.Minute}},
	message.Open:             {{step: Delivered}, {step: Opened, after: time.Minute}},
	message.Click: {{step: Delivered}, {step: Opened, after: time.Minute},
		{step: Clicked, after: 2 * time.Minute}},
	message.Async:     {{step: Delivered}, {step: BouncedLate, after: 10 * time.Minute}},
	message.LostEvent: {{step: Delivered, quiet: true}},
	message.Silent:    {{step: Delivered, quiet: true}},
	message.Refused:   {{step: Delivered}},
}

// Stages returns the events of each outcome. What a provider does not report as dropped, it delivers.
func (w *Wording) Stages() *Stages {
	var out Stages
	for o, plan := range moments {
		if len(plan) == 1 && w.Words[plan[0].step].Event == "" {
			plan = moments[message.Deliver]
		}
		if !w.Words[plan[0].step].Alone {
			out[o] = w.add(out[o], moment{quiet: o == int(message.Silent)}, 0, 0)
		}
		at := time.Duration(0)
		for i, gap := range w.Expire {
			if o == int(message.Expire) {
				out[o] = w.add(out[o], moment{step: Deferred, after: at}, i+1, gap)
				at += gap
			}
		}
		for _, m := range plan {
			m.after += at
			out[o] = w.add(out[o], m, 1, w.Retry)
		}
	}
	return &out
}

// add appends the stage of a moment, if it is reported.
func (w *Wording) add(list []Stage, m moment, attempt int, gap time.Duration) []Stage {
	word, ok := w.Words[m.step]
	if !ok {
		return list
	}
	holes := strings.NewReplacer("<attempt>", strconv.Itoa(attempt), "<retry>", strconv.Itoa(int(gap.Seconds())))
	word.Kind = holes.Replace(word.Kind)
	word.Fields = replies[m.step].fill(holes.Replace(word.Fields))
	word.Detail = replies[m.step].fill(holes.Replace(word.Detail))
	form := func(text string) Form {
		text = strings.NewReplacer("<event>", word.Event, "<kind>", word.Kind, "<fields>", word.Fields,
			"<detail>", word.Detail).Replace(text)
		return NewForm(text, w.Holes)
	}
	hook := w.Hook
	if word.Hook != "" {
		hook = word.Hook
	}
	s := Stage{Word: word, Step: m.step, After: m.after, Quiet: m.quiet, Hook: form(hook), Log: form(w.Log)}
	if m.after == retry {
		s.After = w.Retry
	}
	return append(list, s)
}
