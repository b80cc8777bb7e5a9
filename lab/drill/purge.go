package drill

import (
	"context"
	"errors"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/rabbit"
)

// fewCalls lets providers take so few calls at once that messages wait in the queues. No purge reaches the messages
// that consumers hold, which are as many as they work on.
const fewCalls = 2

// brokerPurged empties all queues, three times, while mail waits in them. The in-process broker is emptied by the end
// of its process.
func brokerPurged(ctx context.Context, d *drill) error {
	if d.environment.ownBroker() {
		return d.loseThrice(ctx, d.loseProcess)
	}
	// The connection is open before mail waits, so that a purge comes at once.
	return d.environment.withBroker(ctx, func(b models.Broker) error {
		return d.loseThrice(ctx, func(ctx context.Context) (int, error) { return d.purge(ctx, b) })
	})
}

func (d *drill) loseThrice(ctx context.Context, lose func(context.Context) (int, error)) error {
	sum := 0
	for i := range 3 {
		lost, err := d.waitingLost(ctx, lose)
		if err != nil {
			return err
		}
		sum += lost
		if i == 0 {
			d.broken()
		}
		all := d.sim.taken("")
		if err := d.until(ctx, "some mail is sent", func() bool { return d.sim.taken("") > all || d.quiet() }); err != nil {
			return err
		}
	}
	d.healed()
	d.say("%d messages about mail were lost", sum)
	return nil
}

// waitingLost has messages about mail wait in the queues and loses the queues, again until messages were lost. It
// returns how many.
func (d *drill) waitingLost(ctx context.Context, lose func(context.Context) (int, error)) (int, error) {
	d.sim.SetLatency("", slowAnswer)
	defer d.sim.SetLatency("", latency)
	for range injectTries {
		if err := d.mail.postSome(ctx); err != nil {
			return 0, err
		}
		if err := d.until(ctx, "mail waits in the queues", func() bool { return d.waiting(ctx) > 0 }); err != nil {
			return 0, err
		}
		if lost, err := lose(ctx); lost > 0 || err != nil {
			return lost, err
		}
	}
	return 0, errors.New("no message about mail was lost")
}

// waiting counts the messages about mail that no consumer holds; 0 if that is unknown.
func (d *drill) waiting(ctx context.Context) (n int) {
	queues, err := d.user.client.ListQueues(ctx)
	if err != nil {
		return 0
	}
	for _, q := range queues.Queues {
		if q.Lane != "" { // it is about mail
			n += q.Ready
		}
	}
	return n
}

// purge empties all queues and returns how many messages about mail were lost.
func (d *drill) purge(ctx context.Context, b models.Broker) (lost int, err error) {
	counted, ok := b.(*rabbit.Broker)
	if !ok {
		lost = d.waiting(ctx)
		return lost, b.Purge(ctx)
	}
	counts, err := counted.PurgeCounted(ctx)
	for name, n := range counts {
		if name != "q.event" && !strings.HasPrefix(name, "delay.") {
			lost += n
		}
	}
	return lost, err
}

// loseProcess kills the process that the broker is part of and starts it again. It returns how many messages about mail
// waited in it.
func (d *drill) loseProcess(ctx context.Context) (lost int, err error) {
	lost = d.waiting(ctx)
	d.servers.kill(d.servers.worker)
	return lost, d.servers.restart(ctx)
}
