//go:build unix

package main

import (
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/simulator"
)

// best returns the highest part of the limit that was used in a window of this
// length within a time.
func best(calls []simulator.Call, limit float64, from, to time.Time, window time.Duration) (part float64) {
	for at := from; !at.Add(window).After(to); at = at.Add(window / 10) {
		n := 0
		for _, c := range calls {
			if !c.At.Before(at) && c.At.Before(at.Add(window)) {
				n += c.Recipients
			}
		}
		part = max(part, float64(n)/(limit*window.Seconds()))
	}
	return part
}

// The limits of a provider, of rate and of calls at once, hold over all workers: one,
// four, two of them, some killed, one frozen for longer than it is waited for and woken
// again. The provider itself counts.
func TestLimitsHold(t *testing.T) {
	b := backends()[1]
	t.Run(b.name, func(t *testing.T) {
		const (
			limit  = 200
			atOnce = 3
			n      = 200_000 // more than can go out meanwhile
		)
		r := newRig(t, b, simulator.Options{CallLogSize: 100_000, Latency: 200 * time.Millisecond}, "SAFEDELIVR_PROVIDERS_SG_RATE="+strconv.Itoa(limit),
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY="+strconv.Itoa(atOnce))
		hooks := freeAddr(t)
		for _, a := range []string{"sg", "mg"} {
			r.sim.SetWebhookURL(a, "http://"+hooks+"/webhooks/"+a)
		}
		r.start(r.addr, nil, "serve", "--roles", "api,webhooks")
		worker := func(name string) *child {
			return r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=" + name}, "serve", "--roles", "worker")
		}
		taken := func() int64 { return r.sim.Stats("sg").Accepted }
		// flows waits until mail for so many seconds of the limit went out.
		flows := func(seconds int) {
			t.Helper()
			until := taken() + int64(seconds*limit)
			require.Eventually(t, func() bool { return taken() >= until }, patience, 20*time.Millisecond)
		}
		one := worker("one")
		r.post(batchBody(n, `,"providers":["sg"],"lane":"bulk"`, plainAddress))
		flows(4)
		oneFrom := time.Now()
		flows(5)
		oneTo := time.Now()
		worker("two")
		three, four := worker("three"), worker("four")
		flows(8)
		fourFrom := time.Now()
		flows(5)
		fourTo := time.Now()
		require.NoError(t, three.cmd.Process.Signal(syscall.SIGSTOP))
		four.kill()
		flows(12) // by then neither counts any more
		require.NoError(t, three.cmd.Process.Signal(syscall.SIGCONT))
		flows(3)
		one.kill()
		flows(8)
		twoFrom := time.Now()
		flows(5)
		twoTo := time.Now()

		calls := r.sim.CallLog("sg")
		slices.SortFunc(calls, func(a, b simulator.Call) int { return a.At.Compare(b.At) })
		over := most(calls, limit, limit)
		t.Logf("%d calls; the worst window is %.0f recipients below limit x window + burst; used at best %.0f %% by one, %.0f %% by four, %.0f %% by two workers",
			len(calls), -over, 100*best(calls, limit, oneFrom, oneTo, 4*time.Second), 100*best(calls, limit, fourFrom, fourTo, 4*time.Second),
			100*best(calls, limit, twoFrom, twoTo, 4*time.Second))
		// Calls that were past the gate when their worker froze or was slow: one each.
		require.LessOrEqual(t, over, float64(limit), "more than limit x window + burst")
		for name, w := range map[string][2]time.Time{"one": {oneFrom, oneTo}, "four": {fourFrom, fourTo}, "two": {twoFrom, twoTo}} {
			require.Greater(t, best(calls, limit, w[0], w[1], 4*time.Second), 0.8, "of the limit, with %s workers", name)
		}
		require.LessOrEqual(t, r.sim.Stats("sg").MaxInFlight, int64(atOnce), "calls at once")
		require.Zero(t, r.sim.Stats("sg").Doubled)
	})
}
