package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// demoOptions are the flags of demo.
type demoOptions struct {
	recipients int
	exit, json bool
	dir        string
	listen     string
}

func (c *cli) demoCommand() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use: "demo", Short: "See a failover: everything on this machine, with simulated providers", Args: cobra.NoArgs,
		Long: "Start Safedelivr with simulated SendGrid and Mailgun on loopback, send a batch through the API, break SendGrid in the\n" +
			"middle and heal it, and count at the simulated providers what arrived. Needs no provider, no broker and no database.",
		RunE: func(cmd *cobra.Command, _ []string) error { return c.demo(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.IntVar(&o.recipients, "recipients", 10_000, "recipients of the batch, 100 to 1,000,000")
	f.BoolVar(&o.exit, "exit", false, "end after the summary; the exit code is not 0 if anything was lost, doubled or does not add up")
	f.BoolVar(&o.json, "json", false, "print the summary as one JSON object on the last line")
	f.StringVar(&o.dir, "data-dir", "", "data folder (default: a new temporary one, removed at the end)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the API; another port is taken if it is in use")
	return cmd
}

// demo is one run of the demonstration.
type demo struct {
	c       *cli
	o       demoOptions
	sim     *simulator.Simulator
	simURL  string
	app     *app
	client  *demoClient
	user    models.User
	link    string // logs in to the dashboard
	began   time.Time
	broken  time.Time
	healed  time.Time
	batchID models.ID
}

func (c *cli) demo(ctx context.Context, o demoOptions) (err error) {
	if o.recipients < 100 || o.recipients > 1_000_000 {
		return fmt.Errorf("--recipients %d: from 100 to 1,000,000", o.recipients)
	}
	d := &demo{c: c, o: o}
	if d.o.dir == "" {
		if d.o.dir, err = os.MkdirTemp("", "safedelivr-demo-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(d.o.dir) }()
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
	code := 0
	if err = d.run(ctx); err == nil {
		var sum demoSummary
		if sum, err = d.summary(ctx); err == nil {
			d.print(&sum)
			if !sum.good() {
				code = 1
			}
			if o.exit && o.json {
				defer d.printJSON(&sum)
			} else if o.json {
				d.printJSON(&sum)
			}
		}
	}
	if err == nil && !o.exit {
		d.printHints()
		<-ctx.Done()
		fmt.Fprintln(c.out, "\nstopping")
	}
	stop()
	if serr := <-served; err == nil {
		err = serr
	}
	<-simulated
	if err == nil && code != 0 {
		err = exitCode(code)
	}
	return err
}

// say prints a line of the story.
func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.c.out, format+"\n", args...) }

// listen takes the wanted address, or a free port of the same host.
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

const (
	demoKey     = "demo-key"
	demoSigning = "demo-signing-key"
	demoDomain  = "mail.demo.test"
)

func (d *demo) startSimulator(ctx context.Context) (<-chan struct{}, error) {
	l, err := listenNear(ctx, "127.0.0.1:8025")
	if err != nil {
		return nil, err
	}
	d.simURL = "http://" + l.Addr().String()
	// A simulated minute takes a second: SendGrid posts its events every half
	// second instead of every 30.
	d.sim = simulator.New(simulator.Options{RecipientKey: recipientKey, TimeScale: 60, EventDelay: 150 * time.Millisecond, Latency: demoLatency})
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: simulator.SendGrid, Key: demoKey, SigningKey: simulatorKey},
		{Name: "mg", Kind: simulator.Mailgun, Key: demoKey, Domain: demoDomain, SigningKey: demoSigning},
	} {
		if err := d.sim.AddAccount(a); err != nil {
			return nil, err
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := serveUntil(ctx, l, d.sim, d.sim.Close); err != nil {
			d.say("simulator: %v", err)
		}
	}()
	return done, nil
}

const demoLatency = 120 * time.Millisecond

// shape cuts the batch into so many calls that there is something to see: about
// a hundred, and not more than a few seconds of them.
func (d *demo) shape() (perCall, atOnce int) {
	perCall = min(max(d.o.recipients/100, 1), 1000)
	calls := d.o.recipients / perCall
	return perCall, max(2, calls*int(demoLatency.Milliseconds())/8000)
}

func (d *demo) startServer(ctx context.Context) (<-chan error, error) {
	perCall, atOnce := d.shape()
	l, err := listenNear(ctx, d.o.listen)
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close() // the server takes it in a moment
	provider := func(name string, more ...string) []string {
		p := "SAFEDELIVR_PROVIDERS_" + name + "_"
		out := []string{p + "API_KEY=" + demoKey, p + "CHUNK_LIMIT=" + strconv.Itoa(perCall), p + "CONCURRENCY=" + strconv.Itoa(atOnce), p + "TIMEOUT=5s"}
		for _, m := range more {
			out = append(out, p+m)
		}
		return out
	}
	env := []string{
		"SAFEDELIVR_LISTEN=" + addr, "SAFEDELIVR_DATA_DIR=" + filepath.Clean(d.o.dir), "SAFEDELIVR_LOG=error",
		"SAFEDELIVR_TIMES_RECHECK=5s", "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=20s", "SAFEDELIVR_TIMES_BREAKER_OPEN=1s",
	}
	env = append(env, provider("SG", "KIND=sendgrid", "BASE_URL="+d.simURL+"/sg", "WEBHOOK_KEY="+simulatorPublicKey)...)
	env = append(env, provider("MG", "KIND=mailgun", "BASE_URL="+d.simURL+"/mg/v3", "DOMAIN="+demoDomain, "WEBHOOK_KEY="+demoSigning)...)
	cfg, err := config.Load("", env)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(d.c.err, &slog.HandlerOptions{Level: slog.LevelError + 4})) // the story says what matters
	if d.app, err = newApp(ctx, &cfg, log); err != nil {
		return nil, err
	}
	base := "http://" + d.app.addr()
	for _, name := range []string{"sg", "mg"} {
		d.sim.SetWebhookURL(name, base+"/webhooks/"+name)
	}
	d.user = models.User{ID: models.NewUserID(), Name: "demo-" + models.NewUserID(), Created: time.Now().UTC()}
	if err := d.app.store.CreateUser(ctx, d.user); err != nil {
		d.app.close()
		return nil, err
	}
	key, secret := models.NewKey(d.user.ID, "demo", time.Now())
	if err := d.app.store.CreateKey(ctx, key); err != nil {
		d.app.close()
		return nil, err
	}
	if d.link, err = d.app.loginLink(ctx, d.user); err != nil {
		d.app.close()
		return nil, err
	}
	d.client = &demoClient{base: base, key: secret}
	served := make(chan error, 1)
	go func() { served <- d.app.serve(ctx) }()
	return served, nil
}

// printJSON prints the summary as the last line.
func (d *demo) printJSON(s *demoSummary) {
	_ = json.NewEncoder(d.c.out).Encode(s) // a closed pipe is no error of ours
}
