package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/simulator"
)

// simulate starts the providers.
func (d *drill) simulate(ctx context.Context) (<-chan struct{}, error) {
	var err error
	if d.addr, err = d.place.addresses.next(ctx); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.sim = simulator.New(simulator.Options{RecipientKey: recipientKey, TimeScale: cmp.Or(d.scale, drillScale), EventDelay: 100 * time.Millisecond, Latency: drillLatency, Seed: d.rnd.Uint64()})
	d.struck = &struck{providers: d.sim}
	hook := "http://" + d.addr + "/webhooks/"
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: simulator.SendGrid, Key: demoKey, SigningKey: simulatorKey, WebhookURL: hook + "sg"},
		{Name: "mg", Kind: simulator.Mailgun, Key: demoKey, Domain: demoDomain, SigningKey: demoSigning, WebhookURL: hook + "mg"},
	} {
		if err := d.sim.AddAccount(a); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	d.simURL = "http://" + l.Addr().String()
	d.env = d.place.environ(d.settingsFor(d.simURL)...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serveUntil(ctx, l, d.struck, d.sim.Close) // calls fail without it, and the drill with them
	}()
	return ended, nil
}

// settingsFor are those of the servers: short waits, and the simulated providers.
func (d *drill) settingsFor(sim string) []string {
	out := []string{
		"SAFEDELIVR_LOG=error", "SAFEDELIVR_TIMES_START_BY=" + drillStartBy.String(), "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=4s",
		"SAFEDELIVR_TIMES_RECHECK=1s", "SAFEDELIVR_TIMES_BREAKER_OPEN=500ms", "SAFEDELIVR_TIMES_HOLD=2s", "SAFEDELIVR_TIMES_FINAL_EVENT=60s",
	}
	for name, more := range map[string][]string{
		"SG": {"KIND=sendgrid", "BASE_URL=" + sim + "/sg", "WEBHOOK_KEY=" + simulatorPublicKey},
		"MG": {"KIND=mailgun", "BASE_URL=" + sim + "/mg", "WEBHOOK_KEY=" + demoSigning, "DOMAIN=" + demoDomain},
	} {
		// So many calls at once that a provider that works is never busy.
		for _, v := range append(more, "API_KEY="+demoKey, "CONCURRENCY=64", fmt.Sprintf("CHUNK_LIMIT=%d", drillCall), "TIMEOUT="+drillCallTime.String()) {
			out = append(out, "SAFEDELIVR_PROVIDERS_"+name+"_"+v)
		}
	}
	return append(out, d.settings...)
}

// startServers starts one process with everything, or, for a scenario that asks
// for it and backends that allow it, one door and two workers.
func (d *drill) startServers(ctx context.Context) (err error) {
	var secret string
	if d.user, secret, err = d.place.newUser(ctx); err != nil {
		return err
	}
	d.client = &demoClient{base: "http://" + d.addr, key: secret}
	if err := d.openGates(ctx); err != nil {
		return err
	}
	if !d.parted() {
		d.worker, err = startProcess(ctx, d.addr, d.struckEnv())
		return err
	}
	door, err := startProcess(ctx, d.addr, d.env, "--roles", "api,webhooks")
	if err != nil {
		return err
	}
	d.others = append(d.others, door)
	other, err := d.startWorker(ctx, d.env)
	if err != nil {
		return err
	}
	d.others = append(d.others, other)
	d.worker, err = d.startWorker(ctx, d.struckEnv())
	return err
}

// struckEnv is the configuration of the worker that is struck: it has a way to the
// providers of its own.
func (d *drill) struckEnv() []string {
	out := slices.Clone(d.env)
	for _, a := range drillProviders {
		out = append(out, "SAFEDELIVR_PROVIDERS_"+strings.ToUpper(a)+"_BASE_URL="+d.simURL+struckPath+"/"+a)
	}
	return out
}

func (d *drill) startWorker(ctx context.Context, env []string) (*process, error) {
	addr, err := d.place.addresses.next(ctx)
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, addr, env, "--roles", "worker")
}

// kill ends a process in the middle of what it does.
func (d *drill) kill(p *process) {
	d.killed++
	p.kill()
}

func (d *drill) parted() bool { return d.apart && !d.place.ownStore() && !d.place.ownBroker() }

// restart replaces the worker that was killed.
func (d *drill) restart(ctx context.Context) (err error) {
	d.worker, err = d.worker.again(ctx)
	return err
}

func (d *drill) processes() []*process {
	if d.worker == nil {
		return d.others
	}
	return append(slices.Clone(d.others), d.worker)
}

func (d *drill) stopServers() {
	var all sync.WaitGroup
	for _, p := range d.processes() {
		all.Go(p.stop)
	}
	all.Wait()
}

// openGates puts gates before the servers that the scenario shuts off.
func (d *drill) openGates(ctx context.Context) error {
	through := func(to string) (string, error) {
		g, err := newGate(context.WithoutCancel(ctx), to)
		if err != nil {
			return "", err
		}
		d.gates[d.needs] = g
		return g.addr(), nil
	}
	switch d.needs {
	case realBroker:
		first, _, _ := strings.Cut(d.place.cfg.AMQP.URL, ",") // the gate leads to one node of a cluster
		u, err := url.Parse(first)
		if err != nil {
			return err
		}
		if u.Host, err = through(withPort(u.Host, "5672")); err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_AMQP_URL="+u.String())
	case realStore:
		addr, err := through(withPort(d.place.cfg.Cassandra.Hosts[0], "9042"))
		if err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_CASSANDRA_HOSTS="+addr, "SAFEDELIVR_CASSANDRA_TIMEOUT=3s")
	case nothingElse, ownStore, signals:
	}
	return nil
}

func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, port)
}

func (d *drill) brokerGate() *gate { return d.gates[realBroker] }
func (d *drill) storeGate() *gate  { return d.gates[realStore] }
