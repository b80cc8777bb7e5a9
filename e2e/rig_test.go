// Package e2e tests the whole program: it is built, run as processes and used as its users, its operators and its
// providers use it.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// program is the product, built for the tests.
var program string

func TestMain(m *testing.M) { os.Exit(testkit.Main(m, "..", &program)) }

// rig is the product, its simulated providers and a user.
type rig struct {
	t      *testing.T
	sim    *simulator.Simulator
	api    string // URL of the simulator
	addr   string
	env    []string
	client *client.Client
	app    *app.App // in this process; nil if it runs as a process of its own
}

func newRig(t *testing.T, b testkit.Backend, o simulator.Options, more ...string) *rig {
	t.Helper()
	return newRigOf(t, b, simulated.Usual, o, more...)
}

// newRigOf returns a rig with simulated providers of two kinds.
func newRigOf(t *testing.T, b testkit.Backend, pair simulated.Pair, o simulator.Options, more ...string) *rig {
	t.Helper()
	o.RecipientKey = simulated.RecipientKey
	if o.TimeScale == 0 {
		o.TimeScale = 120
	}
	r := &rig{t: t, sim: simulator.New(o), addr: freeAddr(t)}
	server := httptest.NewServer(r.sim)
	r.api = server.URL
	t.Cleanup(server.Close)
	t.Cleanup(r.sim.Close) // before the server: it ends hanging calls
	require.NoError(t, pair.Open(t.Context(), r.sim, "http://"+r.addr+"/webhooks/"))
	r.env = append(b.Env(t),
		"SAFEDELIVR_LISTEN="+r.addr,
		"SAFEDELIVR_METRICS_LISTEN=off",
		"SAFEDELIVR_LOG="+testLevel(),
		"SAFEDELIVR_QUOTAS_REQUESTS_PER_SECOND=0", // a test asks without pause
		"SAFEDELIVR_QUOTAS_REQUESTS_AT_ONCE=0",
		"SAFEDELIVR_TIMES_RECHECK=1s",
		"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=4s",
		"SAFEDELIVR_TIMES_START_BY=3s",
		"SAFEDELIVR_TIMES_BREAKER_OPEN=500ms")
	r.env = append(r.env, pair.Settings(server.URL, "CONCURRENCY=8", "TIMEOUT=2s")...)
	r.env = append(r.env, more...)
	r.command("migrate")
	r.command("user", "add", "tester")
	r.client = r.clientWith(strings.TrimSpace(r.command("key", "add", "tester")))
	return r
}

func (r *rig) clientWith(key string) *client.Client { return client.New("http://"+r.addr, key) }

// nextPort counts the ports that tests have got.
var nextPort atomic.Int64

// freeAddr returns an address that nothing listens on. Its port is below those that systems give to clients, so that no
// connection takes it before a process listens, or while one is started again.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 10_000 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+(int64(os.Getpid())*97+nextPort.Add(1))%10_000)
		if l, err := net.Listen("tcp", addr); err == nil {
			require.NoError(t, l.Close())
			return addr
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

// testLevel returns how much of the product's log the tests show.
func testLevel() string {
	if l := os.Getenv("SAFEDELIVR_TEST_LOG"); l != "" {
		return l
	}
	return "error"
}

// environ returns the environment of the product without the settings of the person who runs the tests.
func (r *rig) environ(more ...string) (out []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, config.Prefix) || strings.HasPrefix(v, config.Prefix+"TEST_") {
			out = append(out, v)
		}
	}
	return append(append(out, r.env...), more...)
}

// run runs a command of the product.
func (r *rig) run(args ...string) (out, errs string, err error) {
	cmd := exec.Command(program, args...) //nolint:gosec // built for the tests
	cmd.Env = r.environ()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// command runs a command, which must succeed, and returns what it printed.
func (r *rig) command(args ...string) string {
	r.t.Helper()
	out, errs, err := r.run(args...)
	require.NoError(r.t, err, "%v: %s%s", args, errs, out)
	return out
}

// commandFails runs a command, which must fail, and returns its error.
func (r *rig) commandFails(args ...string) string {
	r.t.Helper()
	_, errs, err := r.run(args...)
	require.Error(r.t, err, args)
	return errs
}

// serveHere runs the product in this process.
func (r *rig) serveHere() {
	r.t.Helper()
	cfg, err := config.Load("", r.env)
	require.NoError(r.t, err)
	log := slog.New(slog.NewTextHandler(testkit.Log{T: r.t}, &slog.HandlerOptions{Level: slog.LevelError}))
	ctx, cancel := context.WithCancel(context.Background())
	r.app, err = app.New(ctx, &cfg, log)
	require.NoError(r.t, err)
	done := make(chan error, 1)
	go func() { done <- r.app.Serve(ctx) }()
	var once sync.Once
	r.t.Cleanup(func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("serve: %v", err)
			}
		})
	})
}

// process is the product as a process of its own.
type process struct {
	cmd *exec.Cmd
	out *testkit.Output
}

// start runs the product as a process and waits until it is ready.
func (r *rig) start(addr string, more []string, args ...string) *process {
	r.t.Helper()
	return r.startProgram(program, addr, more, args...)
}

// refused is what a process prints that does not start.
const refused = "the configuration has mistakes"

func (r *rig) startProgram(program, addr string, more []string, args ...string) *process {
	r.t.Helper()
	p := &process{cmd: exec.Command(program, args...), out: &testkit.Output{}} //nolint:gosec // built for the tests
	p.cmd.Env = r.environ(append(more, "SAFEDELIVR_LISTEN="+addr)...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	require.NoError(r.t, p.cmd.Start())
	r.t.Cleanup(func() {
		p.kill()
		if r.t.Failed() {
			r.t.Logf("output of %v:\n%s", args, p.out.String())
		}
	})
	c := client.New("http://"+addr, "")
	require.Eventually(r.t, func() bool {
		ready, err := c.Readiness(context.Background())
		return err == nil && ready.Ready() || strings.Contains(p.out.String(), refused)
	}, testkit.Patience, 20*time.Millisecond, "the process is not ready")
	require.NotContains(r.t, p.out.String(), refused)
	return p
}

// kill ends the process at once, as kill -9 does.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// mail is a batch to send.
type mail struct {
	n         int
	address   func(i int) string // nil: plainAddress
	providers []string
	lane      client.Lane
}

func plainAddress(i int) string { return fmt.Sprintf("user%d@demo.test", i) }

func (m *mail) batch() client.NewBatch {
	return client.NewBatch{
		From:      "Test <test@demo.test>",
		Subject:   "Hello {{first}}",
		HTML:      "<p>{{first}}</p>",
		Text:      "{{first}}",
		Providers: m.providers,
		Lane:      m.lane,
	}
}

func (m *mail) recipients(yield func(client.Recipient) bool) {
	address := m.address
	if address == nil {
		address = plainAddress
	}
	for i := range m.n {
		if !yield(client.Recipient{Email: address(i), Vars: map[string]any{"first": fmt.Sprintf("P%d", i)}}) {
			return
		}
	}
}

// post has a batch accepted.
func (r *rig) post(m mail) models.ID {
	r.t.Helper()
	accepted, err := r.client.StreamBatch(context.Background(), m.batch(), m.recipients)
	require.NoError(r.t, err)
	return r.id(accepted.ID)
}

func (r *rig) id(text string) models.ID {
	r.t.Helper()
	id, err := models.ParseBatchID(text)
	require.NoError(r.t, err)
	return id
}

func (r *rig) batch(id models.ID) client.Batch {
	r.t.Helper()
	b, err := r.client.Batch(context.Background(), id.String())
	require.NoError(r.t, err)
	require.True(r.t, balanced(&b.Counts), "sums add up at every moment: %+v", b.Counts)
	return b
}

// balanced reports whether the states add up.
func balanced(c *client.Counts) bool {
	return c.Accepted == c.Queued+c.Sent+c.Delivered+c.Failed+c.Cancelled
}

// done waits until every log of a batch has a final state.
func (r *rig) done(id models.ID) client.Batch {
	r.t.Helper()
	var b client.Batch
	end := time.Now().Add(testkit.Patience)
	for b = r.batch(id); b.State != client.BatchDone; b = r.batch(id) {
		if time.Now().After(end) {
			stats := [2]simulator.Stats{r.sim.Stats("sg"), r.sim.Stats("mg")}
			require.FailNow(r.t, "the batch does not end", "%+v\n%+v\n%s", b.Counts, stats, r.oneOpen(id))
		}
		time.Sleep(50 * time.Millisecond) // between requests
	}
	return b
}

// oneOpen returns the log of a recipient whose mail is still queued or sent.
func (r *rig) oneOpen(id models.ID) string {
	r.t.Helper()
	for _, l := range append(r.logs(id, client.Queued), r.logs(id, client.Sent)...) {
		whole, err := r.client.Log(context.Background(), l.ID)
		require.NoError(r.t, err)
		text, err := json.MarshalIndent(whole, "", "  ")
		require.NoError(r.t, err)
		return string(text)
	}
	return "none is queued"
}

// logs returns the logs of a batch in a state, or all of them.
func (r *rig) logs(id models.ID, state client.State) (out []client.Log) {
	r.t.Helper()
	for l, err := range r.client.Logs(context.Background(), id.String(), client.LogOptions{State: state}) {
		require.NoError(r.t, err)
		out = append(out, l)
	}
	return out
}

// copies counts the copies per log that the providers keep, and those of them that were delivered.
func (r *rig) copies() (all, delivered map[string]int) {
	all, delivered = map[string]int{}, map[string]int{}
	r.sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			all[id] += n
		}
	})
	for id, n := range all {
		if n == 1 {
			delivered[id] = 1 // it does not matter here whether it was
			continue
		}
		for _, c := range r.sim.Copies(id) {
			if c.Outcome == "deliver" {
				delivered[id]++
			}
		}
	}
	return all, delivered
}

// exactlyOnce requires that every log has exactly one copy, or says that its outcome is unknown and has at most one. It
// returns how many of them are unknown.
func (r *rig) exactlyOnce(id models.ID, recipients int) (unknown int) {
	r.t.Helper()
	unknown, withCopy := r.oncePerLog(id, recipients)
	require.LessOrEqual(r.t, withCopy, recipients)
	return unknown
}

// oncePerLog is exactlyOnce where other batches were sent, too. withCopy is the number of logs with a copy of all
// batches.
func (r *rig) oncePerLog(id models.ID, recipients int) (unknown, withCopy int) {
	r.t.Helper()
	all, delivered := r.copies()
	logs := r.logs(id, "")
	require.Len(r.t, logs, recipients)
	for _, l := range logs {
		if l.State == client.Failed && l.Reason == string(models.OutcomeUnknown) {
			unknown++
			require.LessOrEqual(r.t, all[l.ID], 1, "doubled: %+v", l)
			continue
		}
		require.LessOrEqual(r.t, delivered[l.ID], 1, "doubled: %+v", l)
		require.GreaterOrEqual(r.t, all[l.ID], 1, "lost: %+v", l)
	}
	return unknown, len(all)
}

// statsAgree waits until the stats of the user equal a recount from the logs of batches. Events may still arrive, so
// the recount is repeated.
func (r *rig) statsAgree(ids ...models.ID) {
	r.t.Helper()
	var got, want client.Counts
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); {
		want = r.recount(ids)
		for range 30 {
			stats, err := r.client.GetStats(context.Background(), "", "", "", "")
			require.NoError(r.t, err)
			if got = stats.Totals; sameStates(&got, &want) {
				return
			}
			time.Sleep(100 * time.Millisecond) // between requests
		}
	}
	require.FailNow(r.t, "the stats do not equal a recount", "stats %+v\nrecount %+v", got, want)
}

// recount counts the logs of batches.
func (r *rig) recount(ids []models.ID) (c client.Counts) {
	for _, id := range ids {
		for _, l := range r.logs(id, "") {
			c.Accepted++
			switch l.State {
			case client.Queued:
				c.Queued++
			case client.Sent:
				c.Sent++
			case client.Delivered:
				c.Delivered++
			case client.Failed:
				c.Failed++
			case client.Cancelled:
				c.Cancelled++
			}
		}
	}
	return c
}

// sameStates reports whether as many logs are in each state.
func sameStates(a, b *client.Counts) bool {
	return a.Accepted == b.Accepted && a.Queued == b.Queued && a.Sent == b.Sent && a.Delivered == b.Delivered &&
		a.Failed == b.Failed && a.Cancelled == b.Cancelled
}
