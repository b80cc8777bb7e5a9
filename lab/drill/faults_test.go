package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// program is the product, built for the tests.
var program string

func TestMain(m *testing.M) { os.Exit(testkit.Main(m, "../..", &program)) }

// faultSeed is the seed of the fault suite.
const faultSeed = 20_260_101

// kills returns the number of random kills on each backend.
func kills() int {
	if testkit.Long() {
		return 200
	}
	return 20
}

// TestFaults runs all scenarios with thousands of recipients each. Nothing may be lost or doubled, and all sums must
// add up.
func TestFaults(t *testing.T) {
	for _, b := range testkit.Backends() {
		t.Run(b.Name, func(t *testing.T) {
			if !testkit.Full() { // the backends share no server, but there all of their scenarios need the processors
				t.Parallel()
			}
			faults(t, b)
		})
	}
}

func faults(t *testing.T, b testkit.Backend) {
	r := newTestRun(t, b.Env(t))
	atOnce := 4
	if b.Real {
		atOnce = 3
	}
	r.o.Recipients = testkit.Mails(1_000, 2_000)
	if testkit.Long() {
		r.o.Recipients = 20_000
	}
	var results []Result
	var left error
	for parallel, list := range map[int][]scenario{atOnce: spread(hardScenarios(), scenarios), 1: loneScenarios()} {
		r.o.Parallel = parallel
		var todo []*scenario
		for i := range list {
			if chosen(list[i].name) {
				todo = append(todo, &list[i])
			}
		}
		some, err := r.all(context.Background(), todo)
		results, left = append(results, some...), errors.Join(left, err)
	}
	r.show(t, b.Name, results)
	require.NoError(t, left)
	for i := range results {
		require.True(t, results[i].Good(), "%s: %s", results[i].Name, &results[i])
	}
}

// TestFaultsOfKinds runs the faults of a provider with each kind as the one that breaks, and each as the one that
// survives. It runs before a release.
func TestFaultsOfKinds(t *testing.T) {
	if !testkit.Full() {
		return // testing.md says so
	}
	kinds := simulated.Kinds()
	for i, first := range kinds {
		second := kinds[(i+1)%len(kinds)]
		t.Run(first+"/"+second, func(t *testing.T) {
			t.Parallel()
			r := newTestRun(t, testkit.Backends()[0].Env(t))
			pair, err := simulated.NewPair(first, second)
			require.NoError(t, err)
			r.setup.pair, r.o.Recipients, r.o.Parallel = pair, 1_000, 2
			var todo []*scenario
			for _, list := range [][]scenario{scenarios, hardScenarios()} {
				for k := range list {
					s := &list[k]
					ofKinds := s.breaks == 1 || s.name == "both-down" || s.name == "every-fault"
					if ofKinds && chosen(s.name) {
						todo = append(todo, s)
					}
				}
			}
			results, err := r.all(t.Context(), todo)
			require.NoError(t, err)
			r.show(t, first+", "+second, results)
			for i := range results {
				require.True(t, results[i].Good(), "%s: %s", results[i].Name, &results[i])
			}
		})
	}
}

// usual lists the scenarios of each test run. All others run before a release: scripts/test --full.
const usual = "worker-killed,provider-down,hang-after-body,broker-purged,store-frozen"

// chosen reports whether a scenario is to be run. SAFEDELIVR_TEST_ONLY lists scenarios, separated by commas.
func chosen(name string) bool {
	only := os.Getenv("SAFEDELIVR_TEST_ONLY")
	if only == "" && !testkit.Full() {
		only = usual
	}
	return only == "" || strings.Contains(","+only+",", ","+name+",")
}

// newTestRun returns a run on the services of some settings, with the program that was built for the tests.
func newTestRun(t *testing.T, environ []string) *run {
	t.Helper()
	cfg, err := config.Load("", environ)
	require.NoError(t, err)
	return newRun(Options{
		Config:     cfg,
		Program:    program,
		Recipients: 3_000,
		Parallel:   1,
		Seed:       faultSeed,
		Progress:   testkit.Log{T: t},
		Log:        slog.New(slog.NewTextHandler(testkit.Log{T: t}, &slog.HandlerOptions{Level: slog.LevelError})),
	})
}

// show logs the results as a table and adds it to the file that scripts/test prints.
func (r *run) show(t *testing.T, title string, results []Result) {
	t.Helper()
	var table bytes.Buffer
	out := r.report(results)
	require.NoError(t, out.Print(&table))
	t.Log("\n" + table.String())
	report(t, title+table.String()+"\n")
}

// spread distributes some evenly among many, so that the hardest scenarios do not run at the same time.
func spread(some, many []scenario) (out []scenario) {
	for i := range some {
		out = append(append(out, some[i]), many[i*len(many)/len(some):(i+1)*len(many)/len(some)]...)
	}
	return out
}

// report adds to the file that scripts/test prints.
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
			if err := d.mail.post(ctx, 200); err != nil {
				return err
			}
			goal := d.sim.taken("") + d.rnd.Int64N(200)
			if err := d.until(ctx, "mail is sent", func() bool { return d.sim.taken("") >= goal || d.quiet() }); err != nil {
				return err
			}
			all := []**process{&d.servers.worker}
			for i := range d.servers.others {
				all = append(all, &d.servers.others[i])
			}
			victim := all[d.rnd.IntN(len(all))]
			d.servers.kill(*victim)
			var err error
			if *victim, err = (*victim).again(ctx); err != nil {
				return err
			}
		}
		d.healed()
		return nil
	}
}

// providerFaults returns every fault of the simulator, and a status for each class of answers.
func providerFaults() []simulator.Fault {
	var out []simulator.Fault
	for _, status := range []int{400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504} {
		out = append(out, simulator.Fault{Mode: simulator.ModeStatus, Status: status})
	}
	out = append(out, simulator.Fault{Mode: simulator.ModeStatus, Status: 500, Store: true},
		simulator.Fault{Mode: simulator.ModeRate, RetryAfter: time.Second},
		simulator.Fault{Mode: simulator.ModeFull, RetryAfter: time.Second},
		simulator.Fault{Mode: simulator.ModeFull},
		simulator.Fault{Mode: simulator.ModeLargeBatch, Above: 2},
		simulator.Fault{Mode: simulator.ModeDelay, Delay: time.Second},
		simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: 2 * time.Second},
		simulator.Fault{Mode: simulator.ModeOutcome + ":blocked"},
		simulator.Fault{Mode: simulator.ModeOutcome + ":defer-then-deliver"},
		simulator.Fault{Mode: simulator.ModeSuspend, Release: true})
	for _, mode := range []string{
		simulator.ModeGarbage, simulator.ModeHang, simulator.ModeRefuse, simulator.ModeCredits, simulator.ModeUnverified,
		simulator.ModeBlocked, simulator.ModeNotAllowed, simulator.ModeLargeBatch, simulator.ModeTooLarge,
		simulator.ModeCloseUnread, simulator.ModeHangAfterBody, simulator.ModeAcceptThenClose, simulator.ModeTruncate,
		simulator.ModeEventsOff, simulator.ModeAsyncBounce, simulator.ModeEventsDuplicate, simulator.ModeEventsShuffle,
		simulator.ModeBadSignature,
	} {
		out = append(out, simulator.Fault{Mode: mode})
	}
	return out
}

// faultMails is the number of mails that are posted at a time until they have met a fault.
const faultMails = 40

// faultPause is the pause between posts while mail is being sent.
const faultPause = 200 * time.Millisecond

// reportedFaults are those after acceptance that only webhooks tell of.
var reportedFaults = []string{simulator.ModeOutcome + ":blocked", simulator.ModeEventsDuplicate,
	simulator.ModeEventsShuffle, simulator.ModeBadSignature}

// meeting returns the providers that can meet a fault. Servers that take mail by SMTP or LMTP have no
// webhooks, and what they accept counts as delivered. Their reply 4yz means that the mail was not stored (RFC 5321,
// 4.2.1). A call by LMTP has one recipient.
func (p *providers) meeting(f *simulator.Fault) []string {
	return slices.DeleteFunc(p.pair.Names(), func(name string) bool {
		single := slices.Contains(p.pair.Single(), name)
		return p.pair.Silent(name) && (f.Store || single && f.Above > 0 || slices.Contains(reportedFaults, f.Mode))
	})
}

// everyFault injects each fault into some requests of a provider, one after the other.
func everyFault(ctx context.Context, d *drill) error {
	d.broken()
	for _, f := range providerFaults() {
		names := d.sim.meeting(&f)
		if len(names) == 0 {
			continue
		}
		f.Account, f.Times = names[d.rnd.IntN(len(names))], 3
		if err := d.faults(ctx, f); err != nil {
			return err
		}
	}
	d.healed()
	return nil
}

// mixedFaults injects several faults at a time into requests at random.
func mixedFaults(ctx context.Context, d *drill) error {
	d.broken()
	list := providerFaults()
	for range 6 {
		var some []simulator.Fault
		for range 5 {
			f := list[d.rnd.IntN(len(list))]
			f.Times, f.Share = 3+d.rnd.IntN(5), 0.2+0.6*d.rnd.Float64()
			if d.rnd.IntN(3) > 0 {
				f.Account = d.sim.pair.Names()[d.rnd.IntN(2)]
			}
			some = append(some, f)
		}
		if err := d.faults(ctx, some...); err != nil {
			return err
		}
	}
	d.healed()
	return nil
}

// faults injects faults and posts mail until it has met them. Each time it goes to other addresses, because those
// whose mail bounces are suppressed.
func (d *drill) faults(ctx context.Context, list ...simulator.Fault) error {
	names := ""
	for _, f := range list {
		id := d.sim.Inject(f)
		if names += " " + f.Mode; f.Mode == simulator.ModeLargeBatch {
			d.sim.large = append(d.sim.large, id)
		}
	}
	for len(d.sim.left()) > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("not all of%s were met; left are %+v: %w", names, d.sim.left(), ctx.Err())
		}
		if err := d.mail.post(ctx, faultMails, fmt.Sprintf("fault%d.test", len(d.mail.all()))); err != nil {
			return fmt.Errorf("%s: %w", names, err)
		}
		met := d.sim.Stats("").Calls + faultMails/callSize
		err := d.until(ctx, "the mail meets"+names, func() bool {
			return d.sim.Stats("").Calls >= met || len(d.sim.left()) == 0
		})
		if err != nil {
			return err
		}
		// A suspended provider gets one mail now and then, however much is posted.
		for end := time.Now().Add(faultPause); len(d.sim.left()) > 0 && time.Now().Before(end); {
			if pause(ctx, pollLeast) != nil {
				break
			}
		}
	}
	d.sim.ClearAll("") // releases what they held back
	return nil
}

// left returns the faults that mail still has to meet. After a refusal of a large call the product makes smaller ones,
// so that a fault of large calls may never be met again.
func (p *providers) left() []simulator.Fault {
	left := p.Faults()
	smaller := slices.ContainsFunc(p.large, func(id string) bool {
		return p.Met(id) > 0 || !slices.ContainsFunc(left, func(f simulator.Fault) bool { return f.ID == id })
	})
	return slices.DeleteFunc(left, func(f simulator.Fault) bool { return smaller && f.Above > 0 })
}

// webhookChaos disturbs events in every way at once, and sends webhooks to a closed port for a while.
func webhookChaos(ctx context.Context, d *drill) error {
	for _, f := range []simulator.Fault{
		{Mode: simulator.ModeEventsDuplicate}, {Mode: simulator.ModeEventsShuffle},
		{Mode: simulator.ModeEventsDelay, Delay: 6 * time.Second, Pattern: "*7@rehearse.test"}, // six simulated hours
	} {
		d.sim.Inject(f)
	}
	before := d.sim.Stats("")
	d.broken()
	if err := d.mail.post(ctx, d.mail.recipients/4); err != nil {
		return err
	}
	if err := d.forge(ctx); err != nil {
		return err
	}
	err := d.until(ctx, "events are disturbed in every way", func() bool {
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
	closed, err := ownAddresses.next(ctx)
	if err != nil {
		return err
	}
	for _, a := range d.sim.pair.Names() {
		d.sim.SetWebhookURL(a, "http://"+closed+"/webhooks/"+a)
	}
	failed := d.sim.Stats("").PostsByStatus[0]
	err = d.until(ctx, "posts are not received", func() bool { return d.sim.Stats("").PostsByStatus[0] >= failed+20 })
	for _, a := range d.sim.pair.Names() {
		d.sim.SetWebhookURL(a, d.servers.hooks()+a)
	}
	d.sim.ClearAll("")
	d.healed()
	return err
}

// swallowed loses all data to and from the server that the scenario needs until that was noticed.
func swallowed(l tcpproxy.Loss, noticed noticed) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		p := d.servers.proxy
		p.Lose(l)
		d.broken()
		err := noticed(ctx, d)
		p.Recover()
		d.healed()
		return err
	}
}

// serverStopped stops a server until that was noticed, and starts it again.
func serverStopped(stop, start func(context.Context) error, noticed noticed) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		d.broken()
		err := stop(ctx)
		if err == nil {
			err = noticed(ctx, d)
		}
		if serr := start(context.WithoutCancel(ctx)); err == nil {
			err = serr
		}
		d.healed()
		return err
	}
}

// storeFrozen freezes all processes of the server of the store.
func storeFrozen(ctx context.Context, d *drill) error {
	var servers []*os.Process
	all := func(do func(*os.Process) error) error {
		var errs []error
		for _, server := range servers {
			if err := do(server); !errors.Is(err, os.ErrProcessDone) { // a connection of PostgreSQL has ended
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	stop := func(ctx context.Context) error {
		// PostgreSQL has a process for each connection, and opens none once its first process is frozen. So the second
		// list has all of them.
		for range 2 {
			list, err := serversOf(ctx, d.environment.store())
			if err != nil {
				return err
			}
			servers = list
			if err := all(freeze); err != nil {
				return err
			}
		}
		return nil
	}
	return serverStopped(stop, func(context.Context) error { return all(wake) }, storeUnavailable)(ctx, d)
}

// serversOf returns the processes of a server, the first one before those that it started.
func serversOf(ctx context.Context, name string) (out []*os.Process, err error) {
	list, err := exec.CommandContext(ctx, "../../scripts/services", "pids", name).Output()
	if err != nil {
		return nil, err
	}
	for _, field := range strings.Fields(string(list)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		server, err := os.FindProcess(pid)
		if err != nil {
			return nil, err
		}
		out = append(out, server)
	}
	return out, nil
}

// controlServices returns a function that runs scripts/services.
func controlServices(args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		//nolint:gosec // the arguments are those of this file
		out, err := exec.CommandContext(ctx, "../../scripts/services", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("scripts/services %v: %w: %s", args, err, out)
		}
		return nil
	}
}

// offer posts a batch of one mail once and returns the error of the API. It notes the batch if it is accepted.
func (t *traffic) offer(ctx context.Context) error {
	b := posted{n: 1, of: t.user, at: time.Now()}
	accepted, err := t.user.client.CreateBatch(ctx, t.newBatch(1))
	if err == nil {
		_, err = t.accepted(b, &accepted)
	}
	return err
}
