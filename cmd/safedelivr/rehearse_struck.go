package main

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// struck is the way to the providers of the worker that is struck, and of nobody
// else: it tells whether that one is in the middle of its calls.
type struck struct {
	providers http.Handler
	open      atomic.Int64 // calls that have no answer yet
	cut       atomic.Int64 // calls whose caller went away without one
}

// struckPath begins the paths of its calls.
const struckPath = "/struck"

// ServeHTTP implements http.Handler, for the calls of all workers.
func (s *struck) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, own := strings.CutPrefix(r.URL.Path, struckPath)
	if !own {
		s.providers.ServeHTTP(w, r)
		return
	}
	r.URL.Path = path
	if r.Method != http.MethodPost { // it asks for events
		s.providers.ServeHTTP(w, r)
		return
	}
	s.open.Add(1)
	defer func() {
		if r.Context().Err() != nil {
			s.cut.Add(1)
		}
		s.open.Add(-1)
	}()
	s.providers.ServeHTTP(w, r)
}

// slowAnswer is how long calls take while a worker is struck in the middle of them.
const slowAnswer = 400 * time.Millisecond

// strikeTries is how often something is struck at the most until that meets what it
// is meant for.
const strikeTries = 10

// inCalls does something when the struck worker has calls under way, again until
// it met some.
func (d *drill) inCalls(ctx context.Context, do func() (bool, error)) error {
	d.sim.SetLatency("", slowAnswer)
	defer d.sim.SetLatency("", drillLatency)
	for range strikeTries {
		if err := d.postSome(ctx); err != nil {
			return err
		}
		if err := d.until(ctx, "the worker has calls under way", func() bool { return d.struck.open.Load() > 0 }); err != nil {
			return err
		}
		if done, err := do(); done || err != nil {
			return err
		}
	}
	return errors.New("none of the worker's calls was under way when it was struck")
}

// killInCalls kills the struck worker in the middle of its calls, and sees some of
// them cut off.
func (d *drill) killInCalls(ctx context.Context) error {
	return d.inCalls(ctx, func() (bool, error) {
		before := d.struck.cut.Load()
		d.kill(d.worker)
		err := d.until(ctx, "its calls have ended", func() bool { return d.struck.open.Load() == 0 })
		if err != nil || d.struck.cut.Load() > before {
			return true, err
		}
		return false, d.restart(ctx) // it had just been answered
	})
}

// freezeInCalls freezes the struck worker in the middle of its calls, and wakes it
// when the start-by of all that it has claimed has passed. It calls then when it
// is frozen.
func (d *drill) freezeInCalls(ctx context.Context, then func()) error {
	var frozen time.Time
	err := d.inCalls(ctx, func() (bool, error) {
		if err := freeze(d.worker.cmd.Process); err != nil {
			return true, err
		}
		if frozen = time.Now(); d.struck.open.Load() > 0 { // what is answered now, it does not hear
			return true, nil
		}
		return false, wake(d.worker.cmd.Process)
	})
	if err != nil {
		return err
	}
	then()
	err = d.until(ctx, "the start-by has passed", func() bool { return time.Since(frozen) > 3*drillStartBy })
	d.woken = append(d.woken, time.Now())
	if werr := wake(d.worker.cmd.Process); err == nil {
		err = werr
	}
	if err != nil {
		return err
	}
	return d.heardLate(ctx, frozen)
}

// heardLate waits until it is written down of a call that was under way at a
// moment that its worker heard of it too late: when it had slept.
func (d *drill) heardLate(ctx context.Context, frozen time.Time) error {
	var under []models.ID
	d.sim.EachCopy(func(id string, _ map[string]int) {
		log, err := models.ParseLogID(id)
		if err == nil && slices.ContainsFunc(d.sim.Copies(id), func(c simulator.Copy) bool {
			return c.At.Before(frozen) && c.At.After(frozen.Add(-2*slowAnswer))
		}) {
			under = append(under, log)
		}
	})
	return poll(ctx, d.bound(drillPatience), "a call that was cut off by the sleep of its worker is written down", func() (bool, error) {
		for _, log := range under {
			story, err := d.timeline(ctx, log)
			if err != nil {
				return false, err
			}
			for i := range story {
				if m := &story[i]; m.What == "answer" && m.TookMS > float64((3*drillStartBy).Milliseconds()) {
					return true, nil
				}
			}
		}
		return false, nil
	})
}
