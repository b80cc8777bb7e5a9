package drill

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// serverSettings returns the settings of the servers: short times, and the simulated providers.
func (d *drill) serverSettings() []string {
	out := []string{
		"SAFEDELIVR_LOG=error",
		"SAFEDELIVR_PUBLIC_URL=http://" + d.addr, // for the links to unsubscribe
		"SAFEDELIVR_DIALECTS=" + dialects,
		"SAFEDELIVR_SMTP_LISTEN=" + d.senders.smtpAddr,
		"SAFEDELIVR_QUOTAS_REQUESTS_PER_SECOND=0", // the drill asks without pause
		"SAFEDELIVR_QUOTAS_REQUESTS_AT_ONCE=0",
		"SAFEDELIVR_ENDPOINT_NETWORKS=" + receiver.Network,
		"SAFEDELIVR_TIMES_START_BY=" + startBy.String(),
		"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=4s",
		"SAFEDELIVR_TIMES_RECHECK=1s",
		"SAFEDELIVR_TIMES_BREAKER_OPEN=500ms",
		"SAFEDELIVR_TIMES_HOLD=2s",
		"SAFEDELIVR_TIMES_FINAL_EVENT=60s",
		"SAFEDELIVR_LIMITS_BOUNCES=0", // faults refuse addresses, and a batch that is stopped for that never ends
	}
	out = append(out, d.sim.pair.Settings(d.sim.url,
		"CONCURRENCY="+strconv.Itoa(cmp.Or(d.atOnce, 64)),
		"CHUNK_LIMIT="+strconv.Itoa(callSize),
		"TIMEOUT="+callTimeout.String())...)
	return append(out, d.settings...)
}

// startServers starts one process with all roles. If the scenario asks for it and the backends allow it, it starts one
// process for API and webhooks and two workers.
func (d *drill) startServers(ctx context.Context) (err error) {
	d.env = d.environment.environ(d.serverSettings()...)
	for _, a := range []*account{d.user, d.other, d.hostile} {
		if *a, err = d.environment.newAccount(ctx, d.addr); err != nil {
			return err
		}
	}
	d.senders.url, d.senders.secret = d.user.client.URL, d.user.secret
	d.senders.unanswered, d.senders.accepted = &d.unanswered, map[string]int{}
	if err := d.startProxies(ctx); err != nil {
		return err
	}
	if !d.runsApart() {
		d.worker, err = d.environment.start(ctx, d.addr, d.victimEnv())
		return err
	}
	entrance, err := d.environment.start(ctx, d.addr, d.env, "--roles", "api,webhooks")
	if err != nil {
		return err
	}
	d.others = append(d.others, entrance)
	other, err := d.startWorker(ctx, d.env)
	if err != nil {
		return err
	}
	d.others = append(d.others, other)
	d.worker, err = d.startWorker(ctx, d.victimEnv())
	return err
}

// victimEnv returns the settings of the worker that is killed or frozen: its calls have paths of their own.
func (d *drill) victimEnv() []string {
	out := slices.Clone(d.env)
	for _, a := range d.sim.pair.Names() {
		out = append(out, "SAFEDELIVR_PROVIDERS_"+strings.ToUpper(a)+"_BASE_URL="+d.sim.url+victimPath+"/"+a)
	}
	return out
}

func (d *drill) startWorker(ctx context.Context, env []string) (*process, error) {
	addr, err := d.environment.addresses.next(ctx)
	if err != nil {
		return nil, err
	}
	return d.environment.start(ctx, addr, env, "--roles", "worker")
}

// kill ends a process at once.
func (d *drill) kill(p *process) {
	if d.killed++; d.brokenAt.IsZero() {
		d.mu.Lock()
		d.brokenAt = time.Now()
		d.mu.Unlock()
	}
	p.kill()
}

func (d *drill) runsApart() bool {
	return d.apart && !d.environment.ownStore() && !d.environment.ownBroker()
}

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

// startProxies starts a proxy before the server that the scenario makes unavailable.
func (d *drill) startProxies(ctx context.Context) error {
	start := func(to string) (addr string, err error) {
		p, err := tcpproxy.New(context.WithoutCancel(ctx), to)
		if err != nil {
			return "", err
		}
		d.proxies[d.needs] = p
		return p.Addr(), nil
	}
	switch d.needs {
	case needsBroker:
		first, _, _ := strings.Cut(d.environment.cfg.AMQP.URL, ",") // one node of a cluster
		u, err := url.Parse(first)
		if err != nil {
			return err
		}
		if u.Host, err = start(withPort(u.Host, "5672")); err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_AMQP_URL="+u.String())
	case needsStore:
		if d.environment.store() == "postgres" {
			u, err := url.Parse(d.environment.cfg.Store)
			if err != nil {
				return err
			}
			if u.Host, err = start(withPort(u.Host, "5432")); err != nil {
				return err
			}
			d.env = append(d.env, "SAFEDELIVR_STORE="+u.String(), "SAFEDELIVR_POSTGRES_TIMEOUT=3s")
			return nil
		}
		addr, err := start(withPort(d.environment.cfg.Cassandra.Hosts[0], "9042"))
		if err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_CASSANDRA_HOSTS="+addr, "SAFEDELIVR_CASSANDRA_TIMEOUT=3s")
	case needsNothing, needsOwnStore, needsSignals:
	}
	return nil
}

func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, port)
}

func (d *drill) brokerProxy() *tcpproxy.Proxy { return d.proxies[needsBroker] }
func (d *drill) storeProxy() *tcpproxy.Proxy  { return d.proxies[needsStore] }
