//go:build full

package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// clockOff is the error of wrong clocks.
const clockOff = 10 * time.Minute

// clockRate is the rate limit of each provider, which workers with different clocks must share.
const clockRate = 400

// wrongClocks runs scenarios in which the clock of a process is ten minutes off.
func wrongClocks(t *testing.T, environ []string) {
	t.Helper()
	exe := wrongClock(t)
	for _, s := range []*scenario{
		{
			name:   "clock-ahead",
			story:  "the clock of a worker is ten minutes ahead",
			inject: workerClock(exe, clockOff),
		},
		{
			name:   "clock-behind",
			story:  "the clock of a worker is ten minutes behind",
			inject: workerClock(exe, -clockOff),
		},
		{
			name:     "clock-past-window",
			story:    "the clock of a worker is further ahead than an evidence window is long",
			inject:   windowClock(exe, clockOff),
			settings: []string{"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=" + shortWindow.String()},
		},
		{
			name:   "entrance-clock-ahead",
			story:  "the clock of API and webhooks is ten minutes ahead",
			inject: entranceClock(exe, clockOff),
		},
		{
			name:   "entrance-clock-behind",
			story:  "the clock of API and webhooks is ten minutes behind",
			inject: entranceClock(exe, -clockOff),
		},
	} {
		if !chosen(s.name) {
			continue
		}
		s.clocksOff = true
		s.apart, s.longer, s.ordered, s.breaks = true, 2*time.Minute, true, 1
		if s.settings == nil { // a wait that ends by the clock of another process must be longer than the clock is off
			s.settings = []string{"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=15m"}
		}
		s.settings = append(s.settings, "SAFEDELIVR_TIMES_FINAL_EVENT=100h")
		for _, a := range simulated.Usual.Names() {
			s.settings = append(s.settings, fmt.Sprintf("SAFEDELIVR_PROVIDERS_%s_RATE=%d", strings.ToUpper(a), clockRate))
		}
		t.Run(s.name, func(t *testing.T) { runAlone(t, s, environ) })
	}
}

// wrongClock builds the product with a library that adds SAFEDELIVR_TEST_CLOCK
// seconds to every reading of the wall clock. The monotonic clock stays right.
func wrongClock(t *testing.T) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	path := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	text := string(source)
	const reading = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	for old, changed := range map[string]string{
		reading:      reading + "\tsec += wallOffset\n",
		"import (\n": "import (\n\t\"syscall\"\n",
	} {
		require.Equal(t, 1, strings.Count(text, old), "time.go has other words than %q", old)
		text = strings.Replace(text, old, changed, 1)
	}
	text += `
var wallOffset = func() (n int64) {
	s, _ := syscall.Getenv("SAFEDELIVR_TEST_CLOCK")
	sign := int64(1)
	for _, c := range s {
		if c == '-' {
			sign = -1
		} else {
			n = n*10 + int64(c-'0')
		}
	}
	return sign * n
}()
`
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	exe := filepath.Join(dir, "safedelivr")
	require.NoError(t, os.WriteFile(changed, []byte(text), 0o600))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, list, 0o600))
	began := time.Now()
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", exe, "../../cmd/safedelivr")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("built in %.1f s", time.Since(began).Seconds())
	return exe
}

// setClock replaces a process by one whose clock is off.
func setClock(ctx context.Context, p **process, exe string, off time.Duration) (err error) {
	(*p).stop()
	env := append(slices.Clone((*p).env), "SAFEDELIVR_TEST_CLOCK="+strconv.Itoa(int(off.Seconds())))
	*p, err = startProgram(ctx, exe, (*p).addr, env, (*p).args...)
	return err
}

// workerClock gives a worker a wrong clock. The worker runs beside one with the right clock, then alone, and is then
// stopped.
func workerClock(exe string, off time.Duration) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		right := slices.Clone(d.servers.worker.env)
		if err := setClock(ctx, &d.servers.worker, exe, off); err != nil {
			return err
		}
		d.broken()
		if err := d.roughTimes(ctx); err != nil {
			return err
		}
		// Alone it does everything, the agenda and summaries too. Workers are stopped, not killed: calls that were cut
		// off would wait for the end of the long evidence window.
		d.servers.others[1].stop()
		d.say("only the worker with the wrong clock is left")
		if err := d.flows(ctx, time.Now(), d.sim.taken("")+int64(d.mail.recipients/20)); err != nil {
			return err
		}
		if err := d.stopWithWrongClock(ctx); err != nil {
			return err
		}
		if err := d.attempted(ctx, off); err != nil {
			return err
		}
		var err error
		if d.servers.others[1], err = d.servers.others[1].again(ctx); err != nil {
			return err
		}
		// Others must find what it leaves behind by their own time.
		if err := d.roughTimes(ctx); err != nil {
			return err
		}
		d.servers.worker.stop()
		d.say("the worker with the wrong clock is gone")
		if d.servers.worker, err = d.environment.start(ctx, d.servers.worker.addr, right, d.servers.worker.args...); err != nil {
			return err
		}
		d.healed()
		return d.sim.limits()
	}
}

// shortWindow is an evidence window that is shorter than the error of clocks.
const shortWindow = 2 * time.Minute

// windowClock has a worker whose clock is ahead end evidence windows too early: nothing may be sent again for it, and
// the events that come later must still count.
func windowClock(exe string, off time.Duration) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		right := slices.Clone(d.servers.worker.env)
		if err := setClock(ctx, &d.servers.worker, exe, off); err != nil {
			return err
		}
		d.broken()
		d.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeEventsDelay, Delay: 30 * time.Second})
		d.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody, Times: 20})
		early, err := d.heldEarly(ctx)
		if err != nil {
			return err
		}
		d.say("%d mails are held though their windows have not ended", len(early))
		d.sim.ClearAll("")
		if err := d.eventsStillCount(ctx, early); err != nil {
			return err
		}
		d.servers.worker.stop()
		if d.servers.worker, err = d.environment.start(ctx, d.servers.worker.addr, right, d.servers.worker.args...); err != nil {
			return err
		}
		d.healed()
		return nil
	}
}

// eventsStillCount waits until the logs of held mail have the outcome that late events report.
func (d *drill) eventsStillCount(ctx context.Context, logs []string) error {
	left, shown := logs, client.Log{}
	err := poll(ctx, d.mail.bound(patience), "late events count", func() (bool, error) {
		for len(left) > 0 {
			var err error
			shown, err = d.user.client.Log(ctx, left[0])
			// One address in a hundred bounces, which is an event, too.
			bounced := shown.Reason == string(models.MailboxInvalid)
			if err != nil || shown.State != client.Delivered && !bounced {
				return false, err
			}
			if n := len(d.sim.copiesOf(left[0])); n != 1 {
				return false, fmt.Errorf("%d copies of %s", n, left[0])
			}
			left = left[1:]
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %d of %d do not, such as %+v", err, len(left), len(logs), shown)
	}
	return nil
}

// heldEarly waits until mail that a provider accepted is held before its evidence window ends by the right clock. It
// returns the logs.
func (d *drill) heldEarly(ctx context.Context) (early []string, err error) {
	err = poll(ctx, d.mail.bound(patience), "a worker ends a window too soon", func() (bool, error) {
		for _, b := range d.mail.all() {
			shown, err := d.user.batch(ctx, b.id)
			if err != nil || shown.Counts.Failed == 0 {
				continue
			}
			logs, err := d.user.logs(ctx, b.id)
			if err != nil {
				return false, err
			}
			for _, l := range logs {
				if l.State != client.Failed || l.Reason != string(models.OutcomeUnknown) {
					continue
				}
				for _, c := range d.sim.copiesOf(l.ID) {
					if time.Since(c.At) < shortWindow {
						early = append(early, l.ID)
					}
				}
			}
		}
		return len(early) > 0, nil
	})
	return early, err
}

// entranceClock gives API and webhooks a wrong clock.
func entranceClock(exe string, off time.Duration) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		right := slices.Clone(d.servers.others[0].env)
		if err := setClock(ctx, &d.servers.others[0], exe, off); err != nil {
			return err
		}
		d.broken()
		began := time.Now()
		if err := d.roughTimes(ctx); err != nil {
			return err
		}
		if err := d.stopWithWrongClock(ctx); err != nil {
			return err
		}
		all := d.mail.all()
		last := all[len(all)-1]
		if got := last.id.Time().Sub(last.at); got-off < -time.Minute || got-off > time.Minute {
			return fmt.Errorf("a batch accepted by the wrong clock is %s off", got)
		}
		wrong := last.id.Time().Sub(last.at).Round(time.Second)
		d.say("after %.1f s a batch is stamped %s off", time.Since(began).Seconds(), wrong)
		entrance := d.servers.others[0]
		entrance.stop()
		var err error
		if d.servers.others[0], err = d.environment.start(ctx, entrance.addr, right, entrance.args...); err != nil {
			return err
		}
		d.healed()
		return d.sim.limits()
	}
}

// roughTimes has a provider fail in several ways, one after the other: it refuses mail, asks to wait until a time, and
// never answers.
func (d *drill) roughTimes(ctx context.Context) error {
	for _, f := range []simulator.Fault{
		{Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable},
		{Mode: simulator.ModeRate, RetryAfter: time.Second},
		{Mode: simulator.ModeHangAfterBody},
	} {
		f.Account, f.Times = "sg", 10
		d.sim.Inject(f)
		began := time.Now()
		goal := d.sim.taken("mg") + int64(d.mail.recipients/30)
		err := d.until(ctx, "mail is sent through the other provider", func() bool {
			return d.sim.taken("mg") >= goal || len(d.sim.Faults()) == 0
		})
		if err != nil {
			return err
		}
		d.say("%s: mail went on after %.1f s", f.Mode, time.Since(began).Seconds())
		d.sim.ClearAll("")
	}
	return d.flows(ctx, time.Now(), d.sim.taken("")+int64(d.mail.recipients/20))
}

// attempted returns an error unless a ledger has an attempt with the wrong time.
func (d *drill) attempted(ctx context.Context, off time.Duration) error {
	all := d.mail.all()
	slices.Reverse(all)
	for _, b := range all {
		story, err := d.user.timeline(ctx, b.id.Log(1).String())
		if err != nil {
			return err
		}
		for _, m := range story {
			if wrong := m.At.Sub(b.at); m.What == "attempt" && wrong-off > -time.Minute && wrong-off < 2*time.Minute {
				d.say("an attempt is stamped %s off", wrong.Round(time.Second))
				return nil
			}
		}
	}
	return fmt.Errorf("no attempt carries the time of a clock that is %s off", off)
}

// limits returns an error if the providers got more mail than their limits allow.
func (p *providers) limits() error {
	for _, a := range p.pair.Names() {
		calls := p.CallLog(a)
		slices.SortFunc(calls, func(a, b simulator.Call) int { return a.At.Compare(b.At) })
		if over := excess(calls, clockRate, clockRate); over > clockRate {
			return fmt.Errorf("%s saw %.0f recipients more than limit x window + burst", a, over)
		}
	}
	return nil
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
