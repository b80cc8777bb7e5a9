package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// demoSummary is what came of the demo. Everything but Accepted and Queued is
// counted from the simulated providers' own copies, or checked against them.
type demoSummary struct {
	Accepted   int64    `json:"accepted"`
	Delivered  int64    `json:"delivered"`
	Failed     int64    `json:"failed"` // bounced, for good
	Queued     int64    `json:"queued"`
	Rerouted   int64    `json:"rerouted"`
	Lost       int64    `json:"lost"`    // no copy at any provider
	Doubled    int64    `json:"doubled"` // more than one copy delivered
	FailoverMS float64  `json:"failover_ms"`
	Seconds    float64  `json:"seconds"`
	Mistakes   []string `json:"mistakes,omitempty"` // sums that do not add up
}

func (s *demoSummary) good() bool { return s.Lost == 0 && s.Doubled == 0 && len(s.Mistakes) == 0 }

func (s *demoSummary) wrong(format string, args ...any) {
	s.Mistakes = append(s.Mistakes, fmt.Sprintf(format, args...))
}

// summary counts the copies at the providers and compares them with what the
// API says.
func (d *demo) summary(ctx context.Context) (demoSummary, error) {
	s := demoSummary{Seconds: d.seconds()}
	if err := d.sim.Settle(ctx); err != nil {
		return s, err
	}
	var b demoBatch
	if err := d.client.do(ctx, http.MethodGet, "/v1/batches/"+d.batchID.String(), nil, http.StatusOK, &b); err != nil {
		return s, err
	}
	s.Accepted, s.Failed, s.Queued, s.Rerouted = b.Counts.Accepted, b.Counts.Failed, b.Counts.Queued, b.Counts.Rerouted
	distinct, delivered, bounced := d.countCopies()
	s.Delivered = delivered.one + delivered.more
	s.Doubled = delivered.more
	s.Lost = int64(d.o.recipients) - distinct
	if s.Accepted != int64(d.o.recipients) {
		s.wrong("accepted %d of %d", s.Accepted, d.o.recipients)
	}
	if !b.Counts.balanced() {
		s.wrong("the batch's counts do not add up: %+v", b.Counts)
	}
	if b.Counts.Success != s.Delivered {
		s.wrong("success %d, delivered at the providers %d", b.Counts.Success, s.Delivered)
	}
	if b.Counts.Failed != bounced {
		s.wrong("failed %d, bounced at the providers %d", b.Counts.Failed, bounced)
	}
	if err := d.compareStats(ctx, &s, &b); err != nil {
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

// tally counts ids with one copy and with more.
type tally struct{ one, more int64 }

// countCopies reads every copy the simulated providers kept.
func (d *demo) countCopies() (distinct int64, delivered tally, bounced int64) {
	type fate struct{ delivered, bounced int }
	fates := map[string]fate{}
	d.sim.EachCopy(func(id string, _ map[string]int) { fates[id] = fate{} })
	for id := range fates {
		var f fate
		for _, c := range d.sim.Copies(id) {
			switch c.Outcome {
			case "deliver":
				f.delivered++
			case "hardbounce":
				f.bounced++
			}
		}
		distinct++
		switch {
		case f.delivered > 1:
			delivered.more++
		case f.delivered == 1:
			delivered.one++
		case f.bounced > 0:
			bounced++
		}
	}
	return distinct, delivered, bounced
}

// compareStats waits until no summary is marked for renewal and compares the
// day's stats with the batch.
func (d *demo) compareStats(ctx context.Context, s *demoSummary, b *demoBatch) error {
	for end := time.Now().Add(10 * time.Second); d.app.engine.Pending() > 0 && time.Now().Before(end); {
		if err := d.app.engine.Flush(ctx); err != nil {
			return err
		}
	}
	var stats struct {
		Totals demoCounts `json:"totals"`
	}
	day := d.batchID.Time().Format(time.DateOnly)
	if err := d.client.do(ctx, http.MethodGet, "/v1/stats?from="+day+"&to="+day, nil, http.StatusOK, &stats); err != nil {
		return err
	}
	if t := stats.Totals; t.Accepted != b.Counts.Accepted || t.Success != b.Counts.Success || t.Failed != b.Counts.Failed || !t.balanced() {
		s.wrong("the day's stats %+v differ from the batch %+v", t, b.Counts)
	}
	return nil
}

// firstReroute is when the first mail that SendGrid refused was taken by another
// provider, as the ledger and its facts have it.
func (d *demo) firstReroute(ctx context.Context) (time.Time, error) {
	b, err := d.app.store.Batch(ctx, d.batchID)
	if err != nil {
		return time.Time{}, err
	}
	var first time.Time
	for n := range b.Chunks {
		entries, facts, err := d.app.store.Record(ctx, d.batchID.Chunk(n))
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

func (d *demo) print(s *demoSummary) {
	sg, mg := d.sim.Stats("sg"), d.sim.Stats("mg")
	d.say("\nCounted from the providers' own copies after %.1f s:", s.Seconds)
	d.say("  accepted   %8d", s.Accepted)
	d.say("  delivered  %8d   through sg and mg: %d and %d mails taken, %d and %d calls refused", s.Delivered, sg.Accepted, mg.Accepted, sg.Refused, mg.Refused)
	d.say("  bounced    %8d   (hard bounces are not routed around)", s.Failed)
	d.say("  rerouted   %8d", s.Rerouted)
	d.say("  queued     %8d", s.Queued)
	d.say("  lost       %8d", s.Lost)
	d.say("  doubled    %8d", s.Doubled)
	d.say("  failover   %8.0f ms from the first refusal-to-be to the first such mail taken by the other provider", s.FailoverMS)
	if len(s.Mistakes) == 0 {
		d.say("  sums       add up: batch, day and copies agree")
	}
	for _, m := range s.Mistakes {
		d.say("  WRONG      %s", m)
	}
}

func (d *demo) printHints() {
	d.say("\nStill running. Try:\n")
	d.say("  curl -s %s/v1/batches -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' \\\n    -d '{\"from\":\"me@demo.test\",\"subject\":\"Hi {{name}}\",\"text\":\"It works.\",\"to\":[\"Ann <ann@demo.test>\"]}'\n", d.client.base, d.client.key)
	d.say("  curl -s %s/v1/logs/%s -H 'Authorization: Bearer %s'      # one recipient's story\n", d.client.base, d.batchID.Log(26), d.client.key)
	d.say("  curl -s %s/v1/batches/%s/logs?state=failed -H 'Authorization: Bearer %s'\n", d.client.base, d.batchID, d.client.key)
	d.say("  curl -s %s/v1/stats -H 'Authorization: Bearer %s'\n", d.client.base, d.client.key)
	d.say("  curl -s %s/v1/providers -H 'Authorization: Bearer %s'     # health of the providers\n", d.client.base, d.client.key)
	d.say("  curl -s %s/control/faults -d '{\"provider\":\"sg\",\"mode\":\"hang-after-body\"}'   # break SendGrid yourself\n", d.simURL)
	d.say("Ctrl-C ends it.")
}
