package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// faultSeed is that of everything random in the fault suite.
const faultSeed = 20_260_101

// long reports whether the suite runs at full size: scripts/test --long.
func long() bool { return os.Getenv("SAFEDELIVR_TEST_LONG") != "" }

// kills is how often a process is killed at random on each backend.
func kills() int {
	if long() {
		return 200
	}
	return 20
}

// hardScenarios are those of the suite beside the ones that everybody rehearses:
// they take longer, or trouble servers that others may use.
func hardScenarios() []scenario {
	return []scenario{
		{name: fmt.Sprintf("killed-%d-times", kills()), story: "kill -9 of whole processes and of single roles at random points", apart: true,
			longer: time.Duration(kills()) * 10 * time.Second, holds: callsCutOff, strike: killedOften(kills())},
		{name: "every-fault", story: "every fault of the simulated providers, one after the other", longer: 2 * time.Minute,
			holds: answersWithheld | eventsWithheld, mayFail: explained, settings: soonBack, strike: everyFault},
		{name: "faults-mixed", story: "faults of the simulated providers at random, several at a time", longer: 2 * time.Minute,
			holds: answersWithheld | eventsWithheld, mayFail: explained, settings: soonBack, strike: mixedFaults},
		{name: "webhooks-chaos", story: "events doubled, shuffled, late, forged and cut off at the same time", events: true, scale: 3600,
			settings: []string{"SAFEDELIVR_TIMES_FINAL_EVENT=20s"}, strike: webhookChaos},
		{name: "broker-half-open", story: "connections to RabbitMQ stand, and nothing comes through", needs: realBroker, strike: silent((*drill).brokerGate, allLost, brokerMissed)},
		{name: "store-answers-lost", story: "Cassandra does what it is asked, and its answers do not come", needs: realStore, holds: appendsLost,
			strike: silent((*drill).storeGate, answersLost, storeMissed)},
		{name: "disk-full", story: "the embedded store cannot write", needs: ownStore, strike: diskFull},
	}
}

// soonBack lets providers that faults have shut take mail again soon, and nobody wait
// long for events that never come: there are many faults.
var soonBack = []string{"SAFEDELIVR_TIMES_HOLD=500ms", "SAFEDELIVR_TIMES_BREAKER_OPEN=200ms", "SAFEDELIVR_TIMES_FINAL_EVENT=20s"}

// loneScenarios trouble the servers themselves, so that nothing else may use
// them meanwhile, or give orders that are obeyed within a second, for which nothing
// else may keep the machine busy.
func loneScenarios() []scenario {
	out := []scenario{
		{name: "stopped", story: "a batch is stopped, the user paused, each provider switched off, a domain blocked, while mail flows; all is lifted again",
			apart: true, longer: 4 * time.Minute, settings: slowCalls, strike: stopped},
		{name: "broker-restarted", story: "RabbitMQ is stopped and started", needs: realBroker, strike: serverAway(
			func(ctx context.Context) error { return services(ctx, "rabbitmqctl", "stop_app") },
			func(ctx context.Context) error { return services(ctx, "rabbitmqctl", "start_app") }, brokerMissed)},
		{name: "broker-memory-alarm", story: "RabbitMQ blocks all who publish", needs: realBroker, strike: serverAway(
			func(ctx context.Context) error {
				return services(ctx, "rabbitmqctl", "set_vm_memory_high_watermark", "0")
			},
			func(ctx context.Context) error {
				return services(ctx, "rabbitmqctl", "set_vm_memory_high_watermark", "0.4")
			}, brokerMissed)},
		{name: "store-frozen", story: "SIGSTOP of Cassandra, then SIGCONT", needs: realStore, holds: appendsLost, strike: storeFrozen},
	}
	if long() {
		out = append(out, scenario{name: "store-restarted", story: "Cassandra is stopped and started", needs: realStore, holds: appendsLost, strike: serverAway(
			func(ctx context.Context) error { return services(ctx, "restart", "cassandra") },
			func(context.Context) error { return nil }, storeMissed)})
	}
	return out
}

// TestFaults rehearses everything: what users can, and what is harder, with
// thousands of recipients each. Nothing may be lost or doubled, and all sums add
// up.
func TestFaults(t *testing.T) {
	t.Setenv(childMark, "1") // the servers are this program
	onBackends(t, func(t *testing.T, b backend) {
		c := &cli{streams: streams{out: testLog{t}, err: testLog{t}}, environ: b.env(t)}
		set, err := c.setUp()
		require.NoError(t, err)
		r := &rehearsal{c: c, o: rehearseOptions{recipients: 2_000, parallel: 4, seed: faultSeed}, set: set, began: time.Now(), say: testLog{t}}
		if long() {
			r.o.recipients = 20_000
		}
		only := os.Getenv("SAFEDELIVR_TEST_ONLY")
		var results []result
		var left error
		for parallel, list := range map[int][]scenario{4: spread(hardScenarios(), scenarios), 1: loneScenarios()} {
			r.o.parallel = parallel
			var todo []*scenario
			for i := range list {
				if only == "" || strings.Contains(","+only+",", ","+list[i].name+",") {
					todo = append(todo, &list[i])
				}
			}
			some, err := r.all(context.Background(), todo)
			results, left = append(results, some...), errors.Join(left, err)
		}
		var table bytes.Buffer
		out := rehearsed{Seed: faultSeed, Results: results, Seconds: round(time.Since(r.began))}
		require.NoError(t, out.print(&table))
		t.Log("\n" + table.String())
		report(t, b.name+table.String()+"\n")
		require.NoError(t, left)
		for i := range results {
			require.True(t, results[i].good(), "%s: %s", results[i].Name, results[i].said())
		}
	})
}

// spread puts each of some at equal distances among many, so that those that ask
// most of the servers do not all run at once.
func spread(some, many []scenario) (out []scenario) {
	for i := range some {
		out = append(append(out, some[i]), many[i*len(many)/len(some):(i+1)*len(many)/len(some)]...)
	}
	return out
}

// report adds to the file that scripts/test shows.
func report(t *testing.T, text string) {
	t.Helper()
	path := os.Getenv("SAFEDELIVR_TEST_REPORT")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// killedOften kills processes at random while mail is posted.
func killedOften(times int) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		d.broken()
		for range times {
			if err := d.post(ctx, 200); err != nil {
				return err
			}
			goal := d.taken("") + d.rnd.Int64N(200)
			if err := d.until(ctx, "mail goes out", func() bool { return d.taken("") >= goal || d.quiet() }); err != nil {
				return err
			}
			all := []**process{&d.worker}
			for i := range d.others {
				all = append(all, &d.others[i])
			}
			victim := all[d.rnd.IntN(len(all))]
			d.kill(*victim)
			var err error
			if *victim, err = (*victim).again(ctx); err != nil {
				return err
			}
		}
		d.mended()
		return nil
	}
}

// providerFaults is every fault of the simulators, with the answers that stand
// for a class each.
func providerFaults() []simulator.Fault {
	var out []simulator.Fault
	for _, status := range []int{400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504} {
		out = append(out, simulator.Fault{Mode: simulator.ModeStatus, Status: status})
	}
	out = append(out, simulator.Fault{Mode: simulator.ModeStatus, Status: 500, Store: true},
		simulator.Fault{Mode: simulator.ModeRate, RetryAfter: time.Second},
		simulator.Fault{Mode: simulator.ModeDelay, Delay: time.Second},
		simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: 2 * time.Second},
		simulator.Fault{Mode: simulator.ModeOutcome + ":blocked"}, simulator.Fault{Mode: simulator.ModeOutcome + ":defer-then-deliver"},
		simulator.Fault{Mode: simulator.ModeSuspend, Release: true})
	for _, mode := range []string{simulator.ModeGarbage, simulator.ModeHang, simulator.ModeRefuse, simulator.ModeCredits, simulator.ModeUnverified,
		simulator.ModeBlocked, simulator.ModeNotAllowed, simulator.ModeLargeBatch, simulator.ModeTooLarge, simulator.ModeCloseUnread,
		simulator.ModeHangAfterBody, simulator.ModeAcceptThenClose, simulator.ModeTruncate, simulator.ModeEventsOff, simulator.ModeAsyncBounce,
		simulator.ModeEventsDuplicate, simulator.ModeEventsShuffle, simulator.ModeBadSignature} {
		out = append(out, simulator.Fault{Mode: mode})
	}
	return out
}

// faultMails is how many mails are posted at a time until they have met a fault:
// more would only wait behind it.
const faultMails = 40

// faultPause is how long nothing more is posted while mail is on its way to them.
const faultPause = 200 * time.Millisecond

// everyFault has each fault meet some requests of a provider, one after the
// other.
func everyFault(ctx context.Context, d *drill) error {
	d.broken()
	for _, f := range providerFaults() {
		f.Account, f.Times = drillProviders[d.rnd.IntN(2)], 3
		if err := d.faults(ctx, f); err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// mixedFaults has several faults meet requests at random.
func mixedFaults(ctx context.Context, d *drill) error {
	d.broken()
	list := providerFaults()
	for range 6 {
		var some []simulator.Fault
		for range 5 {
			f := list[d.rnd.IntN(len(list))]
			f.Times, f.Share = 3+d.rnd.IntN(5), 0.2+0.6*d.rnd.Float64()
			if d.rnd.IntN(3) > 0 {
				f.Account = drillProviders[d.rnd.IntN(2)]
			}
			some = append(some, f)
		}
		if err := d.faults(ctx, some...); err != nil {
			return err
		}
	}
	d.mended()
	return nil
}

// faults injects faults and posts mail until they are used up.
func (d *drill) faults(ctx context.Context, list ...simulator.Fault) error {
	names := ""
	for _, f := range list {
		d.sim.Inject(f)
		names += " " + f.Mode
	}
	for len(d.sim.Faults()) > 0 {
		if err := d.post(ctx, faultMails); err != nil {
			return fmt.Errorf("%s: %w", names, err)
		}
		met := d.sim.Stats("").Calls + faultMails/drillCall
		if err := d.until(ctx, "the mail meets"+names, func() bool { return d.sim.Stats("").Calls >= met || len(d.sim.Faults()) == 0 }); err != nil {
			return err
		}
		// A provider that faults have shut takes a mail now and then: more do not help.
		for end := time.Now().Add(faultPause); len(d.sim.Faults()) > 0 && time.Now().Before(end); {
			if err := idle(ctx, pollLeast); err != nil {
				return err
			}
		}
	}
	d.sim.ClearAll("") // lets go of what they held back
	return nil
}

// webhookChaos disturbs events in every way at once, and cuts the door off for a
// while.
func webhookChaos(ctx context.Context, d *drill) error {
	for _, f := range []simulator.Fault{
		{Mode: simulator.ModeEventsDuplicate}, {Mode: simulator.ModeEventsShuffle},
		{Mode: simulator.ModeEventsDelay, Delay: 6 * time.Second, Pattern: "*7@rehearse.test"}, // six simulated hours
	} {
		d.sim.Inject(f)
	}
	before := d.sim.Stats("")
	d.broken()
	if err := d.post(ctx, d.recipients/4); err != nil {
		return err
	}
	refused, taken, err := d.forge(ctx)
	if err != nil {
		return err
	}
	if taken > 0 || refused == 0 {
		d.res.wrong("of %d forged posts %d were not refused", refused+taken, taken)
	}
	err = d.until(ctx, "events are disturbed in every way", func() bool {
		now := d.sim.Stats("")
		for _, n := range []func(*simulator.Stats) int64{doubledEvents, overtakenEvents, lateEvents} {
			if n(&now) < n(&before)+20 {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	nobody, err := d.place.addresses.next(ctx)
	if err != nil {
		return err
	}
	for _, a := range drillProviders {
		d.sim.SetWebhookURL(a, "http://"+nobody+"/webhooks/"+a)
	}
	failed := d.sim.Stats("").PostsByStatus[0]
	err = d.until(ctx, "posts found nobody", func() bool { return d.sim.Stats("").PostsByStatus[0] >= failed+20 })
	for _, a := range drillProviders {
		d.sim.SetWebhookURL(a, "http://"+d.addr+"/webhooks/"+a)
	}
	d.sim.ClearAll("")
	d.mended()
	return err
}

// silent has a gate swallow what is said until the servers were missed.
func silent(gate func(*drill) *gate, s silence, missed func(context.Context, *drill) error) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		g := gate(d)
		g.hush(s)
		d.broken()
		err := missed(ctx, d)
		g.speak()
		d.mended()
		return err
	}
}

// serverAway stops a server and starts it again.
func serverAway(stop, start func(context.Context) error, missed func(context.Context, *drill) error) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		d.broken()
		err := stop(ctx)
		if err == nil {
			err = missed(ctx, d)
		}
		if serr := start(context.WithoutCancel(ctx)); err == nil {
			err = serr
		}
		d.mended()
		return err
	}
}

// storeFrozen freezes the server of Cassandra.
func storeFrozen(ctx context.Context, d *drill) error {
	out, err := exec.CommandContext(ctx, "../../scripts/services", "pid", "cassandra").Output()
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	server, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return serverAway(func(context.Context) error { return freeze(server) }, func(context.Context) error { return wake(server) }, storeMissed)(ctx, d)
}

func services(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "../../scripts/services", args...).CombinedOutput(); err != nil { //nolint:gosec // of this suite
		return fmt.Errorf("scripts/services %v: %w: %s", args, err, out)
	}
	return nil
}

// offered posts a small batch once and returns the status and what was answered.
func (d *drill) offered(ctx context.Context) (int, string, error) {
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.client.base+"/v1/batches",
		strings.NewReader(`{"from":"a@rehearse.test","subject":"s","text":"t","to":["full@rehearse.test"]}`))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+d.client.key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return 0, "", err
	}
	if resp.StatusCode == http.StatusAccepted {
		var accepted struct {
			ID models.ID `json:"id"`
		}
		if err := json.Unmarshal(b.Bytes(), &accepted); err != nil {
			return 0, "", err
		}
		d.mu.Lock()
		d.batches = append(d.batches, posted{accepted.ID, 1, began})
		d.mu.Unlock()
	}
	return resp.StatusCode, b.String(), nil
}
