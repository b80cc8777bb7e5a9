//go:build full && unix

package e2e

import (
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// best returns the highest part of the limit that was used in a window of a length.
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

// TestLimitsHold requires that a provider's limits of rate and of concurrent calls hold for all workers together: one,
// four and two. Some are killed. One is frozen until the others no longer count it, and woken again. The provider
// itself counts.
func TestLimitsHold(t *testing.T) {
	t.Parallel() // it waits for the limit nearly all the time
	b := testkit.Servers()
	t.Run(b.Name, func(t *testing.T) {
		const (
			limit  = 200
			atOnce = 3
			n      = 200_000 // more than can be sent meanwhile
		)
		r := newRig(t, b, simulator.Options{CallLogSize: 100_000, Latency: 200 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_RATE="+strconv.Itoa(limit),
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY="+strconv.Itoa(atOnce))
		hooks := freeAddr(t)
		for _, a := range []string{"sg", "mg"} {
			r.sim.SetWebhookURL(a, "http://"+hooks+"/webhooks/"+a)
		}
		r.start(r.addr, nil, "serve", "--roles", "api,webhooks")
		worker := func(name string) *process {
			return r.start(freeAddr(t), []string{"SAFEDELIVR_WORKER=" + name}, "serve", "--roles", "worker")
		}
		taken := func() int64 { return r.sim.Stats("sg").Accepted }
		// flows waits until as much mail was sent as the limit allows in some seconds.
		flows := func(seconds int) {
			t.Helper()
			until := taken() + int64(seconds*limit)
			require.Eventually(t, func() bool { return taken() >= until }, testkit.Patience, 20*time.Millisecond)
		}
		one := worker("one")
		r.post(mail{n: n, providers: []string{"sg"}, lane: client.Bulk})
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
		over := excess(calls, limit, limit)
		t.Logf("%d calls; the worst window is %.0f recipients below limit x window + burst", len(calls), -over)
		// One call of each worker may have passed the limiter before the worker froze or was slow.
		require.LessOrEqual(t, over, float64(limit), "more than limit x window + burst")
		for name, w := range map[string][2]time.Time{
			"one":  {oneFrom, oneTo},
			"four": {fourFrom, fourTo},
			"two":  {twoFrom, twoTo},
		} {
			require.Greater(t, best(calls, limit, w[0], w[1], 4*time.Second), 0.8, "of the limit, with %s workers", name)
		}
		require.LessOrEqual(t, r.sim.Stats("sg").MaxInFlight, int64(atOnce), "calls at once")
		require.Zero(t, r.sim.Stats("sg").Doubled)
	})
}

// excess returns by how much the calls in the worst window exceed limit x window + burst.
func excess(calls []simulator.Call, limit, burst float64) float64 {
	worst, low, sum := -burst, 0.0, 0.0
	for i, c := range calls {
		level := sum - limit*c.At.Sub(calls[0].At).Seconds()
		if i == 0 || level < low {
			low = level
		}
		sum += float64(c.Recipients)
		worst = max(worst, sum-limit*c.At.Sub(calls[0].At).Seconds()-low-burst)
	}
	return worst
}
