package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/store/memory"
)

// withoutDelays is a broker that loses every message with a delay.
type withoutDelays struct{ models.Broker }

func (b withoutDelays) Publish(ctx context.Context, ms ...models.Message) error {
	var kept []models.Message
	for _, m := range ms {
		if m.NotBefore.IsZero() {
			kept = append(kept, m)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return b.Broker.Publish(ctx, kept...)
}

// outage is a time in which no provider takes mail, and the mail that waits for its end.
type outage struct {
	class   models.Class
	lasts   time.Duration
	urgent  int
	bulk    int
	pinned  bool // the mail may use only one provider
	workers int
	lose    bool // messages with a delay are lost
	restart bool // the workers end before the recovery
	probe   bool // an operator probes the providers, and there is no other mail
	try     bool // instead, each batch is tried
}

// outageRun is an outage that is played.
type outageRun struct {
	outage
	rig    *rig
	mu     sync.Mutex
	up     bool
	healed time.Time
	taken  int
	calls  map[string][]time.Time // by provider
	burst  error                  // more calls within a second than the limit allows
}

// callRate is the limit of each provider, in calls a second. Its burst is as large.
const callRate = 5

// answer answers a call through a provider.
func (o *outageRun) answer(name string, c *models.Call) []models.Part {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	recent := slices.DeleteFunc(o.calls[name], func(at time.Time) bool { return now.Sub(at) >= time.Second })
	if o.calls[name] = append(recent, now); len(recent) >= 2*callRate {
		o.burst = fmt.Errorf("%d calls of %s within a second", len(recent)+1, name)
	}
	if o.up {
		o.taken++
		return part(models.Accepted, c)
	}
	p := models.Part{Class: o.class, Recipients: c.Numbers()}
	if o.class == models.Throttled { // for a day
		p.RetryAt = time.Now().Add(24 * time.Hour)
	}
	return []models.Part{p}
}

// start starts the workers, with the times of production.
func (o *outageRun) start() (stop func()) {
	var stops []func()
	for i := range o.workers {
		cfg := settings.Default[Config]()
		cfg.Worker, cfg.Sole = fmt.Sprint("w", i), o.workers == 1
		var specs []provider.Spec
		for _, name := range []string{"sg", "mg"} {
			answer := func(_ context.Context, c *models.Call) []models.Part { return o.answer(name, c) }
			specs = append(specs, provider.Spec{Adapter: newScripted(name, answer), Provider: models.Provider{
				Name: name, Weight: 1, Concurrency: 4, ChunkLimit: 1000, Timeout: 10 * time.Second,
				Events: models.EventsNone, CallRate: callRate,
			}})
		}
		o.rig.engine = o.rig.start(cfg, specs)
		stops = append(stops, o.rig.stop)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// put accepts n batches of a lane.
func (o *outageRun) put(n int, lane models.Lane) (out []*models.Batch) {
	for range n {
		out = append(out, o.rig.batch(1, true, func(b *models.Batch, _ []models.Recipient) {
			b.Lane, b.ExpiresAt = lane, time.Now().Add(100*time.Hour)
			if o.pinned {
				b.Providers = []string{"sg"}
			}
		}))
	}
	return out
}

// play plays the outage. It returns an error if mail still waits when the recovery is known, or if a limit was
// exceeded.
func (o *outageRun) play() error {
	var err error
	stop := o.start()
	time.Sleep(10 * time.Second) // workers know each other
	waiting := append(o.put(o.urgent, models.Urgent), o.put(o.bulk, models.Bulk)...)
	time.Sleep(o.lasts)
	if o.restart {
		stop()
		stop = o.start()
		time.Sleep(10 * time.Second)
	}
	defer func() { stop() }()
	o.mu.Lock()
	o.up, o.healed = true, time.Now()
	o.mu.Unlock()
	switch {
	case o.try:
		time.Sleep(16 * time.Second) // the suspensions end, which count
		for _, b := range waiting {
			// As the service does: a worker that does not know the command yet drops a message.
			require.NoError(o.rig.t, o.rig.store.Schedule(context.Background(), models.AgendaEntry{
				Due: time.Now().Add(2 * time.Second), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1, Lane: b.Lane}))
			o.rig.order(models.Command{Kind: models.TryBatch, Batch: b.ID})
			o.rig.announce(b)
		}
	case o.probe:
		for _, name := range []string{"sg", "mg"} {
			o.rig.order(models.Command{Kind: models.ProviderProbe, Provider: name})
		}
	default:
		time.Sleep(16 * time.Second) // the suspensions end, which are probed only then
		other := o.put(2, models.Urgent)
		time.Sleep(2 * time.Second)
		o.mu.Lock()
		if o.taken == 0 {
			err = fmt.Errorf("other mail was not sent: %s", other[0].ID)
		}
		o.mu.Unlock()
	}
	// Two heartbeats, two polls, and the rate of five calls a second.
	time.Sleep(8*time.Second + time.Duration(o.urgent+o.bulk)*time.Second/callRate)
	for i, b := range waiting {
		if s := o.rig.view(b).Status(1); s.State != models.Success && err == nil {
			err = fmt.Errorf("mail %d of %d still waits %s after the recovery: %s, tries %+v",
				i, len(waiting), time.Since(o.healed), s.State, o.rig.view(b).Tries(1))
		}
	}
	return errors.Join(err, o.burst)
}

// TestMailLeavesAtOnceAfterOutage: mail that waits only for its providers is sent as soon as one takes mail again. It
// does not matter which worker found out, how long the outage lasted, or whether messages were lost.
func TestMailLeavesAtOnceAfterOutage(t *testing.T) {
	t.Parallel()
	run := func(o outage) (err error) {
		synctest.Test(t, func(t *testing.T) {
			r := &rig{t: t, store: memory.Open(t), broker: inproctest.New(t, "sg", "mg"), user: models.NewUserID()}
			if o.lose {
				r.broker = withoutDelays{r.broker}
			}
			err = (&outageRun{outage: o, rig: r, calls: map[string][]time.Time{}}).play()
		})
		return err
	}
	fewChecks()
	rapid.Check(t, func(t *rapid.T) {
		o := outage{
			class:   rapid.SampledFrom([]models.Class{models.Unavailable, models.AccountClass, models.Throttled}).Draw(t, "class"),
			lasts:   time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second,
			urgent:  rapid.IntRange(0, 3).Draw(t, "urgent"),
			bulk:    rapid.IntRange(0, 15).Draw(t, "bulk"),
			pinned:  rapid.Bool().Draw(t, "pinned"),
			workers: rapid.IntRange(1, 2).Draw(t, "workers"),
			lose:    rapid.Bool().Draw(t, "lose"),
			restart: rapid.Bool().Draw(t, "restart"),
			probe:   rapid.Bool().Draw(t, "probe"),
		}
		o.try = o.class == models.Unavailable && rapid.Bool().Draw(t, "try")
		o.probe = o.probe || o.class != models.Unavailable // otherwise the providers are asked again only later
		if err := run(o); err != nil {
			t.Fatalf("%+v: %s", o, err)
		}
	})
}
