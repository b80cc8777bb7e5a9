package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// held reports whether a log says that nobody knows what became of its mail.
func (l *drillLog) held() bool {
	return l.State == models.Failed && (l.Reason == models.OutcomeUnknown || l.Reason == models.NoFinalEvent)
}

// evidenced waits until no log is held of whose mail the providers have told, or
// can be asked, what became of it: evidence may have to be looked up. What is held
// all the same the count finds.
func (d *drill) evidenced(ctx context.Context) error {
	left, end := d.all(), time.Now().Add(d.bound(drillPatience))
	return poll(ctx, 2*d.bound(drillPatience), "held logs are read", func() (bool, error) {
		for len(left) > 0 {
			against, err := d.heldAgainst(ctx, left[0].id)
			if err != nil || against && time.Now().Before(end) {
				return false, err
			}
			left = left[1:]
		}
		return true, nil
	})
}

// heldAgainst reports whether a log of the batch is held against evidence.
func (d *drill) heldAgainst(ctx context.Context, batch models.ID) (bool, error) {
	b, err := d.batch(ctx, batch)
	if err != nil || b.Counts.Reasons[models.OutcomeUnknown]+b.Counts.Reasons[models.NoFinalEvent] == 0 {
		return false, err
	}
	logs, err := d.logs(ctx, batch)
	return slices.ContainsFunc(logs, func(l drillLog) bool {
		if !l.held() {
			return false
		}
		f := d.fateOf(l.ID)
		return f.final > 0
	}), err
}

// doubts are what may keep from everybody what became of some mail, so that it may
// be held in the end.
type doubts uint8

const (
	answersWithheld doubts = 1 << iota // calls are not answered, or so that nobody knows whether they were taken
	eventsWithheld                     // the provider takes mail and never says what became of it
	callsCutOff                        // workers are killed, or frozen, in the middle of their calls
	appendsLost                        // it is not known whether an attempt is stored until its window is over
)

// heldWrongly says why a log may not be held; empty: it may.
func (d *drill) heldWrongly(ctx context.Context, l *drillLog, f *fate) (string, error) {
	switch {
	case f.final > 0:
		return "the provider told what became of its mail", nil
	case f.hidden > 0 && d.holds&eventsWithheld != 0:
		return "", nil
	case l.Reason == models.NoFinalEvent:
		return "nobody took its mail and kept to himself what became of it", nil
	case d.holds&^eventsWithheld == 0:
		return "nothing kept from us whether its mail was taken", nil
	}
	story, err := d.timeline(ctx, l.ID)
	if err != nil {
		return "", err
	}
	called, answer := lastCall(story)
	switch {
	case called == nil:
		return "no call was made for its mail", nil
	case called.At.Before(d.brokenAt.Add(-drillStartBy-drillCallTime)) || called.At.After(d.mendedAt.Add(drillStartBy)):
		return fmt.Sprintf("its last call began at %s, when nothing was broken", called.At.Format(time.RFC3339Nano)), nil
	case d.inDoubt(answer, answer != nil && d.metFault(answer) != ""):
		return "", nil
	case answer == nil:
		return "there is no answer to its last call, and no reason why", nil
	}
	return fmt.Sprintf("its last call was answered %d %s %s", answer.Status, answer.Class, answer.Reason), nil
}

// unknowable are the statuses of answers after which nobody knows whether the
// provider has taken the mail: none, one that is not of the provider's API, and
// errors that have been followed by deliveries.
var unknowable = []int{0, http.StatusOK, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout}

// inDoubt reports whether nobody can know what came of a call with this answer, nil
// if there is none, because of what was done in the drill. met says that a fault of
// the provider gave the answer.
func (d *drill) inDoubt(answer *models.Moment, met bool) bool {
	unknown := answer != nil && answer.Class == models.Unknown && slices.Contains(unknowable, answer.Status)
	uncalled := answer != nil && answer.Reason == models.StartByPassed
	killed, frozen := d.killed > 0, len(d.woken) > 0
	switch {
	case d.holds&answersWithheld != 0 && unknown && met:
	case d.holds&callsCutOff != 0 && (killed && answer == nil || frozen && (uncalled || unknown && answer.Status == 0)):
	case d.holds&appendsLost != 0 && (answer == nil || uncalled):
	default:
		return false
	}
	return true
}

// metFault finds the call that was answered so at the provider, and returns the
// mode of the fault for which it was; empty: there is none.
func (d *drill) metFault(answer *models.Moment) string {
	began := answer.At.Add(-time.Duration(answer.TookMS * float64(time.Millisecond)))
	for _, c := range d.sim.CallLog(answer.Provider) {
		if c.Fault != "" && c.Status == answer.Status && !c.At.Before(began) && !c.At.After(answer.At) {
			return c.Fault
		}
	}
	return ""
}

// lastCall finds the newest attempt in a story and its answer; nil: there is none.
func lastCall(story []models.Moment) (called, answer *models.Moment) {
	for i := range story {
		switch m := &story[i]; {
		case m.What == "attempt" && (called == nil || m.Attempt > called.Attempt):
			called, answer = m, nil
		case m.What == "answer" && called != nil && m.Attempt == called.Attempt:
			answer = m
		}
	}
	return called, answer
}

// failedWrongly says why a log may not have failed; empty: it may.
func (d *drill) failedWrongly(ctx context.Context, l *drillLog, f *fate) (string, error) {
	switch {
	case f.arrived > f.swallowed:
		return "the mail was delivered", nil
	case strings.HasPrefix(l.Email, bouncing) && l.Reason == models.MailboxInvalid && f.bounced > 0:
		return "", nil
	case d.mayFail == nil:
		return "nothing kept the mail from being delivered", nil
	}
	story, err := d.timeline(ctx, l.ID)
	if err != nil || d.mayFail(d, l, story, f) {
		return "", err
	}
	return "no fault that its mail met leads to that", nil
}

// calls tells a story in one line: which calls were made for a mail, and what came
// of them.
func calls(story []models.Moment) string {
	var out strings.Builder
	for i := range story {
		m := &story[i]
		fmt.Fprintf(&out, "%s %s", m.At.Format("15:04:05.000"), m.What)
		for _, part := range []string{m.Provider, string(m.Class), string(m.Reason)} {
			if part != "" {
				fmt.Fprintf(&out, " %s", part)
			}
		}
		out.WriteString("; ")
	}
	return strings.TrimSuffix(out.String(), "; ")
}
