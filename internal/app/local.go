package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/stats"
)

// Open opens the store and the broker of the configuration for a command: nothing listens, and no worker runs. It
// returns sqlite.ErrInUse if another process has the data folder.
func Open(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	a := &App{cfg: cfg, log: log, command: true, priority: priority.New(), metrics: newRegistry()}
	a.github.Store(githubOf(cfg))
	for _, step := range []func(context.Context) error{
		a.openStore, a.openBroker, a.followCommands, a.openSomeProviders, a.buildService, a.buildAPI,
	} {
		if err := step(ctx); err != nil {
			a.Close()
			return nil, err
		}
	}
	return a, nil
}

// openSomeProviders opens the providers whose settings are right. The others are known by name only: most commands need
// none, and a replay says what is wrong.
func (a *App) openSomeProviders(context.Context) error {
	var open []provider.Spec
	open, a.wrongProviders = OpenProviders(a.cfg, slog.New(slog.DiscardHandler))
	for _, name := range a.cfg.ProviderNames() {
		spec := provider.Spec{Provider: models.Provider{Name: name, Kind: a.cfg.Providers[name].Kind}}
		for i := range open {
			if open[i].Name == name {
				spec = open[i]
			}
		}
		a.providers = append(a.providers, spec)
	}
	return nil
}

// worker returns the engine of this process, or one that does not run. It returns nil without the role worker.
func (a *App) worker() (*consumers.Engine, error) {
	if a.engine != nil || !a.command {
		return a.engine, nil
	}
	if a.wrongProviders != nil {
		return nil, a.wrongProviders
	}
	return consumers.New(a.store, a.broker, a.providers, EngineConfig(a.cfg, a.log))
}

// addWork adds the long work to the API.
func (a *App) addWork(c *api.Config) {
	if a.engine == nil && !a.command {
		return
	}
	c.Work.Check = CheckWork(a.worker, 0)
	c.Work.Replay = func(
		ctx context.Context, in client.NewReplay, report func(*client.Step[client.Replayed]),
	) (client.Replayed, error) {
		e, err := a.worker()
		if err != nil {
			return client.Replayed{}, err
		}
		if in.Until.IsZero() {
			in.Until = time.Now()
		}
		out, err := e.Replay(ctx, in.Since, in.Until, seldom(func(n events.Replayed) {
			report(&client.Step[client.Replayed]{Progress: new(client.Replayed(n))})
		}))
		return client.Replayed(out), err
	}
}

// CheckWork returns the check of the API by a worker. A settle time of 0 is the default; see [rollup.CheckOptions].
func CheckWork(
	worker func() (*consumers.Engine, error), settle time.Duration,
) api.Work[client.NewCheck, client.Check] {
	return func(
		ctx context.Context, in client.NewCheck, report func(*client.Step[client.Check]),
	) (client.Check, error) {
		e, err := worker()
		if err != nil {
			return client.Check{}, err
		}
		out, err := e.Check(ctx, rollup.CheckOptions{
			User: in.User, From: in.Since, Repair: in.Repair, Settle: settle,
			Found: func(d rollup.Difference) { report(&client.Step[client.Check]{Found: difference(&d)}) },
			Progress: seldom(func(n telemetry.Recount) {
				report(&client.Step[client.Check]{Progress: new(client.Check(n))})
			}),
		})
		return client.Check(out), err
	}
}

// seldom returns a function that calls do at most once a second.
func seldom[T any](do func(T)) func(T) {
	last := time.Now()
	return func(v T) {
		if time.Since(last) >= time.Second {
			last = time.Now()
			do(v)
		}
	}
}

// difference returns a difference as the API has it.
func difference(d *rollup.Difference) *client.Difference {
	out := &client.Difference{What: d.What, User: d.User, ID: d.ID, Damaged: d.Damaged, Text: d.String()}
	if d.Damaged == "" {
		out.Shown, out.Counted = checked(&d.Shown), checked(&d.Counted)
	}
	return out
}

func checked(s *models.Summary) *client.CheckedCounts {
	return &client.CheckedCounts{Counts: stats.CountsOf(s), MadeFrom: s.Version}
}

// Transport returns what carries requests to the API of this process without a network, and a function that ends it.
func (a *App) Transport() (*http.Transport, func()) { return Within(a.admin()) }

// Within returns what carries requests to a handler without a network, and a function that ends it.
func Within(h http.Handler) (t *http.Transport, end func()) {
	l := &inner{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }() // it ends with the listener
	t = &http.Transport{DialContext: l.dial, DisableCompression: true}
	return t, func() {
		t.CloseIdleConnections()
		_ = server.Close()
	}
}

// inner listens to this process.
type inner struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *inner) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *inner) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *inner) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *inner) Addr() net.Addr { return &net.UnixAddr{Name: "here", Net: "unix"} }
