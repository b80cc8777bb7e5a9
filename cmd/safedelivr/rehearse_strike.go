package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/safedelivr/safedelivr/simulator"
)

// faultMet is how many calls must have met a fault.
const faultMet = 3

// fault breaks the scenario's provider until calls have met it, and mail goes
// through another.
func fault(f simulator.Fault) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		f.Account = d.breaks[0]
		id := d.sim.Inject(f)
		d.broken()
		other := d.taken("mg")
		err := d.until(ctx, "mail goes through another provider", func() bool {
			return d.taken("mg") >= other+int64(d.recipients/10) && d.sim.Met(id) >= faultMet
		})
		d.sim.Clear(id)
		d.mended()
		return err
	}
}

// bothDown breaks all providers until each has refused a number of calls, or was
// left alone.
func bothDown(ctx context.Context, d *drill) error {
	for _, a := range drillProviders {
		d.sim.Inject(simulator.Fault{Account: a, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
	}
	d.broken()
	err := d.until(ctx, "both providers have refused calls", func() bool {
		return d.sim.Stats("sg").Refused >= 10 && d.sim.Stats("mg").Refused >= 10
	})
	d.sim.ClearAll("")
	d.mended()
	return err
}

// workerKilled kills a worker with calls in flight and starts another.
func workerKilled(ctx context.Context, d *drill) error {
	if err := d.killInCalls(ctx); err != nil {
		return err
	}
	d.broken()
	err := d.restart(ctx)
	d.mended()
	return err
}

// workerFrozen stops a worker with calls in flight for longer than the start-by
// of every call that it has claimed, three times.
func workerFrozen(ctx context.Context, d *drill) error {
	for i := range 3 {
		err := d.freezeInCalls(ctx, func() {
			if i == 0 {
				d.broken()
			}
		})
		if err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// What a fault did to events, as the providers count it.
func doubledEvents(s *simulator.Stats) int64   { return s.EventsDoubled }
func overtakenEvents(s *simulator.Stats) int64 { return s.EventsOvertaken }
func lateEvents(s *simulator.Stats) int64      { return s.EventsLate }

// disorder disturbs the events of everything that is sent from now on, until the
// providers have counted many that were.
func disorder(f simulator.Fault, disturbed func(*simulator.Stats) int64) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		id := d.sim.Inject(f)
		before := d.sim.Stats("")
		d.broken()
		err := d.post(ctx, d.recipients/4)
		if err == nil {
			err = d.until(ctx, "events are disturbed", func() bool {
				now := d.sim.Stats("")
				return now.EventsSent >= before.EventsSent+int64(d.recipients/2) && disturbed(&now) >= disturbed(&before)+int64(d.recipients/10)
			})
		}
		d.sim.Clear(id)
		d.mended()
		return err
	}
}

// forgeries posts bounces of every tenth mail with signatures that are none; each
// must be refused.
func forgeries(ctx context.Context, d *drill) error {
	d.broken()
	refused, taken, err := d.forge(ctx)
	d.mended()
	if err == nil && (taken > 0 || refused == 0) {
		d.res.wrong("of %d forged posts %d were not refused", refused+taken, taken)
	}
	return err
}

// said is how a scenario's end is told.
func (r *result) said() string {
	if !r.good() {
		return fmt.Sprintf("WRONG: lost %d, doubled %d %s", r.Lost, r.Doubled, r.Mistakes)
	}
	return fmt.Sprintf("ok: accepted %d, delivered %d, failed %d, held %d, lost 0, doubled 0", r.Accepted, r.Delivered, r.Failed, r.Held)
}
