package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// result is what came of a scenario. Lost and Doubled are counted from the
// copies at the providers.
type result struct {
	Name      string   `json:"name"`
	NA        string   `json:"not_applicable,omitempty"` // why it has no meaning here
	Accepted  int      `json:"accepted"`
	Delivered int      `json:"delivered"`
	Failed    int      `json:"failed"`  // for a reason that is known
	Held      int      `json:"held"`    // the outcome is not known, and nothing is sent again
	Lost      int      `json:"lost"`    // no copy anywhere, and no log that says so
	Doubled   int      `json:"doubled"` // more than one copy delivered
	FirstMail float64  `json:"first_mail_s,omitempty"`
	Normal    float64  `json:"normal_s,omitempty"`
	Seconds   float64  `json:"seconds"`
	Mistakes  []string `json:"mistakes,omitempty"` // sums that do not add up, states that did not come
}

func (r *result) good() bool { return r.Lost == 0 && r.Doubled == 0 && len(r.Mistakes) == 0 }

// wrong notes a mistake; ten are enough.
func (r *result) wrong(format string, args ...any) {
	if len(r.Mistakes) == 10 {
		return
	}
	r.Mistakes = append(r.Mistakes, fmt.Sprintf(format, args...))
}

func round(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}

// drillLog is what is read of a log.
type drillLog struct {
	ID       models.ID     `json:"id"`
	Email    string        `json:"email"`
	State    models.State  `json:"state"`
	Reason   models.Reason `json:"reason"`
	Attempts int           `json:"attempts"`
}

// count compares the copies at the providers with what the logs say, and the
// sums with the logs.
func (d *drill) count(ctx context.Context) error {
	copies := map[string]int{}
	d.sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			copies[id] += n
		}
	})
	d.firstMail(copies)
	var total demoCounts
	for _, b := range d.all() {
		d.res.Accepted += b.n
		counts, err := d.countBatch(ctx, b, copies)
		if err != nil {
			return err
		}
		total.Accepted += counts.Accepted
		total.Success += counts.Success
		total.Failed += counts.Failed
	}
	for id := range copies {
		d.res.wrong("the providers have copies of %d mails that were never accepted, like %s; %s", len(copies), id, d.known(ctx, id))
		break
	}
	if err := d.compareDays(ctx, &total); err != nil {
		return err
	}
	var out bytes.Buffer
	if code := run(ctx, []string{"check", "--user", d.user.Name}, streams{out: &out, err: &out}, d.env); code != 0 {
		d.res.wrong("safedelivr check ends with %d: %s", code, strings.TrimSpace(out.String()))
	}
	return nil
}

// known says what the API tells of the batch of a log.
func (d *drill) known(ctx context.Context, log string) string {
	id, err := models.ParseLogID(log)
	if err != nil {
		return err.Error()
	}
	b, err := d.batch(ctx, id.Batch())
	if err != nil {
		return fmt.Sprintf("its batch cannot be read: %v", err)
	}
	return fmt.Sprintf("its batch is %s with %d of %d mails delivered", b.State, b.Counts.Success, b.Counts.Accepted)
}

// countBatch counts one batch, and takes its copies out of the list.
func (d *drill) countBatch(ctx context.Context, b posted, copies map[string]int) (demoCounts, error) {
	shown, err := d.batch(ctx, b.id)
	if err != nil {
		return demoCounts{}, err
	}
	var counted demoCounts
	logs, err := d.logs(ctx, b.id)
	if err != nil {
		return counted, err
	}
	for i, l := range logs {
		if d.events && i%20 == 0 {
			if err := d.toldOnce(ctx, l.ID); err != nil {
				return counted, err
			}
		}
		if err := d.begunInTime(ctx, l.ID); err != nil {
			return counted, err
		}
		var f fate
		n := copies[l.ID.String()]
		if delete(copies, l.ID.String()); n > 0 {
			f = d.fateOf(l.ID)
		}
		counted.Accepted++
		if f.doubled() {
			d.res.Doubled++
			story, err := d.timeline(ctx, l.ID)
			if err != nil {
				return counted, err
			}
			d.res.wrong("log %s is %s %s, and has the copies %s; %s", l.ID, l.State, l.Reason, &f, calls(story))
		}
		switch {
		case l.State == models.Success:
			counted.Success++
			d.res.Delivered++
			if f.lost() {
				d.res.Lost++
			}
		case l.held():
			counted.Failed++
			d.res.Held++
			if err := d.blame(ctx, &l, &f, d.heldWrongly); err != nil {
				return counted, err
			}
		case l.State == models.Failed && l.Reason != "":
			counted.Failed++
			d.res.Failed++
			if err := d.blame(ctx, &l, &f, d.failedWrongly); err != nil {
				return counted, err
			}
		default:
			d.res.wrong("log %s is %s %s in the end", l.ID, l.State, l.Reason)
			if n == 0 {
				d.res.Lost++
			}
		}
	}
	if int(counted.Accepted) != b.n {
		d.res.wrong("batch %s has %d logs of %d", b.id, counted.Accepted, b.n)
	}
	if c := &shown.Counts; c.Accepted != counted.Accepted || c.Success != counted.Success || c.Failed != counted.Failed || !c.balanced() {
		d.res.wrong("batch %s shows %+v, and its logs %+v", b.id, *c, counted)
	}
	return counted, nil
}

// blame notes a log that may not say what it says.
func (d *drill) blame(ctx context.Context, l *drillLog, f *fate, wrongly func(context.Context, *drillLog, *fate) (string, error)) error {
	why, err := wrongly(ctx, l, f)
	if why != "" {
		d.res.wrong("log %s says %s, and %s; its copies: %s", l.ID, l.Reason, why, f)
	}
	return err
}

// toldOnce checks that no event stands twice in the story of a log.
func (d *drill) toldOnce(ctx context.Context, log models.ID) error {
	story, err := d.timeline(ctx, log)
	if err != nil {
		return err
	}
	for i, m := range story {
		if m.What == "event" && slices.Contains(story[:i], m) {
			d.res.wrong("log %s tells the event %s of %s twice", log, m.Event, m.Provider)
			return nil
		}
	}
	return nil
}

// begunInTime checks that none of a mail's copies is of a call that a worker
// began when it woke, although its start-by was long past: a third of the time
// that it was frozen, and as much again for a call to arrive.
func (d *drill) begunInTime(ctx context.Context, log models.ID) error {
	if len(d.woken) == 0 {
		return nil
	}
	for _, c := range d.sim.Copies(log.String()) {
		if !slices.ContainsFunc(d.woken, func(at time.Time) bool { return c.At.After(at) && c.At.Before(at.Add(drillStartBy)) }) {
			continue
		}
		story, err := d.timeline(ctx, log)
		if err != nil {
			return err
		}
		in := slices.ContainsFunc(story, func(m models.Moment) bool {
			return m.What == "attempt" && m.Provider == c.Account && !m.At.After(c.At) && c.At.Sub(m.At) < 2*drillStartBy
		})
		if !in {
			d.res.wrong("log %s was sent through %s at %s, when a worker woke, and no attempt that might begin then is known", log, c.Account, c.At.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// timeline reads what became of a mail.
func (d *drill) timeline(ctx context.Context, log models.ID) ([]models.Moment, error) {
	var story struct {
		Timeline []models.Moment `json:"timeline"`
	}
	err := d.get(ctx, "/v1/logs/"+log.String(), &story)
	return story.Timeline, err
}

// logs reads all logs of a batch, page by page.
func (d *drill) logs(ctx context.Context, id models.ID) ([]drillLog, error) {
	var out []drillLog
	for cursor := ""; ; {
		var page struct {
			Logs []drillLog `json:"logs"`
			Next string     `json:"next_cursor"`
		}
		if err := d.get(ctx, fmt.Sprintf("/v1/batches/%s/logs?limit=500&cursor=%s", id, cursor), &page); err != nil {
			return nil, err
		}
		out = append(out, page.Logs...)
		if cursor = page.Next; cursor == "" {
			return out, nil
		}
	}
}

// compareDays waits until the user's days show what the logs say.
func (d *drill) compareDays(ctx context.Context, want *demoCounts) error {
	var got struct {
		Totals demoCounts `json:"totals"`
	}
	// A clock that is ahead may have begun the next day.
	stats := "/v1/stats?to=" + time.Now().UTC().AddDate(0, 0, 1).Format(time.DateOnly)
	err := poll(ctx, 30*time.Second, "days agree with logs", func() (bool, error) {
		err := d.get(ctx, stats, &got)
		t := &got.Totals
		return err == nil && t.Accepted == want.Accepted && t.Success == want.Success && t.Failed == want.Failed && t.balanced(), err
	})
	if err != nil && ctx.Err() == nil {
		d.res.wrong("the days show %+v, and the logs %+v", got.Totals, *want)
		return nil
	}
	return err
}

// firstMail finds when the first mail went out after the break: through another
// provider, where some providers broke and others did not.
func (d *drill) firstMail(copies map[string]int) {
	var first time.Time
	for id := range copies {
		for _, c := range d.sim.Copies(id) {
			elsewhere := len(d.breaks) != 1 || c.Account != d.breaks[0]
			if elsewhere && c.At.After(d.brokenAt) && (first.IsZero() || c.At.Before(first)) {
				first = c.At
			}
		}
	}
	if !first.IsZero() && !d.events {
		d.res.FirstMail = max(round(first.Sub(d.brokenAt)), 0.01)
	}
}
