package drill

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// held reports whether a log says that the outcome of its mail is unknown.
func held(l *client.Log) bool {
	reason := models.Reason(l.Reason)
	return l.State == client.Failed && (reason == models.OutcomeUnknown || reason == models.NoFinalEvent)
}

// evidenced waits until no log is held whose outcome the providers have reported or would report to a look-up. The
// count finds the logs that stay held.
func (v *verdict) evidenced(ctx context.Context) error {
	left, end := v.mail.all(), time.Now().Add(v.mail.bound(patience))
	return poll(ctx, 2*v.mail.bound(patience), "held logs are read", func() (bool, error) {
		for len(left) > 0 {
			against, err := v.heldAgainst(ctx, left[0].id)
			if err != nil || against && time.Now().Before(end) {
				return false, err
			}
			left = left[1:]
		}
		return true, nil
	})
}

// heldAgainst reports whether a log of the batch is held against evidence.
func (v *verdict) heldAgainst(ctx context.Context, batch models.ID) (bool, error) {
	b, err := v.user.batch(ctx, batch)
	reasons := b.Counts.FailedReasons
	if err != nil || reasons[string(models.OutcomeUnknown)]+reasons[string(models.NoFinalEvent)] == 0 {
		return false, err
	}
	logs, err := v.user.logs(ctx, batch)
	return slices.ContainsFunc(logs, func(l client.Log) bool { return held(&l) && v.sim.outcomeOf(l.ID).final > 0 }), err
}

// doubts are what may hide the outcome of some mail, so that it may be held in the end.
type doubts uint8

const (
	answersWithheld doubts = 1 << iota // calls have no answer, or one that does not say whether the mail was accepted
	eventsWithheld                     // the provider accepts mail and never reports its outcome
	callsCutOff                        // workers are killed or frozen during calls
	appendsLost                        // it is unknown until the end of an attempt's window whether it is stored
)

// heldWrongly says why a log may not be held; "" if it may.
func (v *verdict) heldWrongly(ctx context.Context, l *client.Log, o *outcome) (string, error) {
	switch {
	case o.final > 0:
		return "the provider reported the outcome of its mail", nil
	case o.hidden > 0 && v.scenario.holds&eventsWithheld != 0:
		return "", nil
	case models.Reason(l.Reason) == models.NoFinalEvent:
		return "no provider accepted its mail without a report", nil
	}
	story, err := v.user.timeline(ctx, l.ID)
	if err != nil {
		return "", err
	}
	call, answer := lastCall(story)
	switch {
	case call == nil:
		return "no call was made for its mail", nil
	case timedOut(answer) && v.incident.heldUp.cutOff(call.At, answer.At):
		return "", nil
	case v.scenario.holds&^eventsWithheld == 0:
		return "nothing hid whether its mail was accepted", nil
	case call.At.Before(v.incident.brokenAt.Add(-startBy-callTimeout)) || call.At.After(v.incident.healedAt.Add(startBy)):
		return fmt.Sprintf("its last call began at %s, when nothing was broken", call.At.Format(time.RFC3339Nano)), nil
	case v.inDoubt(answer, answer != nil && v.sim.metFault(answer) != ""):
		return "", nil
	case answer == nil:
		return "there is no answer to its last call, and no reason why", nil
	}
	return fmt.Sprintf("its last call was answered %d %s %s", answer.Status, answer.Class, answer.Reason), nil
}

// ambiguous are the statuses of answers that do not say whether the provider accepted the mail: none, one that is not
// of the provider's API, and errors that have been followed by deliveries.
var ambiguous = []int{
	0,
	http.StatusOK,
	http.StatusInternalServerError,
	http.StatusBadGateway,
	http.StatusGatewayTimeout,
}

// inDoubt reports whether the fault hides the result of a call with this answer, which is nil if there is none. met
// says that a fault of the provider gave the answer.
func (v *verdict) inDoubt(answer *client.Moment, met bool) bool {
	unknown := answer != nil && answer.Class == string(models.Unknown) && slices.Contains(ambiguous, answer.Status)
	uncalled := answer != nil && models.Reason(answer.Reason).Uncalled()
	killed, frozen := v.incident.killed > 0, len(v.incident.woken) > 0
	switch {
	case v.scenario.holds&answersWithheld != 0 && unknown && met:
	case v.scenario.holds&callsCutOff != 0 && killed && answer == nil:
	case v.scenario.holds&callsCutOff != 0 && frozen && (uncalled || timedOut(answer) || sleptThrough(v.sim.pair, answer)):
	case v.scenario.holds&appendsLost != 0 && (answer == nil || uncalled):
	default:
		return false
	}
	return true
}

// sleptThrough reports whether a worker slept through a call to a provider that reports nothing, and read its refusal
// too late.
func sleptThrough(pair simulated.Pair, answer *client.Moment) bool {
	return answer != nil && pair.Silent(answer.Provider) && answer.TookMS > asleep
}

// timedOut reports whether a call had no answer in time.
func timedOut(answer *client.Moment) bool {
	return answer != nil && answer.Class == string(models.Unknown) && answer.Status == 0
}

// lastCall returns the newest attempt in a timeline and its answer; nil if there is none. A call may be repeated with
// its idempotency key. A repeat whose answer is unknown says nothing about the attempt, with any status (ADR 34).
func lastCall(story []client.Moment) (call, answer *client.Moment) {
	repeated := false
	for i := range story {
		switch m := &story[i]; {
		case m.What == "attempt" && (call == nil || m.Attempt > call.Attempt):
			call, answer, repeated = m, nil, false
		case call == nil || m.Attempt != call.Attempt:
		case m.What == "repeat":
			repeated = true
		case m.What == "answer" && (!repeated || m.Class != string(models.Unknown)):
			answer = m
		}
	}
	return call, answer
}

// failedWrongly says why a log may not have failed; "" if it may.
func (v *verdict) failedWrongly(ctx context.Context, l *client.Log, o *outcome) (string, error) {
	hardBounce := strings.HasPrefix(l.Email, bouncing) && l.Reason == string(models.MailboxInvalid)
	switch {
	case o.arrived > o.swallowed:
		return "the mail was delivered", nil
	case hardBounce && o.bounced > 0:
		return "", nil
	case l.Reason == string(models.Suppressed):
		return v.suppressions.wrongly(ctx, l)
	case l.Reason == string(models.ToFailed):
		return v.leftOutWrongly(ctx, l)
	case v.scenario.mayFail == nil:
		return "nothing kept the mail from being delivered", nil
	}
	story, err := v.user.timeline(ctx, l.ID)
	if err != nil || v.scenario.mayFail(v.sim, l, story, o) {
		return "", err
	}
	_, answer := lastCall(story)
	return "no fault that its mail met leads to that" + v.sim.callsBefore(answer), nil
}
