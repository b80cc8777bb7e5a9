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
	"github.com/safedelivr/safedelivr/models"
)

// count compares the copies at the providers with the logs, and the sums with the logs.
func (d *drill) count(ctx context.Context) error {
	copies := map[string]int{}
	d.sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			copies[logOf(id)] += n
		}
	})
	d.firstMail(copies)
	defer d.schedule.measure()
	var total client.Counts
	for _, b := range d.mail.all() {
		d.res.Accepted += b.n
		counts, err := d.countBatch(ctx, b, copies)
		if err != nil {
			return err
		}
		if b.of != d.user {
			continue
		}
		total.Accepted += counts.Accepted
		total.Delivered += counts.Delivered
		total.Failed += counts.Failed
	}
	for id := range copies {
		d.res.wrong("the providers have copies of %d mails that were never accepted, such as %s; %s",
			len(copies), id, d.known(ctx, id))
		break
	}
	if err := d.messages.count(ctx); err != nil {
		return err
	}
	if err := d.compareDays(ctx, &total); err != nil {
		return err
	}
	if err := d.feeds.count(ctx); err != nil {
		return err
	}
	if err := d.notices.count(ctx); err != nil {
		return err
	}
	if out, err := d.environment.command(ctx, d.servers.env, "check", "--user", d.user.Name); err != nil {
		d.res.wrong("safedelivr check: %v: %s", err, out)
	}
	return nil
}

// known says what the API knows of the batch of a log.
func (d *drill) known(ctx context.Context, log string) string {
	id, err := models.ParseLogID(log)
	if err != nil {
		return err.Error()
	}
	b, err := d.user.batch(ctx, id.Batch())
	if err != nil {
		return fmt.Sprintf("its batch cannot be read: %v", err)
	}
	return fmt.Sprintf("its batch is %s with %d of %d mails delivered", b.State, b.Counts.Delivered, b.Counts.Accepted)
}

// countBatch counts one batch and removes its copies from the list.
func (d *drill) countBatch(ctx context.Context, b posted, copies map[string]int) (counted client.Counts, err error) {
	shown, err := d.user.batch(ctx, b.id)
	if err != nil {
		return counted, err
	}
	logs, err := d.user.logs(ctx, b.id)
	if err != nil {
		return counted, err
	}
	for i := range logs {
		l := &logs[i]
		if d.events && i%20 == 0 {
			if err := d.eventsOnce(ctx, l.ID); err != nil {
				return counted, err
			}
		}
		if err := d.startedInTime(ctx, l.ID); err != nil {
			return counted, err
		}
		if err := d.checkSuppressed(ctx, &b, l); err != nil {
			return counted, err
		}
		if b.attached {
			d.checkAttachment(l.ID)
		}
		b.of.logged = append(b.of.logged, published{log: l.ID, state: l.State, reason: l.Reason})
		n := copies[l.ID]
		delete(copies, l.ID)
		if err := d.countLog(ctx, l, n, &counted); err != nil {
			return counted, err
		}
	}
	if int(counted.Accepted) != b.n {
		d.res.wrong("batch %s has %d logs of %d", b.id, counted.Accepted, b.n)
	}
	if !sameEnds(&shown.Counts, &counted) || !balanced(&shown.Counts) {
		d.res.wrong("batch %s shows %+v, and its logs %+v", b.id, shown.Counts, counted)
	}
	return counted, nil
}

// checkAttachment checks that every copy of a mail has the attachment of the drill.
func (d *drill) checkAttachment(log string) {
	sum := sha256.Sum256(enclosed.Content)
	for _, c := range d.sim.copiesOf(log) {
		if len(c.Attachments) != 1 || c.Attachments[0].SHA256 != hex.EncodeToString(sum[:]) {
			d.res.wrong("a copy of log %s at %s has not the attachment of its batch, but %v", log, c.Account, c.Attachments)
		}
	}
}

// countLog adds a log whose mail has n copies to the result and to counted.
func (d *drill) countLog(ctx context.Context, l *client.Log, n int, counted *client.Counts) error {
	var o outcome
	if n > 0 {
		o = d.sim.outcomeOf(l.ID)
	}
	counted.Accepted++
	if o.doubled() {
		d.res.Doubled++
		story, err := d.user.timeline(ctx, l.ID)
		if err != nil {
			return err
		}
		d.res.wrong("log %s is %s %s, and has the copies %s; %s", l.ID, l.State, l.Reason, &o, describe(story))
	}
	switch {
	case l.State == client.Delivered:
		counted.Delivered++
		d.res.Delivered++
		if o.lost() {
			d.res.Lost++
		}
	case held(l):
		counted.Failed++
		d.res.Held++
		return d.blame(ctx, l, &o, d.heldWrongly)
	case l.State == client.Failed && l.Reason != "":
		counted.Failed++
		d.res.Failed++
		return d.blame(ctx, l, &o, d.failedWrongly)
	case l.State == client.Cancelled && d.messages.versions != nil && n == 0: // see messages
	default:
		d.res.wrong("log %s is %s %s in the end", l.ID, l.State, l.Reason)
		if n == 0 {
			d.res.Lost++
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
func (d *drill) blame(ctx context.Context, l *client.Log, o *outcome, accuse accusation) error {
	why, err := accuse(ctx, l, o)
	if why == "" || err != nil {
		return err
	}
	story, err := d.user.timeline(ctx, l.ID)
	d.res.wrong("log %s says %s, and %s; its copies: %s; %s", l.ID, l.Reason, why, o, describe(story))
	return err
}

// eventsOnce checks that no event is in the timeline of a log twice.
func (d *drill) eventsOnce(ctx context.Context, log string) error {
	story, err := d.user.timeline(ctx, log)
	if err != nil {
		return err
	}
	for i, m := range story {
		if m.What == "event" && slices.Contains(story[:i], m) {
			d.res.wrong("log %s has the event %s of %s twice", log, m.Event, m.Provider)
			return nil
		}
	}
	return nil
}

// startedInTime checks that a frozen worker, when it was woken, made no call whose start-by had long passed: by a third
// of the time that it was frozen. The call may take as much again to arrive.
func (d *drill) startedInTime(ctx context.Context, log string) error {
	if len(d.incident.woken) == 0 {
		return nil
	}
	for _, c := range d.sim.copiesOf(log) {
		afterWaking := func(at time.Time) bool { return c.At.After(at) && c.At.Before(at.Add(startBy)) }
		if !slices.ContainsFunc(d.incident.woken, afterWaking) {
			continue
		}
		story, err := d.user.timeline(ctx, log)
		if err != nil {
			return err
		}
		inTime := slices.ContainsFunc(story, func(m client.Moment) bool {
			return m.What == "attempt" && m.Provider == c.Account && !m.At.After(c.At) && c.At.Sub(m.At) < 2*startBy
		})
		if !inTime {
			d.res.wrong("log %s was sent through %s at %s, when a worker was woken, and no known attempt could begin then",
				log, c.Account, c.At.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// compareDays waits until the user's days agree with the logs.
func (d *drill) compareDays(ctx context.Context, want *client.Counts) error {
	var got client.Stats
	tomorrow := time.Now().AddDate(0, 0, 1) // for a clock that is ahead
	err := poll(ctx, d.mail.bound(patience), "days agree with logs", func() (_ bool, err error) {
		got, err = d.user.client.GetStats(ctx, "", tomorrow.UTC().Format(time.DateOnly), "tag", "")
		var tagged client.Counts // each mail has one tag
		for i := range got.Groups {
			tagged.Accepted += got.Groups[i].Counts.Accepted
			tagged.Delivered += got.Groups[i].Counts.Delivered
			tagged.Failed += got.Groups[i].Counts.Failed
		}
		return err == nil && sameEnds(&got.Totals, want) && balanced(&got.Totals) && sameEnds(&tagged, want), err
	})
	if err != nil && ctx.Err() == nil {
		d.res.wrong("the days show %+v, by tag %+v, and the logs %+v", got.Totals, got.Groups, *want)
		return nil
	}
	return err
}

// firstMail finds when the first mail was sent after the break: through another provider, if one provider broke.
func (d *drill) firstMail(copies map[string]int) {
	var first time.Time
	for id := range copies {
		for _, c := range d.sim.copiesOf(id) {
			elsewhere := d.breaks != 1 || c.Account != d.sim.pair[0].Name
			if elsewhere && c.At.After(d.incident.brokenAt) && (first.IsZero() || c.At.Before(first)) {
				first = c.At
			}
		}
	}
	if !first.IsZero() && !d.events {
		d.res.FirstMail = max(round(first.Sub(d.incident.brokenAt)), 0.01)
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
