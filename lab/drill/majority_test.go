//go:build full

package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// brokerWithoutMajority kills two of three nodes of RabbitMQ. The last one still answers, and no quorum queue has a
// leader. Safedelivr must accept and send mail meanwhile, and publish the notice broker.lost within a minute.
func brokerWithoutMajority(c *cluster) *scenario {
	return &scenario{
		name:   "broker-without-majority",
		story:  "kill -9 of two of three nodes of RabbitMQ, so that no queue has a leader; they are started again",
		apart:  true,
		longer: 4 * time.Minute,
		holds:  callsCutOff,
		inject: func(ctx context.Context, d *drill) error {
			if err := c.replicated(ctx, d, 0, clusterNodes); err != nil {
				return err
			}
			last := d.rnd.IntN(clusterNodes)
			killed := time.Now()
			d.broken()
			err := c.withoutOthers(ctx, d, last, func() error { return d.sendsWithoutLeaders(ctx, c, last, killed) })
			d.healed()
			return errors.Join(err, c.replicated(ctx, d, last, clusterNodes))
		},
	}
}

// withoutOthers kills all nodes but one, calls f, and starts them again.
func (c *cluster) withoutOthers(ctx context.Context, d *drill, last int, f func() error) (err error) {
	for i := range clusterNodes {
		if i == last {
			continue
		}
		if _, err := c.services(ctx, "kill", c.name(i)); err != nil {
			return err
		}
		defer func() {
			_, again := c.services(ctx, "start", c.name(i))
			err = errors.Join(err, again)
		}()
	}
	return f()
}

// sendsWithoutLeaders waits until mail that was posted after a time is sent and the notice is published. It returns an
// error if the last node was down, or a queue had a leader.
func (d *drill) sendsWithoutLeaders(ctx context.Context, c *cluster, last int, killed time.Time) error {
	before := d.sim.taken("")
	if err := d.flows(ctx, killed, before+int64(d.mail.recipients/20)); err != nil {
		return err
	}
	d.say("%d mails were sent without leaders, new ones were delivered after %.1f s",
		d.sim.taken("")-before, time.Since(killed).Seconds())
	var at time.Time
	err := d.until(ctx, "the notice is published", func() bool {
		list, err := d.notices.list(ctx, client.BrokerLost)
		for _, n := range list {
			if n.At.After(killed) {
				at = n.At
			}
		}
		return err == nil && !at.IsZero()
	})
	if err != nil {
		return err
	}
	d.say("the notice came after %.1f s", at.Sub(killed).Seconds())
	if at.Sub(killed) > time.Minute {
		return fmt.Errorf("the notice came %v after the kill", at.Sub(killed))
	}
	if c.down(ctx, last) {
		return fmt.Errorf("%s was meant to answer", c.name(last))
	}
	list, err := c.queues(ctx, d, last)
	for _, q := range list {
		if len(q.Online) > 1 {
			return fmt.Errorf("a queue has a majority: %+v", q)
		}
	}
	return err
}
