package drill

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// noticed waits until the servers notice that something is unavailable.
type noticed func(context.Context, *drill) error

// outageTime is how long a server stays unavailable after that was first noticed.
const outageTime = 3 * time.Second

// unavailable refuses connections to the server that the scenario needs until that was noticed, and again a while later.
func unavailable(noticed noticed) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		p := d.servers.proxy
		p.Refuse()
		d.broken()
		err := d.until(ctx, "connections are refused", func() bool { return p.Refused() >= 5 })
		if err == nil {
			err = noticed(ctx, d)
		}
		if err == nil {
			err = pause(ctx, outageTime)
		}
		if err == nil {
			d.mail.unanswered.mark()
			err = noticed(ctx, d)
		}
		p.Accept()
		d.healed()
		return err
	}
}

// pause waits for a time: something must not happen in it, or is tried again after it.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storeUnavailable waits until requests have had no answer since the break.
func storeUnavailable(ctx context.Context, d *drill) error {
	return d.until(ctx, "the store is noticed to be unavailable", func() bool {
		return d.mail.unanswered.since() >= 2
	})
}

// brokerUnavailable waits until the API says that the broker is unavailable, and accepts batches all the same.
func brokerUnavailable(ctx context.Context, d *drill) error {
	err := d.until(ctx, "the broker is noticed to be unavailable", func() bool {
		ready, err := d.user.client.Readiness(ctx)
		state, known := ready.Checks["broker"]
		return err == nil && known && state != "ok"
	})
	if err != nil {
		return err
	}
	accepted := len(d.mail.all())
	return d.until(ctx, "mail is accepted without a broker", func() bool { return len(d.mail.all()) >= accepted+5 })
}

// queueStalled waits until a notice names a queue that delivers nothing, and until more mail is accepted and more has
// left since then.
func queueStalled(ctx context.Context, d *drill) error {
	err := d.until(ctx, "a queue that delivers nothing is reported", func() bool {
		all, err := d.notices.list(ctx, client.QueueStalled)
		return err == nil && len(all) > 0
	})
	if err != nil {
		return err
	}
	sent, accepted := d.sim.Stats("").Accepted, d.mail.posted()
	return d.until(ctx, "mail leaves although acknowledgements are lost", func() bool {
		return d.mail.posted() > accepted && d.sim.Stats("").Accepted > sent
	})
}
