package drill

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/attack"
	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// faultMet is how many calls must have met a fault.
const faultMet = 3

// providerFault breaks the scenario's provider until calls have met the fault, mail is sent through the other one, and
// operators get a notice.
func providerFault(f simulator.Fault) func(ctx context.Context, d *drill) error {
	return func(ctx context.Context, d *drill) error {
		f := f // other runs have other providers
		f.Account = d.sim.pair[0].Name
		id := d.sim.Inject(f)
		d.broken()
		other := d.sim.taken(d.sim.pair[1].Name)
		err := d.until(ctx, "mail is sent through the other provider", func() bool {
			return d.sim.taken(d.sim.pair[1].Name) >= other+int64(d.mail.recipients/10) && d.sim.Met(id) >= faultMet
		})
		if err == nil {
			err = d.until(ctx, "operators get a notice", func() bool { return d.notices.isPublished(ctx, f.Account) })
		}
		d.sim.Clear(id)
		d.healed()
		return err
	}
}

// bothDown breaks all providers until each has refused a number of calls.
func bothDown(ctx context.Context, d *drill) error {
	for _, a := range d.sim.pair.Names() {
		d.sim.Inject(simulator.Fault{Account: a, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
	}
	d.broken()
	err := d.until(ctx, "both providers have refused calls", func() bool {
		return d.sim.Stats(d.sim.pair[0].Name).Refused >= 10 && d.sim.Stats(d.sim.pair[1].Name).Refused >= 10
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
	err := d.servers.restart(ctx)
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
		err := d.mail.post(ctx, d.mail.recipients/4)
		if err == nil {
			err = d.until(ctx, "events are disturbed", func() bool {
				now := d.sim.Stats("")
				return now.EventsSent >= before.EventsSent+int64(d.mail.recipients/2) &&
					disturbed(&now) >= disturbed(&before)+int64(d.mail.recipients/10)
			})
		}
		d.sim.Clear(id)
		d.healed()
		return err
	}
}

// endpointDown has the endpoints fail in several ways until posts to each of them have met each of these.
func endpointDown(ctx context.Context, d *drill) error {
	d.broken()
	var err error
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusFound, receiver.Hang, receiver.Hangup} {
		one, all := d.feeds.receiver.Counts().Failed, d.feeds.everyone.Counts().Failed
		d.feeds.receiver.Answer(status)
		d.feeds.everyone.Answer(status)
		if err = d.mail.post(ctx, backgroundSize); err == nil {
			err = d.until(ctx, "posts have met the fault", func() bool {
				return d.feeds.receiver.Counts().Failed > one && d.feeds.everyone.Counts().Failed > all
			})
		}
		if err != nil {
			break
		}
	}
	d.feeds.receiver.Answer(0)
	d.feeds.everyone.Answer(0)
	d.healed()
	return err
}

// hostileUser has another user attack until many requests are answered and mail is sent meanwhile. No request of others
// may go without its answer.
func hostileUser(ctx context.Context, d *drill) error {
	// The others of the drill have no limits, because it asks without pause.
	limits := client.NewLimits{RequestsPerSecond: new(int64(50)), RequestsAtOnce: new(int64(16)), Why: "rehearsal"}
	if _, err := d.user.client.SetUserLimits(ctx, d.hostile.ID, limits); err != nil {
		return err
	}
	a := attack.New(d.servers.addr, d.hostile.secret)
	err := d.attacked(ctx, a.Send, func() bool { return a.Answered() >= 5000 && a.Limited() > 0 })
	if err == nil {
		err = d.mail.add(ctx, d.hostile, attack.Flood)
	}
	return err
}

// hostileStranger has somebody without a key attack until many requests are answered and mail is sent meanwhile. No
// request of others may go without its answer.
func hostileStranger(ctx context.Context, d *drill) error {
	s := attack.NewStranger(d.servers.addr)
	return d.attacked(ctx, s.Send, func() bool { return s.Answered() >= 500 })
}

// attacked sends mail while somebody attacks, until enough of the attack is answered.
func (d *drill) attacked(ctx context.Context, send func(ctx context.Context), enough func() bool) error {
	attacking, stop := context.WithCancel(ctx)
	var attacker sync.WaitGroup
	attacker.Go(func() { send(attacking) })
	d.broken()
	before := d.sim.taken("")
	err := d.mail.post(ctx, d.mail.recipients/4)
	if err == nil {
		err = d.until(ctx, "requests of the attacker are answered, and mail is sent", func() bool {
			return enough() && d.sim.taken("") >= before+int64(d.mail.recipients/4)
		})
	}
	stop()
	attacker.Wait()
	d.healed()
	if n := d.mail.unanswered.since(); err == nil && n > 0 {
		err = fmt.Errorf("%d requests of other users had no answer; the last: %w", n, *d.mail.unanswered.last.Load())
	}
	return err
}

// forgeries posts forged bounces. Each must be refused.
func forgeries(ctx context.Context, d *drill) error {
	d.broken()
	err := d.forge(ctx)
	d.healed()
	return err
}

// forge posts a bounce of every tenth mail with a wrong signature, in the name of both providers. It notes a mistake if
// one was not refused.
func (d *drill) forge(ctx context.Context) error {
	posts, taken := 0, 0
	for _, b := range d.mail.all() {
		for i := 0; i < b.n; i += 10 {
			for _, p := range d.sim.pair {
				bounce := p.Bounce(b.id.Log(i%models.MaxChunkRecipients+1).String(), i, time.Now())
				ok, err := postForged(ctx, d.servers.hooks()+p.Name, bounce)
				if err != nil {
					return err
				}
				if posts++; ok {
					taken++
				}
			}
		}
	}
	if taken > 0 || posts == 0 {
		d.res.wrong("of %d forged posts %d were not refused", posts, taken)
	}
	return nil
}

// postForged reports whether a forged post was not refused.
func postForged(ctx context.Context, to, body string) (taken bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", fmt.Sprint(time.Now().Unix()))
	r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQDforged")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode < http.StatusBadRequest || resp.StatusCode >= http.StatusInternalServerError, nil
}
