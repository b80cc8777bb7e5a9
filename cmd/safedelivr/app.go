package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/sqlite"
	"github.com/safedelivr/safedelivr/webhooks"
)

// app is one process of Safedelivr with the roles of its configuration.
type app struct {
	cfg    *config.Config
	log    *slog.Logger
	store  models.Store
	broker models.Broker

	journal   *control.Follower // of orders; one follower for all rooms
	providers []provider.Spec
	engine    *consumers.Engine // nil without the role worker
	service   *service.Service
	api       *api.Server
	dashboard *dashboard.Dashboard // nil without the role api
	hooks     *webhooks.Server
	http      *http.Server
	listener  net.Listener
}

// openStore opens the store the configuration names.
func openStore(ctx context.Context, cfg *config.Config, log *slog.Logger) (models.Store, error) {
	if len(cfg.Cassandra.Hosts) == 0 {
		return orNil[models.Store](sqlite.Open(cfg.DataDir, sqlite.Options{}))
	}
	return orNil[models.Store](cassandra.Open(ctx, cassandraConfig(cfg, log)))
}

// openBroker opens the broker the configuration names.
func openBroker(ctx context.Context, cfg *config.Config, log *slog.Logger) (models.Broker, error) {
	if cfg.AMQP.URL == "" {
		return orNil[models.Broker](inproc.New(cfg.ProviderNames(), log))
	}
	return orNil[models.Broker](rabbit.Open(ctx, rabbit.Config{URL: cfg.AMQP.URL, Prefix: cfg.AMQP.Prefix, Providers: cfg.ProviderNames(), Logger: log}))
}

// orNil turns what a constructor returned into an interface that is nil when
// there was an error: a nil pointer inside an interface is not.
func orNil[I any, T any](v T, err error) (out I, _ error) {
	if err != nil {
		return out, err
	}
	out, _ = any(v).(I) // each of them implements it; their packages assert that
	return out, nil
}

func cassandraConfig(cfg *config.Config, log *slog.Logger) cassandra.Config {
	c := &cfg.Cassandra
	return cassandra.Config{Hosts: c.Hosts, Keyspace: c.Keyspace, Username: c.Username, Password: c.Password, LocalDC: c.LocalDC,
		Replication: c.Replication, Consistency: c.Consistency, Serial: c.Serial, Timeout: c.Timeout, Migrate: c.Migrate, Logger: log}
}

// openProviders builds the adapters; every mistake is reported together.
func openProviders(cfg *config.Config, log *slog.Logger) ([]provider.Spec, error) {
	var out []provider.Spec
	var mistakes []error
	for _, name := range cfg.ProviderNames() {
		a := cfg.Providers[name]
		reports := models.EventSource(a.Events)
		if a.WebhookKey == "" {
			reports = models.EventsNone // so its posts are answered 503, and none is ever believed
		}
		p, err := providers.New(providers.Settings{Name: name, Kind: a.Kind, APIKey: a.APIKey, Domain: a.Domain, BaseURL: a.BaseURL,
			WebhookKey: a.WebhookKey, Events: reports, Timeout: a.Timeout, MaxConns: a.Concurrency})
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("providers.%s: %w", name, err))
			continue
		}
		if a.Events == string(models.EventsWebhook) && a.WebhookKey == "" {
			log.Warn("provider has no webhook_key: its webhooks are answered 503 and its mail stays without a final event; set events: none if it reports none", "provider", name)
		}
		out = append(out, provider.Spec{Adapter: p, Provider: models.Provider{Name: name, Kind: a.Kind, Weight: a.Weight,
			Concurrency: a.Concurrency, Rate: a.Rate, CallRate: a.CallRate, ChunkLimit: min(a.ChunkLimit, p.MaxRecipients()), Timeout: a.Timeout,
			Events: models.EventSource(a.Events), EvidenceWindow: evidenceWindow(cfg, a, p)}})
	}
	return out, errors.Join(mistakes...)
}

func closeProviders(providers []provider.Spec) {
	for i := range providers {
		providers[i].Adapter.Close()
	}
}

// evidenceWindow is how long an unknown outcome at a provider waits for evidence.
// Where nobody has said it, a provider that can be asked for its events gets the
// time to know them.
func evidenceWindow(cfg *config.Config, a config.Provider, p models.Adapter) time.Duration {
	if l, ok := p.(models.EventLookup); ok && a.Evidence == 0 && cfg.Times.EvidenceWindow == config.DefaultEvidence {
		return config.DefaultEvidence + l.LookupLag()
	}
	return a.Evidence // 0: the general one
}

// newApp opens everything and listens, but serves nothing yet.
func newApp(ctx context.Context, cfg *config.Config, log *slog.Logger) (a *app, err error) {
	a = &app{cfg: cfg, log: log}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.providers, err = openProviders(cfg, log); err != nil {
		return a, fmt.Errorf("the configuration has mistakes:\n%w", err)
	}
	if a.store, err = openStore(ctx, cfg, log); err != nil {
		return a, err
	}
	if a.broker, err = openBroker(ctx, cfg, log); err != nil {
		return a, err
	}
	a.journal = control.NewFollower(a.store)
	registry := newRegistry()
	if cfg.Has("worker") {
		c := engineConfig(cfg, log)
		c.Follower, c.Metrics = a.journal, registry
		if a.engine, err = consumers.New(a.store, a.broker, a.providers, c); err != nil {
			return a, err
		}
	}
	about := make([]models.Provider, 0, len(a.providers))
	for i := range a.providers {
		about = append(about, a.providers[i].Provider)
	}
	deps := service.Deps{Store: a.store, Broker: a.broker, Providers: about, Journal: a.journal, Config: a.serviceConfig()}
	if a.engine != nil {
		deps.Accepted = a.engine.Accepted
	}
	a.service = service.New(deps)
	mux := http.NewServeMux()
	if cfg.Has("webhooks") {
		var hooks []webhooks.Provider
		for _, acc := range a.providers {
			if acc.Events == models.EventsWebhook {
				hooks = append(hooks, webhooks.Provider{Name: acc.Name, Adapter: acc.Adapter})
			}
		}
		a.hooks = webhooks.New(a.store, a.broker, hooks, log)
		mux.Handle("/webhooks/", a.hooks)
	}
	// Without the role api only health is served, for the orchestrator's checks.
	a.api = api.New(a.service, api.Config{MaxBody: cfg.Limits.Body, Logger: log})
	mux.Handle("/healthz", a.api)
	mux.Handle("/readyz", a.api)
	registry.MustRegister(&doors{a.hooks, a.service})
	mux.Handle("/metrics", metricsHandler(registry))
	a.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	if a.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen); err != nil || !cfg.Has("api") {
		return a, err
	}
	mux.Handle("/v1/", a.api)
	if err = a.openDashboard(); err == nil {
		mux.Handle("/", a.dashboard)
	}
	return a, err
}

func (a *app) serviceConfig() service.Config {
	limits, t := &a.cfg.Limits, &a.cfg.Times
	return service.Config{MaxRecipients: limits.Recipients, MaxContent: limits.Content, SpoolDir: a.spoolDir(), Deadline: t.Deadline, Recheck: t.Recheck,
		IntakeTime: t.IntakeGrace / 4, UrgentUpTo: limits.UrgentUpTo, IdempotencyTime: t.Idempotency, Sole: soleProcess(a.cfg), Logger: a.log}
}

// spoolDir is where large requests are kept while they are checked.
func (a *app) spoolDir() string {
	dir := filepath.Join(a.cfg.DataDir, "spool")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		a.log.Warn("spool folder not made; the system's temporary folder is used", "err", err)
		return ""
	}
	return dir
}

func engineConfig(cfg *config.Config, log *slog.Logger) consumers.Config {
	c := consumers.DefaultConfig()
	c.Worker, c.Logger, c.MaxRetries = cfg.Worker, log, cfg.Limits.Retries
	t := &cfg.Times
	c.StartBy, c.EvidenceWindow, c.FinalEventWait, c.Recheck = t.StartBy, t.EvidenceWindow, t.FinalEvent, t.Recheck
	c.KeepContent, c.SilenceLeast = t.KeepContent, t.Silence
	c.IntakeGrace, c.Hold, c.BreakerOpen = t.IntakeGrace, t.Hold, t.BreakerOpen
	c.InboxAge = min(c.InboxAge, t.Recheck)
	c.Sole = soleProcess(cfg)
	return c
}

// soleProcess reports whether no other process can work on the store: the data
// folder of the embedded one has one process.
func soleProcess(cfg *config.Config) bool { return storeName(cfg) == "sqlite" }

// serve works until ctx ends, then stops in reverse: doors, work in flight,
// broker, store.
func (a *app) serve(ctx context.Context) error {
	failed := make(chan error, 3)
	go func() {
		if err := a.http.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("http: %w", err)
		}
	}()
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	worked := make(chan struct{})
	go func() {
		defer close(worked)
		if a.engine == nil {
			return
		}
		if err := a.engine.Run(work, a.cfg.Times.StopGrace); err != nil {
			failed <- fmt.Errorf("consumers: %w", err)
		}
	}()
	var aside sync.WaitGroup
	aside.Go(func() { a.sweep(work) })
	aside.Go(func() { a.serveAdmin(work) })
	if a.hooks != nil {
		aside.Go(func() { a.hooks.Watch(work, a.store, a.cfg.Worker) })
	}
	a.log.Info("serving", "listen", a.addr(), "roles", strings.Join(a.cfg.Roles, ","), "providers", strings.Join(a.cfg.ProviderNames(), ","),
		"store", storeName(a.cfg), "broker", brokerName(a.cfg), "version", version())
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	a.log.Info("stopping: doors first, then work in flight")
	if a.dashboard != nil {
		a.dashboard.Close() // live pages would hold the door open
	}
	doors, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if serr := a.http.Shutdown(doors); serr != nil {
		_ = a.http.Close() // requests that would not end
	}
	a.service.Close()
	if a.hooks != nil {
		a.hooks.Close()
	}
	stopWork()
	<-worked
	aside.Wait()
	a.close()
	a.log.Info("stopped")
	return err
}

// sweep clears what has outlived its use, once a minute.
func (a *app) sweep(ctx context.Context) {
	store, ok := a.store.(*sqlite.Store)
	if !ok {
		return // Cassandra lets things end by themselves
	}
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := store.Sweep(models.WithBackground(ctx), time.Now(), sqlite.RetentionOptions{Inbox: a.cfg.Times.InboxKeep}); err != nil && ctx.Err() == nil {
				a.log.Warn("old data not cleared away", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (a *app) close() {
	if a.dashboard != nil {
		a.dashboard.Close()
	}
	if a.service != nil {
		a.service.Close()
	}
	closeProviders(a.providers)
	if a.broker != nil {
		if err := a.broker.Close(); err != nil {
			a.log.Warn("broker not closed cleanly", "err", err)
		}
	}
	if a.store != nil {
		if err := a.store.Close(); err != nil {
			a.log.Warn("store not closed cleanly", "err", err)
		}
	}
	if a.listener != nil {
		_ = a.listener.Close() // closed already after a shutdown
	}
}

func (a *app) addr() string { return a.listener.Addr().String() }

func storeName(cfg *config.Config) string {
	if len(cfg.Cassandra.Hosts) > 0 {
		return "cassandra"
	}
	return "sqlite"
}

func brokerName(cfg *config.Config) string {
	if cfg.AMQP.URL != "" {
		return "rabbitmq"
	}
	return "in-process"
}
