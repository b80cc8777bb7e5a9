package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// Summary is the result of the demo. All fields except Accepted and Queued are counted from the simulated providers'
// copies, or compared with them.
type Summary struct {
	Accepted   int64    `json:"accepted"`
	Delivered  int64    `json:"delivered"`
	Failed     int64    `json:"failed"` // bounced at an address that does not exist
	Queued     int64    `json:"queued"`
	Rerouted   int64    `json:"rerouted"`
	Lost       int64    `json:"lost"`    // no provider has a copy
	Doubled    int64    `json:"doubled"` // more than one copy was delivered
	FailoverMS float64  `json:"failover_ms"`
	Seconds    float64  `json:"seconds"`
	Mistakes   []string `json:"mistakes,omitempty"` // sums that do not add up
}

func (s *Summary) good() bool { return s.Lost == 0 && s.Doubled == 0 && len(s.Mistakes) == 0 }

func (s *Summary) wrong(format string, args ...any) {
	s.Mistakes = append(s.Mistakes, fmt.Sprintf(format, args...))
}

// balanced reports whether the states of a batch or a day add up.
func balanced(c *client.Counts) bool { return c.Accepted == c.Queued+c.Success+c.Failed+c.Cancelled }

// summary counts the copies at the providers and compares them with what the API says.
func (d *demo) summary(ctx context.Context) (Summary, error) {
	s := Summary{Seconds: d.seconds()}
	if err := d.sim.Settle(ctx); err != nil {
		return s, err
	}
	b, err := d.client.Batch(ctx, d.batch.String())
	if err != nil {
		return s, err
	}
	s.Accepted, s.Failed, s.Queued, s.Rerouted = b.Counts.Accepted, b.Counts.Failed, b.Counts.Queued, b.Counts.Rerouted
	n := d.countCopies()
	s.Delivered = n.deliveredOnce + n.deliveredMore
	s.Doubled = n.deliveredMore
	s.Lost = int64(d.o.Recipients) - n.distinct
	if s.Accepted != int64(d.o.Recipients) {
		s.wrong("accepted %d of %d", s.Accepted, d.o.Recipients)
	}
	if !balanced(&b.Counts) {
		s.wrong("the batch's counts do not add up: %+v", b.Counts)
	}
	if b.Counts.Success != s.Delivered {
		s.wrong("success %d, delivered at the providers %d", b.Counts.Success, s.Delivered)
	}
	if b.Counts.Failed != n.bounced {
		s.wrong("failed %d, bounced at the providers %d", b.Counts.Failed, n.bounced)
	}
	if err := d.compareStats(ctx, &s, &b.Counts); err != nil {
		return s, err
	}
	first, err := d.firstReroute(ctx)
	if err != nil {
		return s, err
	}
	if !first.IsZero() && first.After(d.broken) {
		s.FailoverMS = float64(first.Sub(d.broken).Microseconds()) / 1000
	}
	return s, nil
}

// copyCounts are numbers of messages.
type copyCounts struct {
	distinct                     int64
	deliveredOnce, deliveredMore int64
	bounced                      int64
}

// countCopies reads every copy that the simulated providers keep.
func (d *demo) countCopies() (n copyCounts) {
	var ids []string
	d.sim.EachCopy(func(id string, _ map[string]int) { ids = append(ids, id) })
	for _, id := range ids {
		delivered, bounced := 0, 0
		for _, c := range d.sim.Copies(id) {
			switch c.Outcome {
			case "deliver":
				delivered++
			case "hardbounce":
				bounced++
			}
		}
		n.distinct++
		switch {
		case delivered > 1:
			n.deliveredMore++
		case delivered == 1:
			n.deliveredOnce++
		case bounced > 0:
			n.bounced++
		}
	}
	return n
}

// compareStats waits until every summary is up to date and compares the day's stats with the batch.
func (d *demo) compareStats(ctx context.Context, s *Summary, batch *client.Counts) error {
	engine := d.app.Engine()
	for end := time.Now().Add(10 * time.Second); engine.Pending() > 0 && time.Now().Before(end); {
		if err := engine.Flush(ctx); err != nil {
			return err
		}
	}
	day := d.batch.Time()
	stats, err := d.client.Stats(ctx, day, day)
	if err != nil {
		return err
	}
	t := &stats.Totals
	same := t.Accepted == batch.Accepted && t.Success == batch.Success && t.Failed == batch.Failed
	if !same || !balanced(t) {
		s.wrong("the day's stats %+v differ from the batch %+v", *t, *batch)
	}
	return nil
}

// firstReroute returns when another provider accepted the first message that SendGrid had refused, as the ledger says.
func (d *demo) firstReroute(ctx context.Context) (time.Time, error) {
	b, err := d.app.Store().Batch(ctx, d.batch)
	if err != nil {
		return time.Time{}, err
	}
	var first time.Time
	for n := range b.Chunks {
		entries, facts, err := d.app.Store().Record(ctx, d.batch.Chunk(n))
		if err != nil {
			return time.Time{}, err
		}
		rerouted := map[int]bool{}
		for i := range entries {
			e := &entries[i]
			rerouted[e.Number] = e.Kind == models.Attempt && e.Provider != "sg" && e.Retry > 0 && e.At.After(d.broken)
		}
		for i := range facts {
			o := facts[i].Outcome
			if o == nil || !rerouted[o.Attempt] || o.Parts[0].Class != models.Accepted {
				continue
			}
			if first.IsZero() || o.At.Before(first) {
				first = o.At
			}
		}
	}
	return first, nil
}

func (d *demo) print(s *Summary) {
	sg, mg := d.sim.Stats("sg"), d.sim.Stats("mg")
	d.say("\nCounted from the providers' own copies after %.1f s:", s.Seconds)
	d.say("  accepted   %8d", s.Accepted)
	d.say("  delivered  %8d   sg and mg accepted %d and %d messages, and refused %d and %d calls",
		s.Delivered, sg.Accepted, mg.Accepted, sg.Refused, mg.Refused)
	d.say("  bounced    %8d   (hard bounces are not sent again)", s.Failed)
	d.say("  rerouted   %8d", s.Rerouted)
	d.say("  queued     %8d", s.Queued)
	d.say("  lost       %8d", s.Lost)
	d.say("  doubled    %8d", s.Doubled)
	d.say("  failover   %8.0f ms from SendGrid's outage to the first rerouted message accepted by Mailgun", s.FailoverMS)
	if len(s.Mistakes) == 0 {
		d.say("  sums       add up: batch, day and copies agree")
	}
	for _, m := range s.Mistakes {
		d.say("  WRONG      %s", m)
	}
}

func (d *demo) printHints() {
	curl := func(path, rest string) {
		d.say("  curl -s %s -H 'Authorization: Bearer %s'%s\n", d.client.URL(path), d.key, rest)
	}
	d.say("\nStill running. Try:\n")
	curl("/v1/batches", ` -H 'Content-Type: application/json' \`+"\n"+
		`    -d '{"from":"me@demo.test","subject":"Hi {{name}}","text":"It works.","to":["Ann <ann@demo.test>"]}'`)
	curl("/v1/logs/"+d.batch.Log(26).String(), "      # one recipient's story")
	curl("/v1/batches/"+d.batch.String()+"/logs?state=failed", "")
	curl("/v1/stats", "")
	curl("/v1/providers", "     # health of the providers")
	fault, _ := json.Marshal(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody}) // strings: never an error
	d.say("  curl -s %s/control/faults -d '%s'   # break SendGrid yourself\n", d.simURL, fault)
	d.say("Ctrl-C ends it.")
}
