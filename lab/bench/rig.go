package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/smtp"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/postgres"
	"github.com/safedelivr/safedelivr/sqlite"
)

// patience limits every wait. A million recipients with all events take half an hour on Cassandra and two
// processors.
const patience = time.Hour

// backend is a set of services. place is a unique name on them.
type backend struct {
	name, title string
	env         func(dir, place string) []string
	openStore   func(ctx context.Context, dir, place string) (models.Store, error)
	clear       func(ctx context.Context, place string) error
}

// backends returns the embedded backend, and those whose servers run.
func backends() []*backend {
	list := []*backend{{
		name: "embedded", title: "embedded",
		env: func(dir, _ string) []string { return []string{"SAFEDELIVR_DATA_DIR=" + dir} },
		openStore: func(_ context.Context, dir, _ string) (models.Store, error) {
			return sqlite.Open(dir, sqlite.Options{})
		},
		clear: func(context.Context, string) error { return nil },
	}}
	if server := os.Getenv("SAFEDELIVR_TEST_POSTGRES_URL"); server != "" {
		list = append(list, &backend{
			name: "postgres", title: "PostgreSQL",
			env: func(dir, place string) []string {
				return []string{"SAFEDELIVR_DATA_DIR=" + dir, "SAFEDELIVR_STORE=" + server, "SAFEDELIVR_POSTGRES_SCHEMA=" + place}
			},
			openStore: func(ctx context.Context, _, place string) (models.Store, error) {
				return postgres.Open(ctx, postgres.Config{URL: server, Schema: place, Migrate: true})
			},
			clear: func(ctx context.Context, place string) error {
				return postgres.Drop(ctx, postgres.Config{URL: server, Schema: place})
			},
		})
	}
	amqp, hosts := os.Getenv("SAFEDELIVR_TEST_AMQP_URL"), os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
	if amqp == "" || hosts == "" {
		return list
	}
	return append(list, &backend{
		name: "real", title: "RabbitMQ + Cassandra",
		env: func(dir, place string) []string {
			return []string{
				"SAFEDELIVR_DATA_DIR=" + dir,
				"SAFEDELIVR_AMQP_URL=" + amqp,
				"SAFEDELIVR_AMQP_PREFIX=" + place,
				"SAFEDELIVR_CASSANDRA_HOSTS=" + hosts,
				"SAFEDELIVR_CASSANDRA_KEYSPACE=" + place,
			}
		},
		openStore: func(ctx context.Context, _, place string) (models.Store, error) {
			return cassandra.Open(ctx, cassandra.Config{Hosts: strings.Split(hosts, ","), Keyspace: place, Migrate: true})
		},
		// Data of one measurement must not slow down the next.
		clear: func(ctx context.Context, place string) error {
			return cassandra.Drop(ctx, cassandra.Config{Hosts: strings.Split(hosts, ","), Keyspace: place})
		},
	})
}

// rigOptions are the settings of a measurement.
type rigOptions struct {
	latency     time.Duration // answer time of the providers
	concurrency int           // calls at once per provider
	webhooks    bool          // the simulator posts events to the product
	hooksTo     string        // or to this URL
	kind        string        // of the only provider that the product uses; "": SendGrid and Mailgun
	eventDelay  time.Duration
	perCall     int                      // recipients per call; 0: 1,000
	timeout     time.Duration            // of a call; 0: the default
	seed        func(models.Store) error // stores data before the product starts
	warm        bool                     // a mail is sent before the measurement
	env         []string                 // further settings of the product
	posting     int                      // posts at once of what is delivered; 0: 8
	keys        func(i int) string       // of a post; nil: all have that of the rig
}

// rig is the product and the simulated providers, each a process.
type rig struct {
	b          *bench
	be         *backend
	place      string
	env        []string
	addr       string
	client     *client.Client
	secret     string    // the key of the user
	hostileKey string    // of another user
	began      time.Time // of the product
	sim        *simulator.Client
	simURL     string
	serve      *child
	provide    *child
	http       *http.Client
	smtp       chan *smtp.Client // connections that are free; nil: SMTP is off
}

// child is a process that bench started.
type child struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

func (b *bench) start(env []string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(b.ctx, b.product, args...)}
	c.cmd.Env = append(cleanEnv(), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	tie(c.cmd)
	return c, c.cmd.Start()
}

// cleanEnv returns the environment without Safedelivr's settings.
func cleanEnv() []string {
	var out []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SAFEDELIVR_") || strings.HasPrefix(e, "SAFEDELIVR_TEST_RUN=") {
			out = append(out, e)
		}
	}
	return out
}

func (c *child) stop() {
	if c == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(50 * time.Second):
		_ = c.cmd.Process.Kill()
		<-done
	}
}

// peak returns the peak memory of the process in bytes (VmHWM).
func (c *child) peak() (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM")
}

// cpu returns the CPU time of the process.
func (c *child) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 everywhere
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// newRig starts providers and product on fresh data, with a user and a key.
func (b *bench) newRig(be *backend, o *rigOptions) (r *rig, err error) {
	dir, err := os.MkdirTemp(b.dir, "data-")
	if err != nil {
		return nil, err
	}
	r = &rig{
		b:     b,
		be:    be,
		place: newPlace(),
		http:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: patience},
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.output())
			r.close()
		}
	}()
	simAddr, err := freeAddr()
	if err != nil {
		return r, err
	}
	if r.addr, err = freeAddr(); err != nil {
		return r, err
	}
	hook := func(provider string) string {
		switch {
		case o.hooksTo != "":
			return ",webhook=" + o.hooksTo + "/" + provider
		case o.webhooks:
			return ",webhook=http://" + r.addr + "/webhooks/" + provider
		}
		return ""
	}
	if o.eventDelay == 0 {
		o.eventDelay = 200 * time.Millisecond
	}
	args := []string{
		"simulator",
		"--listen",
		simAddr,
		"--latency",
		o.latency.String(),
		"--event-delay",
		o.eventDelay.String(),
	}
	used, port, err := pairOf(o.kind)
	if err != nil {
		return r, err
	}
	for _, a := range used.Accounts("") {
		spec := fmt.Sprintf("name=%s,kind=%s,key=%s,domain=%s,signing=%s%s",
			a.Name, a.Kind, a.Key, a.Domain, a.SigningKey, hook(a.Name))
		if used.Silent(a.Name) {
			spec += ",listen=127.0.0.1:" + port
		}
		args = append(args, "--provider", spec)
	}
	if r.provide, err = b.start(nil, args...); err != nil {
		return r, err
	}
	r.simURL = "http://" + simAddr
	r.sim = &simulator.Client{URL: r.simURL, HTTP: r.http}
	r.env = append(
		be.env(dir, r.place),
		"SAFEDELIVR_LISTEN="+r.addr,
		"SAFEDELIVR_LOG=error",
		"SAFEDELIVR_METRICS_LISTEN=off",
	)
	if o.perCall == 0 {
		o.perCall = 1000
	}
	more := []string{"CONCURRENCY=" + strconv.Itoa(o.concurrency), "CHUNK_LIMIT=" + strconv.Itoa(o.perCall)}
	if o.timeout > 0 {
		more = append(more, "TIMEOUT="+o.timeout.String())
	}
	if used.Silent(used[0].Name) {
		more = append(more, "PORT="+port)
	}
	for _, v := range used.Settings(r.simURL, more...) {
		provider, _, _ := strings.Cut(strings.TrimPrefix(v, "SAFEDELIVR_PROVIDERS_"), "_")
		if o.kind == "" || strings.EqualFold(provider, used[0].Name) {
			r.env = append(r.env, v)
		}
	}
	r.env = append(r.env, o.env...)
	if err := r.setUp(o, dir); err != nil {
		return r, err
	}
	r.began = time.Now()
	if r.serve, err = b.start(r.env, "serve"); err != nil {
		return r, err
	}
	return r, r.wait(func() (bool, error) {
		_, err := r.sim.Accounts(b.ctx)
		return err == nil && r.ready(), b.ctx.Err()
	})
}

// pairOf returns simulated providers, of which the first is of a kind, and a port of this machine for a mail server.
func pairOf(kind string) (p simulated.Pair, port string, err error) {
	at, err := freeAddr()
	if err != nil {
		return p, "", err
	}
	_, port, _ = net.SplitHostPort(at)
	switch kind {
	case "", simulator.SendGrid:
		return simulated.Usual, port, nil
	}
	p, err = simulated.NewPair(kind, simulator.SendGrid)
	return p, port, err
}

// setUp creates the schema, a user who never reaches the limits that are counted, a hostile
// user, and the data of the measurement.
func (r *rig) setUp(o *rigOptions, dir string) error {
	var printed []string
	for _, args := range [][]string{
		{"migrate"},
		{"user", "add", "bench"},
		{"user", "limits", "bench", "requests_per_second=1000000", "requests_at_once=1000", "recipients_per_hour=1000000000",
			"recipients_per_day=1000000000", "urgent_recipients_per_hour=1000000000", "batches_per_day=1000000000"},
		{"key", "add", "bench"},
		{"user", "add", "hostile"},
		{"key", "add", "hostile"},
	} {
		cmd := exec.CommandContext(r.b.ctx, r.b.product, args...)
		cmd.Env = append(cleanEnv(), r.env...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, errs.String())
		}
		printed = append(printed, strings.TrimSpace(string(out)))
	}
	if o.seed != nil {
		if err := r.seed(dir, o.seed); err != nil {
			return err
		}
	}
	r.secret, r.hostileKey = printed[3], printed[5]
	r.client = r.as(r.secret)
	return nil
}

// newPlace returns a name for a keyspace, and for an exchange and its queues.
func newPlace() string { return "b" + models.NewUserID() }

// seed stores data before the product starts.
func (r *rig) seed(dir string, put func(models.Store) error) error {
	store, err := r.be.openStore(r.b.ctx, dir, r.place)
	if err != nil {
		return err
	}
	return errors.Join(put(store), store.Close())
}

// ready reports whether the product is ready.
func (r *rig) ready() bool {
	ready, err := r.client.Readiness(r.b.ctx)
	return err == nil && ready.Ready()
}

func (r *rig) output() string {
	text := ""
	for _, c := range []*child{r.serve, r.provide} {
		if c != nil {
			text += c.out.String()
		}
	}
	return text[:min(len(text), 4000)]
}

func (r *rig) close() {
	r.serve.stop()
	r.provide.stop()
	r.gone()
}

// kill ends the processes without waiting for their work.
func (r *rig) kill() {
	for _, c := range []*child{r.serve, r.provide} {
		if c != nil {
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		}
	}
	r.gone()
}

func (r *rig) gone() {
	if r.b.spent != nil && r.serve != nil && r.serve.cmd.ProcessState != nil {
		r.b.spent[r.b.part] += r.serve.cmd.ProcessState.UserTime() + r.serve.cmd.ProcessState.SystemTime()
	}
	r.http.CloseIdleConnections()
	if err := r.be.clear(r.b.ctx, r.place); err != nil {
		fmt.Fprintln(os.Stderr, "bench: cannot remove", r.place+":", err)
	}
}

// wait polls every few milliseconds until the condition is true.
func (r *rig) wait(done func() (bool, error)) error {
	end := time.Now().Add(patience)
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not done after %s\n%s", patience, r.output())
		}
		select {
		case <-r.b.ctx.Done():
			return r.b.ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// post posts one encoded batch.
func (r *rig) post(body io.Reader) (models.ID, error) {
	accepted, err := r.client.CreateBatchJSON(r.b.ctx, body)
	if err != nil {
		return models.ID{}, fmt.Errorf("%w\n%s", err, r.output())
	}
	return models.ParseBatchID(accepted.ID)
}

// totals returns the sums of all days of the user.
func (r *rig) totals() (client.Counts, error) {
	stats, err := r.client.GetStats(r.b.ctx, "", "", "", "")
	return stats.Totals, err
}

// taken waits until the providers accepted n mails, and returns when that was seen.
func (r *rig) taken(n int64) (time.Time, error) {
	var at time.Time
	err := r.wait(func() (bool, error) {
		st, err := r.sim.Stats(r.b.ctx, "")
		at = time.Now()
		return st.Accepted >= n, err
	})
	return at, err
}
