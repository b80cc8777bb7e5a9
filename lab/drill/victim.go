package drill

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// victim stands between the worker that is killed or frozen and the providers. It knows whether that worker has calls
// in flight. The calls of other workers pass through it, too.
type victim struct {
	providers *simulator.Simulator
	open      atomic.Int64 // the worker's calls that have arrived whole and have no answer yet
	cut       atomic.Int64 // its calls that ended without an answer
}

// victimPath begins the paths of the worker's calls.
const victimPath = "/victim"

// ServeHTTP implements http.Handler.
func (v *victim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, own := strings.CutPrefix(r.URL.Path, victimPath)
	r.URL.Path = path
	if !own || !v.providers.SendsMail(r) { // a look-up of events, or a call of another worker
		v.providers.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the worker ended in the middle of its request
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	v.open.Add(1)
	defer func() {
		if r.Context().Err() != nil {
			v.cut.Add(1)
		}
		v.open.Add(-1)
	}()
	v.providers.ServeHTTP(w, r)
}

// slowAnswer is how long calls take while a fault waits for them.
const slowAnswer = 400 * time.Millisecond

// injectTries is how often a fault is injected at most until it meets calls.
const injectTries = 10

// duringCalls runs do while the worker has calls in flight, again until do reports that it met some.
func (d *drill) duringCalls(ctx context.Context, do func() (met bool, err error)) error {
	d.sim.SetLatency("", slowAnswer)
	defer d.sim.SetLatency("", latency)
	for range injectTries {
		if err := d.mail.postSome(ctx); err != nil {
			return err
		}
		err := d.until(ctx, "the worker has calls in flight", func() bool { return d.sim.victim.open.Load() > 0 })
		if err != nil {
			return err
		}
		if met, err := do(); met || err != nil {
			return err
		}
	}
	return errors.New("the worker never had a call in flight when the fault was injected")
}

// killDuringCalls kills the worker during its calls, so that some of them end without an answer.
func (d *drill) killDuringCalls(ctx context.Context) error {
	return d.duringCalls(ctx, func() (bool, error) {
		before := d.sim.victim.cut.Load()
		d.servers.kill(d.servers.worker)
		err := d.until(ctx, "its calls have ended", func() bool { return d.sim.victim.open.Load() == 0 })
		if err != nil || d.sim.victim.cut.Load() > before {
			return true, err
		}
		return false, d.servers.restart(ctx) // its calls had just been answered
	})
}

// freezeDuringCalls freezes the worker during its calls, runs then, and wakes the worker when the start-by of all its
// attempts has passed.
func (d *drill) freezeDuringCalls(ctx context.Context, then func()) error {
	var frozen time.Time
	err := d.duringCalls(ctx, func() (bool, error) {
		if err := freeze(d.servers.worker.cmd.Process); err != nil {
			return true, err
		}
		if frozen = time.Now(); d.sim.victim.open.Load() > 0 { // it will not read the answer of these
			return true, nil
		}
		return false, wake(d.servers.worker.cmd.Process)
	})
	if err != nil {
		return err
	}
	then()
	err = d.until(ctx, "the start-by has passed", func() bool { return time.Since(frozen) > 3*startBy })
	d.incident.woken = append(d.incident.woken, time.Now())
	if err := cmp.Or(err, wake(d.servers.worker.cmd.Process)); err != nil {
		return err
	}
	return d.recordedLate(ctx, frozen)
}

// asleep is how long a frozen worker sleeps, in milliseconds.
var asleep = float64((3 * startBy).Milliseconds())

// recordedLate waits until the worker has recorded an answer that it read only after it was woken.
func (d *drill) recordedLate(ctx context.Context, frozen time.Time) error {
	// Logs whose calls may have been in flight then: a provider that is busy stores the mail of a call a while after it
	// came.
	var inFlight []string
	d.sim.EachCopy(func(id string, _ map[string]int) {
		id = logOf(id)
		if slices.ContainsFunc(d.sim.copiesOf(id), func(c simulator.Copy) bool {
			return c.At.After(frozen.Add(-2*slowAnswer)) && c.At.Before(frozen.Add(startBy))
		}) {
			inFlight = append(inFlight, id)
		}
	})
	late := func(m client.Moment) bool { return m.What == "answer" && m.TookMS > asleep }
	what := fmt.Sprintf("a call that the worker slept through is recorded, of one of %d recipients", len(inFlight))
	return poll(ctx, d.mail.bound(patience), what, func() (bool, error) {
		for _, log := range inFlight {
			story, err := d.user.timeline(ctx, log)
			if err != nil || slices.ContainsFunc(story, late) {
				return err == nil, err
			}
		}
		return false, nil
	})
}
