package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/simulator"
)

// scenario is something that breaks while mail is on its way, and is mended.
type scenario struct {
	name, story string

	needs    need          // where it has a meaning
	prefer   []string      // the accounts of its batches in their order; none: all alike
	breaks   []string      // the accounts that it breaks
	events   bool          // mail itself flows on
	mayFail  bool          // what is done to mail may be a reason for it to fail
	apart    bool          // roles run as processes of their own, where they can
	settings []string      // of the servers
	longer   time.Duration // than others it may take
	scale    float64       // simulated seconds in a real one; 0: drillScale

	// strike breaks things, waits for the states in which they have had their
	// effect, and mends them. It calls broken and mended.
	strike func(ctx context.Context, d *drill) error
}

// need says what a scenario has no meaning without.
type need int

const (
	nothingElse need = iota
	realBroker
	realStore
	ownStore // the embedded one
	signals  // by which processes are frozen
)

// without says why the scenario has no meaning on a set-up; empty: it has one.
func (s *scenario) without(set *setUp) string {
	switch {
	case s.needs == realBroker && set.ownBroker():
		return "the broker is part of the process"
	case s.needs == realStore && set.ownStore():
		return "the store is part of the process"
	case s.needs == ownStore && !set.ownStore():
		return "it is about the embedded store"
	case s.needs == realBroker && strings.HasPrefix(set.cfg.AMQP.URL, "amqps:"):
		return "the way to RabbitMQ is cut in a proxy, whose name amqps:// would not accept"
	case s.needs == realStore && !loopback(set.cfg.Cassandra.Hosts[0]):
		return "the way to Cassandra is cut in a proxy, which the driver goes round unless the node is on this machine"
	case s.needs == signals && !canFreeze:
		return "processes cannot be frozen on this system"
	}
	return ""
}

// loopback reports whether a host is this machine by its loopback address.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return name == "localhost" || net.ParseIP(name).Equal(net.IPv4(127, 0, 0, 1))
}

// drillScale is how much faster than real providers repeat posts, defer and flush.
const drillScale = 120

// drillAccounts are the simulated accounts.
var drillAccounts = []string{"sg", "mg"}

// sgFirst lets all mail go through SendGrid as long as that works.
var sgFirst = []string{"sg", "mg"}

var scenarios = []scenario{
	{name: "provider-down", story: "SendGrid answers 503 to everything", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})},
	{name: "hanging", story: "SendGrid takes requests and never answers; it sends none of them", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeHang})},
	{name: "hang-after-body", story: "SendGrid sends the mail and never answers", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeHangAfterBody})},
	{name: "close-after-accepting", story: "SendGrid sends the mail and closes the connection without an answer", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeAcceptThenClose})},
	{name: "429-storm", story: "SendGrid answers 429 to everything and names a time to come back", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeRate, RetryAfter: 2 * time.Second})},
	{name: "black-hole", story: "SendGrid accepts everything, sends nothing and reports nothing", prefer: sgFirst, breaks: []string{"sg"},
		settings: []string{"SAFEDELIVR_TIMES_SILENCE=3s", "SAFEDELIVR_TIMES_FINAL_EVENT=20s"},
		strike:   fault(simulator.Fault{Mode: simulator.ModeSuspend})},
	{name: "key-revoked", story: "SendGrid no longer knows the API key", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusUnauthorized})},
	{name: "both-down", story: "SendGrid and Mailgun answer 503 to everything", breaks: drillAccounts, strike: bothDown},

	{name: "worker-killed", story: "kill -9 of a worker in the middle of its calls; a new one is started", apart: true, strike: workerKilled},
	{name: "worker-frozen", story: "SIGSTOP of a worker for longer than its calls may wait to begin, then SIGCONT", apart: true, needs: signals, strike: workerFrozen},
	{name: "broker-purged", story: "all queues lose all messages (in-process broker: the process is killed and started again)", strike: brokerPurged},
	{name: "broker-gone", story: "RabbitMQ cannot be reached for a while", needs: realBroker, strike: away((*drill).brokerGate)},
	{name: "store-gone", story: "Cassandra cannot be reached for a while", needs: realStore, strike: away((*drill).storeGate)},

	{name: "webhooks-doubled", events: true, story: "every event is reported twice", strike: disorder(simulator.Fault{Mode: simulator.ModeEventsDuplicate})},
	{name: "webhooks-shuffled", events: true, story: "events come out of order", strike: disorder(simulator.Fault{Mode: simulator.ModeEventsShuffle})},
	{name: "webhooks-late", events: true, story: "events come five simulated hours after everything else is done", scale: 3600,
		strike: disorder(simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: 5 * time.Second})},
	{name: "webhooks-forged", events: true, story: "somebody posts bounces of mail that is on its way, with signatures that are none", strike: forgeries},
}

// fault breaks the scenario's account until mail goes through another.
func fault(f simulator.Fault) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		f.Account = d.breaks[0]
		id := d.sim.Inject(f)
		d.broken()
		other := d.taken("mg")
		err := d.until(ctx, "mail goes through another account", func() bool { return d.taken("mg") >= other+int64(d.recipients/10) })
		d.sim.Clear(id)
		d.mended()
		return err
	}
}

// bothDown breaks all accounts until each has refused a number of calls, or was
// left alone.
func bothDown(ctx context.Context, d *drill) error {
	for _, a := range drillAccounts {
		d.sim.Inject(simulator.Fault{Account: a, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
	}
	d.broken()
	err := d.until(ctx, "both accounts have refused calls", func() bool {
		return d.sim.Stats("sg").Refused >= 10 && d.sim.Stats("mg").Refused >= 10
	})
	d.sim.ClearAll("")
	d.mended()
	return err
}

// workerKilled kills a worker with calls in flight and starts another.
func workerKilled(ctx context.Context, d *drill) error {
	if err := d.until(ctx, "calls are in flight", d.calling); err != nil {
		return err
	}
	d.worker.kill()
	d.broken()
	err := d.restart(ctx)
	d.mended()
	return err
}

// workerFrozen stops a worker with calls in flight for longer than the start-by
// of every call that it has claimed, three times.
func workerFrozen(ctx context.Context, d *drill) error {
	for i := range 3 {
		if i > 0 { // it works on something again
			if err := d.post(ctx, d.recipients/4); err != nil {
				return err
			}
		}
		if err := d.until(ctx, "calls are in flight", d.calling); err != nil {
			return err
		}
		if err := freeze(d.worker.cmd.Process); err != nil {
			return err
		}
		if i == 0 {
			d.broken()
		}
		frozen := time.Now()
		err := d.until(ctx, "the start-by has passed", func() bool { return time.Since(frozen) > 3*drillStartBy })
		d.woken = append(d.woken, time.Now())
		if werr := wake(d.worker.cmd.Process); err == nil {
			err = werr
		}
		if err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// brokerPurged empties all queues, three times. The in-process broker is emptied
// by the end of its process.
func brokerPurged(ctx context.Context, d *drill) error {
	if d.place.ownBroker() {
		return workerKilled(ctx, d)
	}
	for i := range 3 {
		if err := d.purge(ctx); err != nil {
			return err
		}
		if i == 0 {
			d.broken()
		}
		all := d.taken("")
		if err := d.until(ctx, "some mail goes out", func() bool { return d.taken("") > all || d.quiet() }); err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// away shuts the way to a server until requests have failed for it.
func away(gate func(*drill) *gate) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		g := gate(d)
		g.shut()
		d.broken()
		err := d.until(ctx, "the server was missed", func() bool { return g.turnedAway() >= 5 })
		g.open()
		d.mended()
		return err
	}
}

// disorder disturbs the events of everything that is sent from now on.
func disorder(f simulator.Fault) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		id := d.sim.Inject(f)
		d.broken()
		posts := d.sim.Stats("").EventsSent
		err := d.until(ctx, "events were disturbed", func() bool { return d.sim.Stats("").EventsSent >= posts+int64(d.recipients/2) })
		d.sim.Clear(id)
		d.mended()
		return err
	}
}

// forgeries posts bounces of every mail with signatures that are none; each must
// be refused.
func forgeries(ctx context.Context, d *drill) error {
	d.broken()
	taken, err := d.forge(ctx)
	d.mended()
	if err == nil && taken > 0 {
		d.res.wrong("%d forged posts were not refused", taken)
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
