package demo

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
)

// address returns the address of recipient i. Most are delivered. Some bounce at every provider, and some are blocked
// at the first one only, so that the second delivers them.
func (d *demo) address(i int) string {
	switch {
	case i%100 == 50:
		return fmt.Sprintf("hardbounce+%d@demo.test", i)
	case i%100 == 25:
		return fmt.Sprintf("blocked-%s+%d@demo.test", d.first(), i)
	}
	return fmt.Sprintf("user%d@demo.test", i)
}

func (d *demo) recipients() iter.Seq[client.Recipient] {
	return func(yield func(client.Recipient) bool) {
		for i := range d.o.Recipients {
			r := client.Recipient{
				Email: d.address(i),
				Vars:  map[string]any{"first": fmt.Sprintf("Person %d", i), "n": i},
			}
			if !yield(r) {
				return
			}
		}
	}
}

// run sends the batch, has the first provider break when a quarter of it has been sent, heals it a while later and
// waits for the end.
func (d *demo) run(ctx context.Context) error {
	d.say("dashboard    %s", d.link)
	d.say("Safedelivr   %s   (data in %s)", d.client.URL(""), d.o.Dir)
	d.say("providers    simulated %s (%s) and %s (%s) on %s\n",
		d.o.Providers[0].Title, d.first(), d.o.Providers[1].Title, d.second(), d.simURL)
	if err := d.prepare(ctx); err != nil {
		return err
	}
	d.awaitViewer(ctx)
	d.began = time.Now()
	file, err := client.Attach("programme.txt", strings.NewReader("10:00 doors open\n11:00 a provider breaks\n"))
	if err != nil {
		return err
	}
	fault := d.breakFirst()
	accepted, err := d.client.StreamBatch(ctx, client.NewBatch{
		Template:    templateName,
		Attachments: []client.Attachment{file},
	}, d.recipients())
	if err != nil {
		return err
	}
	if d.batch, err = models.ParseBatchID(accepted.ID); err != nil {
		return err
	}
	d.suppressed = int64(accepted.Suppressed)
	d.say("%6.1fs  batch %s accepted and stored: %d recipients", d.seconds(), d.batch, d.o.Recipients)
	d.say("         from the template %s, with the attachment %s", templateName, file.Filename)
	d.say("         its page: %s", d.client.URL("/batches/"+d.batch.String()))
	return d.follow(ctx, fault)
}

const (
	templateName = "welcome"
	complained   = 7 // the recipient who is on the suppression list
)

// prepare stores the template of the batch, and suppresses one of its recipients.
func (d *demo) prepare(ctx context.Context) error {
	text := "Dear {{first}}, {% if n < 100 %}you are among the first. {% endif %}This is mail {{n}}."
	in := client.NewTemplate{Name: templateName}
	in.Sender, in.Subject, in.Text, in.HTML = "Safedelivr demo <hello@demo.test>", "Hello {{first}}", text,
		"<p>"+text+"</p>"
	in.Publish = true
	if _, err := d.client.CreateTemplate(ctx, in); err != nil {
		return err
	}
	s, err := d.client.AddSuppression(ctx, client.NewSuppression{Email: d.address(complained), Reason: "complaint"})
	if err != nil {
		return err
	}
	d.say("%s is on the suppression list: %s.\n", s.Email, s.ReasonText)
	return nil
}

// standstill is how long the batch may go on without a message that is finished. A slow machine takes long for all of
// them.
const standstill = 5 * time.Minute

// follow says when the first provider breaks, heals it and prints progress until the batch is done.
func (d *demo) follow(ctx context.Context, fault string) error {
	printed := time.Time{}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	open, limit := int64(0), time.NewTimer(standstill)
	defer limit.Stop()
	for {
		b, err := d.client.Batch(ctx, d.batch.String())
		if err != nil {
			return err
		}
		done := b.State == client.BatchDone
		if now := b.Counts.Queued + b.Counts.Sent; now != open {
			open = now
			limit.Reset(standstill)
		}
		if d.broken.IsZero() && d.sim.Met(fault) > 0 {
			d.broken = time.Now()
			d.say("%6.1fs  ✗ %s breaks: it answers 503 to everything", d.seconds(), d.o.Providers[0].Title)
		}
		if d.healed.IsZero() && (done || !d.broken.IsZero() && time.Since(d.broken) > d.breakTime()) {
			d.healFirst(fault)
		}
		if time.Since(printed) > 500*time.Millisecond || done {
			printed = time.Now()
			d.progress(&b.Counts)
		}
		if done {
			return nil
		}
		select {
		case <-t.C:
		case <-limit.C:
			return fmt.Errorf("no message of the batch was finished for %s: %+v", standstill, b.Counts)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *demo) progress(c *client.Counts) {
	first, second, down := d.sim.Stats(d.first()), d.sim.Stats(d.second()), ""
	if !d.broken.IsZero() && d.healed.IsZero() {
		down = fmt.Sprintf(" ✗ down, %d calls refused", first.Refused)
	}
	d.say("%6.1fs  %s %3d %%   %s %6d messages%s   %s %6d messages   queued %d  sent %d  delivered %d  failed %d  "+
		"rerouted %d",
		d.seconds(), bar(c), percent(c), d.first(), first.Accepted, down, d.second(), second.Accepted,
		c.Queued, c.Sent, c.Delivered, c.Failed, c.Rerouted)
}

// viewerWait is how long the batch waits for a visitor to open the dashboard.
const viewerWait = 10 * time.Second

// awaitViewer waits a while until the dashboard is open, so that the failover can be watched there.
func (d *demo) awaitViewer(ctx context.Context) {
	if !d.watched() {
		return
	}
	d.say("Open the dashboard to watch. The batch is sent when you have opened it, or in %.0f s.\n", viewerWait.Seconds())
	ctx, cancel := context.WithTimeout(ctx, viewerWait)
	defer cancel()
	for range models.Every(ctx, 200*time.Millisecond) {
		if d.app.Dashboard().Arrived(ctx, login.LocalUser().ID) {
			return
		}
	}
}

func (d *demo) seconds() float64 { return time.Since(d.began).Seconds() }

func percent(c *client.Counts) int64 {
	if c.Accepted == 0 {
		return 0
	}
	return (c.Accepted - c.Queued - c.Sent) * 100 / c.Accepted
}

func bar(c *client.Counts) string {
	out := []rune("····················")
	for i := range int(percent(c)) / 5 {
		out[i] = '█'
	}
	return string(out)
}
