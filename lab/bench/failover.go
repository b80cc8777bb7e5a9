package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

const (
	failoverLatency = 100 * time.Millisecond
	failoverTimeout = 2 * time.Second
	failoverCall    = 100    // recipients per call
	failoverBatch   = 10_000 // its chunks do not fill the provider's slots
)

// errTooLate says that the batch was sent before the fault was injected.
var errTooLate = errors.New("the batch was sent before the fault")

// failoverAll measures the time from a provider's failure until mail that prefers it
// arrives at the other provider.
func (b *bench) failoverAll(be *backend) error {
	answers := simulator.Fault{Account: "sg", Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable}
	const title = "failover, 503 from a moment on, to the first refused mail elsewhere"
	if err := b.failoverOne(be, title, "under 1 s", answers, true); err != nil {
		return err
	}
	hangs := simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody}
	aim := fmt.Sprintf("under 1 s after the time-out of %s", failoverTimeout)
	return b.failoverOne(
		be,
		"failover, hanging after the body from a moment on, to the first mail elsewhere",
		aim,
		hangs,
		false,
	)
}

func (b *bench) failoverOne(be *backend, title, aim string, f simulator.Fault, refused bool) error {
	fmt.Fprintln(os.Stderr, be.title+":", title)
	var l load
	for range b.failovers {
		took, err := b.failover(be, f, refused)
		for again := 0; errors.Is(err, errTooLate) && again < 3; again++ { // the machine was stalled
			took, err = b.failover(be, f, refused)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, " ", short(took))
		l.times = append(l.times, took)
	}
	slices.Sort(l.times)
	detail := fmt.Sprintf(
		"%d times, %s to %s; answer time %s; aim: %s",
		len(l.times),
		short(l.times[0]),
		short(l.quantile(1)),
		failoverLatency,
		aim,
	)
	b.report.add(be, title, ms(l.quantile(0.5)), "ms", detail)
	return nil
}

// failover injects a fault into the first provider during a batch, and returns the time
// until the first mail came to the other one. With refused, only mail that the first
// provider refused counts; without, all mail does, because mail with an unknown outcome
// is not sent again. Each run starts a new product, because a provider that has failed
// recovers slowly.
func (b *bench) failover(be *backend, f simulator.Fault, refused bool) (time.Duration, error) {
	r, err := b.newRig(
		be,
		&rigOptions{
			latency:     failoverLatency,
			concurrency: atOnce,
			perCall:     failoverCall,
			timeout:     failoverTimeout,
			webhooks:    true,
		},
	)
	if err != nil {
		return 0, err
	}
	defer r.close()
	id, err := r.post(batchStream(failoverBatch, `,"lane":"bulk","providers":["sg","mg"]`))
	if err != nil {
		return 0, err
	}
	if _, err := r.taken(failoverCall); err != nil {
		return 0, err
	}
	moment := time.Now()
	if _, err := r.sim.Inject(b.ctx, f); err != nil {
		return 0, err
	}
	if _, err := r.taken(failoverBatch); err != nil {
		return 0, err
	}
	logs, err := r.elsewhere(id, refused)
	if err != nil {
		return 0, err
	}
	first, err := r.firstAt("mg", logs, moment)
	if err != nil {
		return 0, err
	}
	if st, err := r.sim.Stats(b.ctx, ""); err != nil || st.Doubled != 0 {
		return 0, fmt.Errorf("doubled: %+v %w", st, err)
	}
	return first.Sub(moment), nil
}

// elsewhere returns the logs of a batch that were sent through the second provider. With
// refused, only those that the first one had refused before.
func (r *rig) elsewhere(id models.ID, refused bool) (out []string, err error) {
	for l, err := range r.client.Logs(r.b.ctx, id.String(), client.LogOptions{}) {
		if err != nil {
			return nil, err
		}
		_, first := l.Providers["sg"]
		if _, second := l.Providers["mg"]; second && (first || !refused) {
			out = append(out, l.ID)
		}
	}
	return out, nil
}

// firstAt returns when a provider got the first of the mails after a time.
func (r *rig) firstAt(provider string, logs []string, after time.Time) (first time.Time, err error) {
	var mu sync.Mutex
	_, err = each(len(logs), 8, func(i int) error {
		copies, err := r.sim.Copies(r.b.ctx, logs[i])
		mu.Lock()
		defer mu.Unlock()
		for _, c := range copies {
			if c.Account == provider && c.At.After(after) && (first.IsZero() || c.At.Before(first)) {
				first = c.At
			}
		}
		return err
	})
	if err == nil && first.IsZero() {
		err = fmt.Errorf("no mail came to %s: %w", provider, errTooLate)
	}
	return first, err
}
