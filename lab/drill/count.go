package drill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// verdict compares the logs with the copies at the providers, and says what may not be.
type verdict struct {
	scenario     *scenario
	user         *account
	mail         *traffic
	sim          *providers
	suppressions *suppressions
	messages     *messages
	incident     *incident
	res          *Result
	total        client.Counts // of the user
}

// count counts all batches.
func (v *verdict) count(ctx context.Context) error {
	copies := map[string]int{}
	v.sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			copies[logOf(id)] += n
		}
	})
	v.firstMail(copies)
	for _, b := range v.mail.all() {
		v.res.Accepted += b.n
		counts, err := v.countBatch(ctx, b, copies)
		if err != nil {
			return err
		}
		if b.of == v.user {
			v.total.Accepted += counts.Accepted
			v.total.Delivered += counts.Delivered
			v.total.Failed += counts.Failed
		}
	}
	for id := range copies {
		v.res.wrong("the providers have copies of %d mails that were never accepted, such as %s; %s",
			len(copies), id, v.known(ctx, id))
		break
	}
	return nil
}

// known says what the API knows of the batch of a log.
func (v *verdict) known(ctx context.Context, log string) string {
	id, err := models.ParseLogID(log)
	if err != nil {
		return err.Error()
	}
	b, err := v.user.batch(ctx, id.Batch())
	if err != nil {
		return fmt.Sprintf("its batch cannot be read: %v", err)
	}
	return fmt.Sprintf("its batch is %s with %d of %d mails delivered", b.State, b.Counts.Delivered, b.Counts.Accepted)
}

// countBatch counts one batch and removes its copies from the list.
func (v *verdict) countBatch(ctx context.Context, b posted, copies map[string]int) (counted client.Counts, err error) {
	shown, err := v.user.batch(ctx, b.id)
	if err != nil {
		return counted, err
	}
	logs, err := v.user.logs(ctx, b.id)
	if err != nil {
		return counted, err
	}
	for i := range logs {
		l := &logs[i]
		if v.scenario.events && i%20 == 0 {
			if err := v.eventsOnce(ctx, l.ID); err != nil {
				return counted, err
			}
		}
		if err := v.startedInTime(ctx, l.ID); err != nil {
			return counted, err
		}
		if err := v.checkSuppressed(ctx, &b, l); err != nil {
			return counted, err
		}
		if b.attached {
			v.checkAttachment(l.ID)
		}
		b.of.logged = append(b.of.logged, published{log: l.ID, state: l.State, reason: l.Reason})
		n := copies[l.ID]
		delete(copies, l.ID)
		if err := v.countLog(ctx, l, n, &counted); err != nil {
			return counted, err
		}
	}
	if int(counted.Accepted) != b.n {
		v.res.wrong("batch %s has %d logs of %d", b.id, counted.Accepted, b.n)
	}
	if !sameEnds(&shown.Counts, &counted) || !balanced(&shown.Counts) {
		v.res.wrong("batch %s shows %+v, and its logs %+v", b.id, shown.Counts, counted)
	}
	return counted, nil
}

// checkAttachment checks that every copy of a mail has the attachment of the drill.
func (v *verdict) checkAttachment(log string) {
	sum := sha256.Sum256(enclosed.Content)
	for _, c := range v.sim.copiesOf(log) {
		if len(c.Attachments) != 1 || c.Attachments[0].SHA256 != hex.EncodeToString(sum[:]) {
			v.res.wrong("a copy of log %s at %s has not the attachment of its batch, but %v", log, c.Account, c.Attachments)
		}
	}
}

// callLate is how long after the answer to a request that withholds mail a call may arrive that began before it: no
// call begins after one second, and one may take a moment.
const callLate = 1500 * time.Millisecond

// checkSuppressed notes the copies of a log that were sent after its address was suppressed, and a log of a batch that
// was accepted afterwards and does not say so.
func (v *verdict) checkSuppressed(ctx context.Context, b *posted, l *client.Log) error {
	since := v.suppressions.since(l.Email)
	if since.IsZero() {
		return nil
	}
	for _, c := range v.sim.copiesOf(l.ID) {
		if !c.At.After(since) {
			continue
		}
		story, err := v.user.timeline(ctx, l.ID)
		if err != nil {
			return err
		}
		if !v.beganBefore(&c, since, story) {
			v.res.Unwanted++
			v.res.wrong("log %s was sent through %s %s after the address was suppressed: %s",
				l.ID, c.Account, c.At.Sub(since), describe(story))
		}
	}
	if since.Before(b.at) && l.Reason != string(models.Suppressed) {
		v.res.wrong("log %s is %s %s, and its address was suppressed before", l.ID, l.State, l.Reason)
	}
	return nil
}

// beganBefore reports whether the call of a copy began before its address was suppressed.
func (v *verdict) beganBefore(c *simulator.Copy, since time.Time, story []client.Moment) bool {
	switch {
	case v.incident.heldUp.ran(since, c.At) > callLate && !v.incident.heldUp.within(since, c.At):
		return false
	case v.scenario.clocksOff:
		return true
	}
	var call *client.Moment // the newest at the provider
	for i := range story {
		if m := &story[i]; m.What == "attempt" && m.Provider == c.Account && !m.At.After(c.At) {
			call = m
		}
	}
	return call != nil && !call.At.After(since)
}

// countLog adds a log whose mail has n copies to the result and to counted.
func (v *verdict) countLog(ctx context.Context, l *client.Log, n int, counted *client.Counts) error {
	var o outcome
	if n > 0 {
		o = v.sim.outcomeOf(l.ID)
	}
	counted.Accepted++
	if o.doubled() {
		v.res.Doubled++
		story, err := v.user.timeline(ctx, l.ID)
		if err != nil {
			return err
		}
		v.res.wrong("log %s is %s %s, and has the copies %s; %s", l.ID, l.State, l.Reason, &o, describe(story))
	}
	switch {
	case l.State == client.Delivered:
		counted.Delivered++
		v.res.Delivered++
		if o.lost() {
			v.res.Lost++
		}
	case held(l):
		counted.Failed++
		v.res.Held++
		return v.blame(ctx, l, &o, v.heldWrongly)
	case l.State == client.Failed && l.Reason != "":
		counted.Failed++
		v.res.Failed++
		return v.blame(ctx, l, &o, v.failedWrongly)
	case l.State == client.Cancelled && v.messages.versions != nil && n == 0: // see messages
	default:
		v.res.wrong("log %s is %s %s in the end", l.ID, l.State, l.Reason)
		if n == 0 {
			v.res.Lost++
		}
	}
	return nil
}

// sameEnds reports whether as many recipients were accepted, succeeded and failed.
func sameEnds(a, b *client.Counts) bool {
	return a.Accepted == b.Accepted && a.Delivered == b.Delivered && a.Failed == b.Failed
}

// balanced reports whether the states add up.
func balanced(c *client.Counts) bool {
	return c.Accepted == c.Queued+c.Sent+c.Delivered+c.Failed+c.Cancelled
}

// accusation says why a log may not be as it is; "" if it may.
type accusation func(context.Context, *client.Log, *outcome) (string, error)

// blame notes a log that may not be as it is.
func (v *verdict) blame(ctx context.Context, l *client.Log, o *outcome, accuse accusation) error {
	why, err := accuse(ctx, l, o)
	if why == "" || err != nil {
		return err
	}
	story, err := v.user.timeline(ctx, l.ID)
	v.res.wrong("log %s says %s, and %s; its copies: %s; %s", l.ID, l.Reason, why, o, describe(story))
	return err
}

// eventsOnce checks that no event is in the timeline of a log twice.
func (v *verdict) eventsOnce(ctx context.Context, log string) error {
	story, err := v.user.timeline(ctx, log)
	if err != nil {
		return err
	}
	for i, m := range story {
		if m.What == "event" && slices.Contains(story[:i], m) {
			v.res.wrong("log %s has the event %s of %s twice", log, m.Event, m.Provider)
			return nil
		}
	}
	return nil
}

// startedInTime checks that a frozen worker, when it was woken, made no call whose start-by had long passed: by a third
// of the time that it was frozen. The call may take as much again to arrive.
func (v *verdict) startedInTime(ctx context.Context, log string) error {
	if len(v.incident.woken) == 0 {
		return nil
	}
	for _, c := range v.sim.copiesOf(log) {
		afterWaking := func(at time.Time) bool { return c.At.After(at) && c.At.Before(at.Add(startBy)) }
		if !slices.ContainsFunc(v.incident.woken, afterWaking) {
			continue
		}
		story, err := v.user.timeline(ctx, log)
		if err != nil {
			return err
		}
		inTime := slices.ContainsFunc(story, func(m client.Moment) bool {
			return m.What == "attempt" && m.Provider == c.Account && !m.At.After(c.At) && c.At.Sub(m.At) < 2*startBy
		})
		if !inTime {
			v.res.wrong("log %s was sent through %s at %s, when a worker was woken, and no known attempt could begin then",
				log, c.Account, c.At.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// compareDays waits until the user's days agree with the logs.
func (v *verdict) compareDays(ctx context.Context) error {
	var got client.Stats
	tomorrow := time.Now().AddDate(0, 0, 1) // for a clock that is ahead
	err := poll(ctx, v.mail.bound(patience), "days agree with logs", func() (_ bool, err error) {
		got, err = v.user.client.GetStats(ctx, "", tomorrow.UTC().Format(time.DateOnly), "tag", "")
		var tagged client.Counts // each mail has one tag
		for i := range got.Groups {
			tagged.Accepted += got.Groups[i].Counts.Accepted
			tagged.Delivered += got.Groups[i].Counts.Delivered
			tagged.Failed += got.Groups[i].Counts.Failed
		}
		return err == nil && sameEnds(&got.Totals, &v.total) && balanced(&got.Totals) && sameEnds(&tagged, &v.total), err
	})
	if err != nil && ctx.Err() == nil {
		v.res.wrong("the days show %+v, by tag %+v, and the logs %+v", got.Totals, got.Groups, v.total)
		return nil
	}
	return err
}

// firstMail finds when the first mail was sent after the break: through another provider, if one provider broke.
func (v *verdict) firstMail(copies map[string]int) {
	var first time.Time
	for id := range copies {
		for _, c := range v.sim.copiesOf(id) {
			elsewhere := v.scenario.breaks != 1 || c.Account != v.sim.pair[0].Name
			if elsewhere && c.At.After(v.incident.brokenAt) && (first.IsZero() || c.At.Before(first)) {
				first = c.At
			}
		}
	}
	if !first.IsZero() && !v.scenario.events {
		v.res.FirstMail = max(round(first.Sub(v.incident.brokenAt)), 0.01)
	}
}

// describe returns a timeline in one line: the calls for a mail, and their results.
func describe(story []client.Moment) string {
	var out []string
	for i := range story {
		m := &story[i]
		line := m.At.Format("15:04:05.000") + " " + m.What
		for _, part := range []string{m.Provider, m.Class, m.Reason} {
			if part != "" {
				line += " " + part
			}
		}
		if m.Status > 0 {
			line += fmt.Sprintf(" %d", m.Status)
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}
