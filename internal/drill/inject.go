package drill

import (
	"context"
	"net/http"

	"github.com/safedelivr/safedelivr/internal/simulated"
	"github.com/safedelivr/safedelivr/simulator"
)

// faultMet is how many calls must have met a fault.
const faultMet = 3

// providerFault breaks the scenario's provider until calls have met the fault and mail is sent through the other one.
func providerFault(f simulator.Fault) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		f.Account = d.breaks[0]
		id := d.sim.Inject(f)
		d.broken()
		other := d.taken("mg")
		err := d.until(ctx, "mail is sent through the other provider", func() bool {
			return d.taken("mg") >= other+int64(d.recipients/10) && d.sim.Met(id) >= faultMet
		})
		d.sim.Clear(id)
		d.healed()
		return err
	}
}

// bothDown breaks all providers until each has refused a number of calls.
func bothDown(ctx context.Context, d *drill) error {
	for _, a := range simulated.Names {
		d.sim.Inject(simulator.Fault{Account: a, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
	}
	d.broken()
	err := d.until(ctx, "both providers have refused calls", func() bool {
		return d.sim.Stats("sg").Refused >= 10 && d.sim.Stats("mg").Refused >= 10
	})
	d.sim.ClearAll("")
	d.healed()
	return err
}

// workerKilled kills a worker with calls in flight and starts another one.
func workerKilled(ctx context.Context, d *drill) error {
	if err := d.killDuringCalls(ctx); err != nil {
		return err
	}
	d.broken()
	err := d.restart(ctx)
	d.healed()
	return err
}

// workerFrozen freezes a worker with calls in flight for longer than the start-by of its attempts, three times.
func workerFrozen(ctx context.Context, d *drill) error {
	for i := range 3 {
		err := d.freezeDuringCalls(ctx, func() {
			if i == 0 {
				d.broken()
			}
		})
		if err != nil {
			return err
		}
	}
	d.healed()
	return nil
}

// The counters of what a fault did to events.
func doubledEvents(s *simulator.Stats) int64   { return s.EventsDoubled }
func overtakenEvents(s *simulator.Stats) int64 { return s.EventsOvertaken }
func lateEvents(s *simulator.Stats) int64      { return s.EventsLate }

// eventFault disturbs the events of all new mail until the providers have counted many disturbed ones.
func eventFault(f simulator.Fault, disturbed func(*simulator.Stats) int64) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		id := d.sim.Inject(f)
		before := d.sim.Stats("")
		d.broken()
		err := d.post(ctx, d.recipients/4)
		if err == nil {
			err = d.until(ctx, "events are disturbed", func() bool {
				now := d.sim.Stats("")
				return now.EventsSent >= before.EventsSent+int64(d.recipients/2) &&
					disturbed(&now) >= disturbed(&before)+int64(d.recipients/10)
			})
		}
		d.sim.Clear(id)
		d.healed()
		return err
	}
}

// forgeries posts bounces of every tenth mail with wrong signatures. Each must be refused.
func forgeries(ctx context.Context, d *drill) error {
	d.broken()
	err := d.forgeAndCount(ctx)
	d.healed()
	return err
}

// forgeAndCount posts forged bounces and notes a mistake if one was not refused.
func (d *drill) forgeAndCount(ctx context.Context) error {
	refused, taken, err := d.forge(ctx)
	if err == nil && (taken > 0 || refused == 0) {
		d.res.wrong("of %d forged posts %d were not refused", refused+taken, taken)
	}
	return err
}
