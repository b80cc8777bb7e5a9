// Package demo shows a failover: it starts Safedelivr with simulated providers, sends a batch through the API, breaks
// one provider in the middle and counts at the providers what arrived.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// Options configure the demo.
type Options struct {
	// Recipients is the size of the batch.
	Recipients int
	// Exit ends the demo after the summary instead of when the context ends.
	Exit bool
	// JSON prints the summary as a JSON object, too; with Exit it is the last line.
	JSON bool
	// Dir is the data folder. If it is empty, a temporary folder is used and removed.
	Dir string
	// Providers are simulated, and the first breaks. The default is simulated.Usual.
	Providers simulated.Pair
	// Listen is the address of the API. Another port is taken if it is in use.
	Listen string
	// Out gets the output of the demo, Err the log of the server.
	Out, Err io.Writer
}

// The fewest and the most recipients.
const (
	MinRecipients = 100
	MaxRecipients = 1_000_000
)

// ErrWrong is returned by Run if anything was lost or doubled, or if sums do not add up.
var ErrWrong = errors.New("the demo found lost, doubled or miscounted mail")

// demo is one run of the demo.
type demo struct {
	o      Options
	sim    *simulator.Simulator
	simURL string
	app    *app.App
	client *client.Client
	key    string // of the API
	link   string // logs in to the dashboard
	began  time.Time
	broken time.Time
	healed time.Time
	batch  models.ID

	suppressed int64 // recipients of the batch that are suppressed
	receiver   *receiver.Receiver
}

// Run runs the demo and returns ErrWrong if anything was lost, doubled or does not add up.
func Run(ctx context.Context, o Options) (err error) {
	if o.Recipients < MinRecipients || o.Recipients > MaxRecipients {
		return fmt.Errorf("%d recipients: from %d to %d", o.Recipients, MinRecipients, MaxRecipients)
	}
	if o.Providers[0].Name == "" {
		o.Providers = simulated.Usual
	}
	d := &demo{o: o}
	if d.o.Dir == "" {
		if d.o.Dir, err = os.MkdirTemp("", "safedelivr-demo-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(d.o.Dir) }()
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	simulated, err := d.startSimulator(ctx)
	if err != nil {
		return err
	}
	served, err := d.startServer(ctx)
	if err != nil {
		stop()
		<-simulated
		return err
	}
	var sum Summary
	updates := client.EndpointSettings{Events: receiver.Types, Batch: true}
	if d.receiver, err = receiver.Start(ctx, d.client, updates); err == nil {
		defer d.receiver.Close()
		sum, err = d.show(ctx)
	}
	if err == nil && !o.Exit {
		d.printHints()
		<-ctx.Done()
		fmt.Fprintln(o.Out, "\nstopping")
	}
	stop()
	if serr := <-served; err == nil {
		err = serr
	}
	<-simulated
	if err == nil && o.Exit && o.JSON {
		d.printJSON(&sum) // after anything that the server printed when it stopped
	}
	if err == nil && !sum.good() {
		err = ErrWrong
	}
	return err
}

// show sends the batch and prints the result.
func (d *demo) show(ctx context.Context) (Summary, error) {
	if err := d.run(ctx); err != nil {
		return Summary{}, err
	}
	sum, err := d.summary(ctx)
	if err != nil {
		return sum, err
	}
	d.print(&sum)
	if d.o.JSON && !d.o.Exit {
		d.printJSON(&sum)
	}
	return sum, nil
}

// first and second return the names of the providers.
func (d *demo) first() string  { return d.o.Providers[0].Name }
func (d *demo) second() string { return d.o.Providers[1].Name }

// say prints a line.
func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.o.Out, format+"\n", args...) }

func (d *demo) printJSON(s *Summary) {
	_ = json.NewEncoder(d.o.Out).Encode(s) // the reader may be gone
}

// listenNear listens on an address, or on a free port of the same host.
func listenNear(ctx context.Context, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err == nil {
		return l, nil
	}
	host, _, serr := net.SplitHostPort(addr)
	if serr != nil {
		return nil, err
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
}

// watched reports whether a viewer may watch the batch: it then takes about half a minute, which is long enough to open
// its page.
func (d *demo) watched() bool { return !d.o.Exit && !d.o.JSON }

// latency is how long the providers take to answer.
func (d *demo) latency() time.Duration {
	if d.watched() {
		return 300 * time.Millisecond
	}
	return 120 * time.Millisecond
}

// breakTime is how long the first provider stays broken.
func (d *demo) breakTime() time.Duration {
	if d.watched() {
		return 8 * time.Second
	}
	return 2 * time.Second
}

// simulatorAddr is where the simulator listens if the address is free.
const simulatorAddr = "127.0.0.1:8025"

// startSimulator starts the providers. The channel is closed when they have stopped.
func (d *demo) startSimulator(ctx context.Context) (<-chan struct{}, error) {
	l, err := listenNear(ctx, simulatorAddr)
	if err != nil {
		return nil, err
	}
	d.simURL = "http://" + l.Addr().String()
	d.sim = simulator.New(simulator.Options{
		RecipientKey: simulated.RecipientKey,
		TimeScale:    60, // SendGrid posts its events every half second instead of every 30 seconds
		EventDelay:   150 * time.Millisecond,
		Latency:      d.latency(),

		WebhookTimeout: 5 * time.Minute, // Mailgun repeats no post of a delivery: none is lost if the machine pauses
	})
	if err := d.o.Providers.Open(ctx, d.sim, ""); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := simulated.Serve(ctx, l, d.sim, d.sim.Close); err != nil {
			d.say("simulator: %v", err)
		}
	}()
	return done, nil
}

// atOnce is how many calls run at once through a provider. It leaves slots for what the other one refuses.
const atOnce = 8

// perCall returns how many recipients a call has, so that there are about a hundred calls, or 500 if it is watched.
func (d *demo) perCall() int {
	calls := 100
	if d.watched() {
		calls = 500
	}
	return min(max(d.o.Recipients/calls, 1), 1000)
}

// calls returns how many calls the batch takes if none fails.
func (d *demo) calls() int { return (d.o.Recipients + d.perCall() - 1) / d.perCall() }

// settings returns the environment of the server.
func (d *demo) settings(addr string) []string {
	env := []string{
		"SAFEDELIVR_LISTEN=" + addr,
		"SAFEDELIVR_DATA_DIR=" + filepath.Clean(d.o.Dir),
		"SAFEDELIVR_LOG=error",
		"SAFEDELIVR_TIMES_RECHECK=5s",
		"SAFEDELIVR_ENDPOINT_NETWORKS=" + receiver.Network, // for the application that gets updates
		"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=20s",
		"SAFEDELIVR_TIMES_BREAKER_OPEN=1s",
	}
	return append(env, d.o.Providers.Settings(d.simURL,
		"CHUNK_LIMIT="+strconv.Itoa(d.perCall()), "CONCURRENCY="+strconv.Itoa(atOnce), "TIMEOUT=20s")...)
}

// startServer starts Safedelivr with a user and a key. The channel has its result when it has stopped.
func (d *demo) startServer(ctx context.Context) (<-chan error, error) {
	l, err := listenNear(ctx, d.o.Listen)
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close() // the server listens there in a moment
	cfg, err := config.Load("", d.settings(addr))
	if err != nil {
		return nil, err
	}
	silent := &slog.HandlerOptions{Level: slog.LevelError + 4} // the demo prints what matters
	if d.app, err = app.New(ctx, &cfg, slog.New(slog.NewTextHandler(d.o.Err, silent))); err != nil {
		return nil, err
	}
	base := "http://" + d.app.Addr()
	for _, a := range d.o.Providers.Accounts(base + "/webhooks/") {
		d.sim.SetWebhookURL(a.Name, a.WebhookURL)
	}
	if err := d.addUser(ctx); err != nil {
		d.app.Close()
		return nil, err
	}
	d.client = client.New(base, d.key)
	served := make(chan error, 1)
	go func() { served <- d.app.Serve(ctx) }()
	return served, nil
}

// addUser makes a link that logs in as the user of all links, an operator, and a key of that user.
func (d *demo) addUser(ctx context.Context) (err error) {
	user := login.LocalUser()
	if d.link, err = d.app.LoginLink(ctx, user); err != nil {
		return err
	}
	key, secret := models.NewKey(user.ID, "demo", time.Now())
	d.key = secret
	return d.app.Store().CreateKey(ctx, key)
}

// breakFirst has the first provider answer 503 to everything once it has had an eighth of the calls, until healFirst.
func (d *demo) breakFirst() (fault string) {
	return d.sim.Inject(simulator.Fault{
		Account: d.first(),
		Mode:    simulator.ModeStatus,
		Status:  http.StatusServiceUnavailable,
		After:   d.calls() / 8,
	})
}

func (d *demo) healFirst(fault string) {
	d.sim.Clear(fault)
	d.healed = time.Now()
	d.say("%6.1fs  ✓ %s is back", d.seconds(), d.o.Providers[0].Title)
}
