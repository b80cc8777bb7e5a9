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

	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// servers are the processes of Safedelivr in a drill.
type servers struct {
	scenario    *scenario
	environment *environment
	sim         *providers
	incident    *incident

	addr     string // of API and webhooks
	smtpAddr string
	env      []string
	proxy    *tcpproxy.Proxy // before the server that the scenario makes unavailable; nil: none is
	worker   *process        // the one that is killed or frozen
	others   []*process
}

// choose chooses the addresses.
func (s *servers) choose(ctx context.Context) (err error) {
	if s.addr, err = ownAddresses.next(ctx); err == nil {
		s.smtpAddr, err = ownAddresses.next(ctx)
	}
	return err
}

// hooks begins the addresses of webhooks.
func (s *servers) hooks() string { return "http://" + s.addr + "/webhooks/" }

// settings returns the settings of the servers: short times, and the simulated providers.
func (s *servers) settings() []string {
	out := []string{
		"SAFEDELIVR_LOG=error",
		"SAFEDELIVR_PUBLIC_URL=http://" + s.addr, // for the links to unsubscribe
		"SAFEDELIVR_DIALECTS=" + dialects,
		"SAFEDELIVR_SMTP_LISTEN=" + s.smtpAddr,
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
	out = append(out, s.sim.pair.Settings(s.sim.url,
		"CONCURRENCY="+strconv.Itoa(cmp.Or(s.scenario.atOnce, 64)),
		"CHUNK_LIMIT="+strconv.Itoa(callSize),
		"TIMEOUT="+callTimeout.String())...)
	return append(out, s.scenario.settings...)
}

// start starts one process with all roles. If the scenario asks for it and the backends allow it, it starts one
// process for API and webhooks and two workers.
func (s *servers) start(ctx context.Context) (err error) {
	s.env = s.environment.environ(s.settings()...)
	if err := s.startProxy(ctx); err != nil {
		return err
	}
	if !s.apart() {
		s.worker, err = s.environment.start(ctx, s.addr, s.victimEnv())
		return err
	}
	entrance, err := s.environment.start(ctx, s.addr, s.env, "--roles", "api,webhooks")
	if err != nil {
		return err
	}
	s.others = append(s.others, entrance)
	other, err := s.startWorker(ctx, s.env)
	if err != nil {
		return err
	}
	s.others = append(s.others, other)
	s.worker, err = s.startWorker(ctx, s.victimEnv())
	return err
}

// victimEnv returns the settings of the worker that is killed or frozen: its calls have paths of their own.
func (s *servers) victimEnv() []string {
	out := slices.Clone(s.env)
	for _, a := range s.sim.pair.Names() {
		out = append(out, "SAFEDELIVR_PROVIDERS_"+strings.ToUpper(a)+"_BASE_URL="+s.sim.url+victimPath+"/"+a)
	}
	return out
}

func (s *servers) startWorker(ctx context.Context, env []string) (*process, error) {
	addr, err := ownAddresses.next(ctx)
	if err != nil {
		return nil, err
	}
	return s.environment.start(ctx, addr, env, "--roles", "worker")
}

// kill ends a process at once.
func (s *servers) kill(p *process) {
	s.incident.kill()
	p.kill()
}

// apart reports whether roles run in processes of their own.
func (s *servers) apart() bool {
	return s.scenario.apart && !s.environment.ownStore() && !s.environment.ownBroker()
}

// restart replaces the worker that was killed.
func (s *servers) restart(ctx context.Context) (err error) {
	s.worker, err = s.worker.again(ctx)
	return err
}

// killReceiving kills the server that takes requests, and the worker if it is another one and too is set, and starts
// them again.
func (s *servers) killReceiving(ctx context.Context, too bool) (err error) {
	if s.apart() {
		s.kill(s.others[0])
		if s.others[0], err = s.others[0].again(ctx); err != nil || !too {
			return err
		}
	}
	s.kill(s.worker)
	return s.restart(ctx)
}

// all returns the processes.
func (s *servers) all() []*process {
	if s.worker == nil {
		return s.others
	}
	return append(slices.Clone(s.others), s.worker)
}

// stop stops the processes, and the proxy then.
func (s *servers) stop() {
	var all sync.WaitGroup
	for _, p := range s.all() {
		all.Go(p.stop)
	}
	all.Wait()
	if s.proxy != nil {
		s.proxy.Close()
	}
}

// startProxy starts a proxy before the server that the scenario makes unavailable.
func (s *servers) startProxy(ctx context.Context) error {
	start := func(host, port string) (addr string, err error) {
		if s.proxy, err = tcpproxy.New(context.WithoutCancel(ctx), withPort(host, port)); err != nil {
			return "", err
		}
		return s.proxy.Addr(), nil
	}
	startURL := func(to, port string) (string, error) {
		u, err := url.Parse(to)
		if err == nil {
			u.Host, err = start(u.Host, port)
		}
		if err != nil {
			return "", err
		}
		return u.String(), nil
	}
	var addr string
	var err error
	switch cfg := &s.environment.cfg; {
	case s.scenario.needs == needsBroker:
		first, _, _ := strings.Cut(cfg.AMQP.URL, ",") // one node of a cluster
		addr, err = startURL(first, "5672")
		s.env = append(s.env, "SAFEDELIVR_AMQP_URL="+addr)
	case s.scenario.needs == needsStore && s.environment.store() == "postgres":
		addr, err = startURL(cfg.Store, "5432")
		s.env = append(s.env, "SAFEDELIVR_STORE="+addr, "SAFEDELIVR_POSTGRES_TIMEOUT=3s")
	case s.scenario.needs == needsStore:
		addr, err = start(cfg.Cassandra.Hosts[0], "9042")
		s.env = append(s.env, "SAFEDELIVR_CASSANDRA_HOSTS="+addr, "SAFEDELIVR_CASSANDRA_TIMEOUT=3s")
	}
	return err
}

func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, port)
}
