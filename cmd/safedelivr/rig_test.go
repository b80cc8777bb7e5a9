package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// childMark makes the test binary run the product instead of the tests, so that
// whole processes can be killed.
const childMark = "SAFEDELIVR_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, nil)) //nolint:gocritic // nothing is left to defer
	}
	os.Exit(m.Run())
}

// backend is a set of services the product runs on.
type backend struct {
	name string
	env  func(t *testing.T) []string // its settings, with names of their own
	real bool
}

// backends lists the embedded one and the real servers. Where those are not
// started, their tests skip and say so; scripts/test starts them and counts a
// skip as a failure.
func backends() []backend {
	return []backend{
		{name: "embedded", env: func(t *testing.T) []string { return []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir()} }},
		{name: "rabbitmq+cassandra", real: true, env: func(t *testing.T) []string {
			amqp, hosts := os.Getenv("SAFEDELIVR_TEST_AMQP_URL"), os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
			if amqp == "" || hosts == "" {
				t.Skip("needs RabbitMQ and Cassandra: start them with scripts/services up and load the environment it prints")
			}
			id := models.NewUserID()
			return []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir(), "SAFEDELIVR_AMQP_URL=" + amqp, "SAFEDELIVR_AMQP_PREFIX=t" + id,
				"SAFEDELIVR_CASSANDRA_HOSTS=" + hosts, "SAFEDELIVR_CASSANDRA_KEYSPACE=t" + id}
		}},
	}
}

// onBackends runs a test on every backend, one after the other: they share two
// cores and count what the simulators saw.
func onBackends(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) { f(t, b) })
	}
}

// patience bounds the wait for a state; reaching it is a failure.
const patience = 4 * time.Minute

// rig is the product, its simulated providers, and a user.
type rig struct {
	t      *testing.T
	sim    *simulator.Simulator
	simURL string
	addr   string
	env    []string
	client *demoClient
	app    *app // in this process; nil when it runs as a child
	stop   func()
}

func newRig(t *testing.T, b backend, o simulator.Options, more ...string) *rig {
	t.Helper()
	o.RecipientKey = recipientKey
	if o.TimeScale == 0 {
		o.TimeScale = 120
	}
	r := &rig{t: t, sim: simulator.New(o), addr: freeAddr(t)}
	server := httptest.NewServer(r.sim)
	t.Cleanup(server.Close)
	t.Cleanup(r.sim.Close) // before the server: it ends hanging calls
	r.simURL = server.URL
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: simulator.SendGrid, Key: demoKey, SigningKey: simulatorKey, WebhookURL: "http://" + r.addr + "/webhooks/sg"},
		{Name: "mg", Kind: simulator.Mailgun, Key: demoKey, Domain: demoDomain, SigningKey: demoSigning, WebhookURL: "http://" + r.addr + "/webhooks/mg"},
	} {
		require.NoError(t, r.sim.AddAccount(a))
	}
	r.env = append(b.env(t),
		"SAFEDELIVR_LISTEN="+r.addr, "SAFEDELIVR_LOG="+testLevel(),
		"SAFEDELIVR_TIMES_RECHECK=1s", "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=4s", "SAFEDELIVR_TIMES_START_BY=3s", "SAFEDELIVR_TIMES_BREAKER_OPEN=500ms",
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid", "SAFEDELIVR_PROVIDERS_SG_API_KEY="+demoKey, "SAFEDELIVR_PROVIDERS_SG_BASE_URL="+r.simURL+"/sg",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY="+simulatorPublicKey, "SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=8", "SAFEDELIVR_PROVIDERS_SG_TIMEOUT=2s",
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun", "SAFEDELIVR_PROVIDERS_MG_API_KEY="+demoKey, "SAFEDELIVR_PROVIDERS_MG_BASE_URL="+r.simURL+"/mg",
		"SAFEDELIVR_PROVIDERS_MG_DOMAIN="+demoDomain, "SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY="+demoSigning, "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=8",
		"SAFEDELIVR_PROVIDERS_MG_TIMEOUT=2s")
	r.env = append(r.env, more...)
	r.command("migrate")
	r.command("user", "add", "tester")
	r.client = &demoClient{base: "http://" + r.addr, key: strings.TrimSpace(r.command("key", "add", "tester"))}
	return r
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// command runs a command of the product and returns what it printed.
func (r *rig) command(args ...string) string {
	r.t.Helper()
	var out, errs bytes.Buffer
	code := run(context.Background(), args, streams{out: &out, err: &errs}, r.env)
	require.Zero(r.t, code, "%v: %s", args, errs.String())
	return out.String()
}

// serveHere runs the product in this process.
func (r *rig) serveHere() {
	r.t.Helper()
	cfg, err := config.Load("", r.env)
	require.NoError(r.t, err)
	c := &cli{streams: streams{out: io.Discard, err: testLog{r.t}}}
	ctx, cancel := context.WithCancel(context.Background())
	r.app, err = newApp(ctx, &cfg, c.logger(&cfg))
	require.NoError(r.t, err)
	done := make(chan error, 1)
	go func() { done <- r.app.serve(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("serve: %v", err)
			}
		})
	}
	r.t.Cleanup(r.stop)
}

// testLog shows the product's log with the test's.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// child is the product as a process of its own.
type child struct {
	cmd *exec.Cmd
	out *output
}

// output collects what a process prints while the test reads it.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start runs the product as a child process and waits until it is ready.
func (r *rig) start(addr string, more []string, args ...string) *child {
	r.t.Helper()
	exe, err := os.Executable()
	require.NoError(r.t, err)
	c := &child{cmd: exec.Command(exe, args...), out: &output{}} //nolint:gosec // this test
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, config.Prefix) || strings.HasPrefix(v, config.Prefix+"TEST_") {
			c.cmd.Env = append(c.cmd.Env, v) // not the settings of whoever runs the tests
		}
	}
	c.cmd.Env = append(append(append(c.cmd.Env, r.env...), more...), childMark+"=1", "SAFEDELIVR_LISTEN="+addr)
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	require.NoError(r.t, c.cmd.Start())
	r.t.Cleanup(func() {
		c.kill()
		if r.t.Failed() {
			r.t.Logf("output of %v:\n%s", args, c.out.String())
		}
	})
	require.Eventually(r.t, func() bool {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "the process is not ready")
	return c
}

// kill ends the process at once, as kill -9 does.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// body streams a batch of n recipients.
func batchBody(n int, fields string, address func(int) string) io.Reader {
	r, w := io.Pipe()
	go func() {
		b := bufio.NewWriter(w)
		fmt.Fprintf(b, `{"from":"Test <test@demo.test>","subject":"Hello {{first}}","html":"<p>{{first}}</p>","text":"{{first}}"%s,"to":[`, fields)
		for i := range n {
			if i > 0 {
				_ = b.WriteByte(',')
			}
			fmt.Fprintf(b, `{"email":%q,"vars":{"first":"P%d"}}`, address(i), i)
		}
		_, _ = b.WriteString("]}")
		_ = w.CloseWithError(b.Flush())
	}()
	return r
}

func plainAddress(i int) string { return fmt.Sprintf("user%d@demo.test", i) }

func (r *rig) post(body io.Reader) models.ID {
	r.t.Helper()
	var accepted struct {
		ID models.ID `json:"id"`
	}
	require.NoError(r.t, r.client.do(context.Background(), http.MethodPost, "/v1/batches", body, http.StatusAccepted, &accepted))
	return accepted.ID
}

func (r *rig) get(path string, out any) {
	r.t.Helper()
	require.NoError(r.t, r.client.do(context.Background(), http.MethodGet, path, nil, http.StatusOK, out))
}

func (r *rig) batch(id models.ID) demoBatch {
	r.t.Helper()
	var b demoBatch
	r.get("/v1/batches/"+id.String(), &b)
	require.True(r.t, b.Counts.balanced(), "sums add up at every moment: %+v", b.Counts)
	return b
}

// done waits until every log of a batch has a final state.
func (r *rig) done(id models.ID) demoBatch {
	r.t.Helper()
	var b demoBatch
	end := time.Now().Add(patience)
	for b = r.batch(id); b.State != models.BatchDone; b = r.batch(id) {
		if time.Now().After(end) {
			stats := [2]simulator.Stats{r.sim.Stats("sg"), r.sim.Stats("mg")}
			require.FailNow(r.t, "the batch does not end", "%+v\n%+v", b.Counts, stats)
		}
		time.Sleep(50 * time.Millisecond) // between questions
	}
	return b
}

// logLine is what the tests read of a log.
type logLine struct {
	ID        models.ID       `json:"id"`
	Email     string          `json:"email"`
	State     models.State    `json:"state"`
	Reason    models.Reason   `json:"reason"`
	Providers map[string]bool `json:"providers"`
	Attempts  int             `json:"attempts"`
	MayDouble bool            `json:"possible_duplicate"`
}

// logs reads all logs of a batch page by page.
func (r *rig) logs(id models.ID, state string) []logLine {
	r.t.Helper()
	var out []logLine
	cursor := ""
	for {
		var page struct {
			Logs []logLine `json:"logs"`
			Next string    `json:"next_cursor"`
		}
		r.get(fmt.Sprintf("/v1/batches/%s/logs?limit=500&state=%s&cursor=%s", id, state, cursor), &page)
		out = append(out, page.Logs...)
		if cursor = page.Next; cursor == "" {
			return out
		}
	}
}

// copies counts the copies per log that the providers keep, and of those the
// ones that were delivered.
func (r *rig) copies() (all, delivered map[string]int) {
	all, delivered = map[string]int{}, map[string]int{}
	r.sim.EachCopy(func(id string, per map[string]int) {
		for _, n := range per {
			all[id] += n
		}
	})
	for id, n := range all {
		if n == 1 {
			delivered[id] = 1 // who delivered it does not matter here
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

// exactlyOnce asserts the promise: every log has exactly one copy, or it says
// that its outcome is unknown and has at most one.
func (r *rig) exactlyOnce(id models.ID, recipients int) (unknown int) {
	r.t.Helper()
	all, delivered := r.copies()
	logs := r.logs(id, "")
	require.Len(r.t, logs, recipients)
	for _, l := range logs {
		n := all[l.ID.String()]
		if l.State == models.Failed && l.Reason == models.OutcomeUnknown {
			unknown++
			require.LessOrEqual(r.t, n, 1, "doubled: %+v", l)
			continue
		}
		require.LessOrEqual(r.t, delivered[l.ID.String()], 1, "doubled: %+v", l)
		require.GreaterOrEqual(r.t, n, 1, "lost: %+v", l)
	}
	require.LessOrEqual(r.t, len(all), recipients)
	return unknown
}

// statsAgree waits until the stats of the user equal a recount from the logs of
// the given batches. Events may still come in, so the recount is repeated.
func (r *rig) statsAgree(ids ...models.ID) {
	r.t.Helper()
	var stats struct {
		Totals demoCounts `json:"totals"`
	}
	var want demoCounts
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		want = r.recount(ids)
		for range 30 {
			r.get("/v1/stats", &stats)
			if stats.Totals.equal(want) {
				return
			}
			time.Sleep(100 * time.Millisecond) // between questions
		}
	}
	require.FailNow(r.t, "the stats do not equal a recount", "stats %+v\nrecount %+v", stats.Totals, want)
}

// recount counts the logs of the given batches.
func (r *rig) recount(ids []models.ID) (c demoCounts) {
	for _, id := range ids {
		for _, l := range r.logs(id, "") {
			c.Accepted++
			switch l.State {
			case models.Queued:
				c.Queued++
			case models.Success:
				c.Success++
			case models.Failed:
				c.Failed++
			case models.Cancelled:
				c.Cancelled++
			}
		}
	}
	return c
}

// equal reports whether as many logs are in each state.
func (c demoCounts) equal(o demoCounts) bool {
	return c.Accepted == o.Accepted && c.Queued == o.Queued && c.Success == o.Success && c.Failed == o.Failed && c.Cancelled == o.Cancelled
}

func decode(t *testing.T, b []byte, out any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(b, out))
}

// testLevel is how much of the product's log the tests show.
func testLevel() string {
	if l := os.Getenv("SAFEDELIVR_TEST_LOG"); l != "" {
		return l
	}
	return "error"
}

// most returns by how much the calls in the worst window exceed limit x window
// + burst.
func most(calls []simulator.Call, limit, burst float64) float64 {
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
