package main

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

const (
	drillStartBy  = 3 * time.Second
	drillPatience = 90 * time.Second // for one state, with few recipients: see bound
	drillLimit    = 4 * time.Minute  // for a scenario
	drillFew      = 3_000
	drillLatency  = 60 * time.Millisecond
	drillCallTime = 2 * time.Second
	drillCall     = 10 // recipients per call, so that there are many
	tricklePause  = 300 * time.Millisecond
	trickleSize   = 20
)

// drill is one run of a scenario.
type drill struct {
	*scenario
	place      *place
	recipients int
	rnd        *rand.Rand
	say        func(format string, args ...any)

	sim    *simulator.Simulator
	simURL string
	addr   string // of API and webhooks
	env    []string
	gates  map[need]*gate
	struck *struck  // the way to the providers of the next
	worker *process // the one that is struck
	others []*process
	user   models.User
	client *demoClient
	res    result
	killed int         // processes, in the middle of what they did
	woken  []time.Time // when a frozen worker woke

	unanswered atomic.Int64 // requests of which nobody can say whether they were accepted
	missedAt   int64        // how many those were when it broke

	mu       sync.Mutex
	batches  []posted
	brokenAt time.Time
	mendedAt time.Time
	before   map[string]int64 // mails taken by provider when it was mended
}

// runScenario rehearses one scenario and counts what came of it.
func runScenario(ctx context.Context, p *place, s *scenario, recipients int, seed uint64, say func(format string, args ...any)) result {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.name))
	d := &drill{scenario: s, place: p, recipients: recipients, rnd: rand.New(rand.NewPCG(seed, h.Sum64())), say: say, //nolint:gosec // it chooses moments
		gates: map[need]*gate{}, res: result{Name: s.name}}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, d.bound(drillLimit)+s.longer)
	defer cancel()
	if err := d.run(ctx); err != nil {
		d.res.wrong("%v", err)
		for _, p := range d.processes() {
			d.res.wrong("the server printed: %s", p.out)
		}
	}
	d.res.Seconds = round(time.Since(began))
	say("%s", d.res.said())
	return d.res
}

func (d *drill) run(ctx context.Context) error {
	simulated, stopSimulator := context.WithCancel(context.WithoutCancel(ctx))
	ended, err := d.simulate(simulated)
	if err != nil {
		stopSimulator()
		return err
	}
	defer func() {
		stopSimulator()
		<-ended
	}()
	defer func() {
		for _, g := range d.gates {
			g.remove()
		}
	}()
	defer d.stopServers()
	if err := d.startServers(ctx); err != nil {
		return err
	}
	if err := d.tell(ctx); err != nil {
		return err
	}
	return d.count(ctx)
}

// tell sends mail, strikes in the middle of it, and waits until all is settled.
func (d *drill) tell(ctx context.Context) error {
	size := min(max(d.recipients/8, 25), 1000)
	for left := d.recipients; left > 0; left -= size {
		if err := d.post(ctx, min(size, left)); err != nil {
			return err
		}
	}
	moment := int64(float64(d.recipients) * (0.1 + 0.5*d.rnd.Float64()))
	if err := d.until(ctx, "mail goes out", func() bool { return d.taken("") >= moment }); err != nil {
		return err
	}
	enough, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.trickle(ctx, enough) }()
	err := d.strike(ctx, d)
	if err == nil {
		err = d.normal(ctx)
	}
	close(enough)
	if terr := <-ended; err == nil {
		err = terr
	}
	if err != nil {
		return err
	}
	return d.settled(ctx)
}

// until waits for a state.
func (d *drill) until(ctx context.Context, what string, f func() bool) error {
	return poll(ctx, d.bound(drillPatience), what, func() (bool, error) { return f(), nil })
}

// bound is a bound for a drill with few recipients, or what it comes to with more
// of them: new mail stands in line behind them, and its events behind theirs.
func (d *drill) bound(t time.Duration) time.Duration {
	return t * time.Duration(max(d.recipients, d.posted(), drillFew)) / drillFew
}

// posted is how many mails were accepted.
func (d *drill) posted() (n int) {
	for _, b := range d.all() {
		n += b.n
	}
	return n
}

func (d *drill) broken() {
	d.mu.Lock()
	d.brokenAt = time.Now()
	d.mu.Unlock()
	d.missedAt = d.unanswered.Load()
	d.say("✗ %s", d.story)
}

func (d *drill) mended() {
	d.mu.Lock()
	d.mendedAt = time.Now()
	d.before = map[string]int64{}
	for _, a := range drillProviders {
		d.before[a] = d.taken(a)
	}
	d.mu.Unlock()
	d.say("✓ mended after %.1f s", time.Since(d.brokenAt).Seconds())
}

// taken is how many mails a provider took; of all for "".
func (d *drill) taken(provider string) int64 { return d.sim.Stats(provider).Accepted }

// quiet reports whether everything that was posted is with a provider.
func (d *drill) quiet() bool { return d.taken("") >= int64(d.posted()) }
