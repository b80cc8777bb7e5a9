// Package app builds, serves and stops one process of Safedelivr.
package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/internal/dnscheck"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/unsubscribe"
	"github.com/safedelivr/safedelivr/webhooks"
)

// App is one process with the roles of its configuration. Parts that belong to a role are nil without it.
type App struct {
	cfg      *config.Config
	log      *slog.Logger
	priority *priority.Scheduler // of low-priority work, for all parts
	pressure *pressure           // by clients who ask for more than they may

	providers      []provider.Spec
	command        bool  // it carries out one command, and neither listens nor works
	wrongProviders error // of a command: mistakes in the settings of providers that are not open
	store          models.Store
	broker         models.Broker
	standby        *inproc.Broker    // for what RabbitMQ does not take; nil: there is none
	follower       *control.Follower // of the command log, for all parts
	suppressions   *suppression.Lists
	metrics        *prometheus.Registry
	engine         *consumers.Engine // of the role worker
	service        *service.Service
	hooks          *webhooks.Server // of the role webhooks
	api            *api.Server
	dashboard      *dashboard.Dashboard // of the role api
	http           *http.Server
	listener       net.Listener
	certs          *certificate      // nil: the listener speaks no TLS
	smtpCerts      *certificate      // of SMTP, maybe the same; nil: it speaks no TLS
	mailbox        submissions       // of the role api
	resolver       dnscheck.Resolver // for checks of providers; nil: that of the system

	github atomic.Pointer[login.GitHub] // nil: the login through GitHub is not used

	metricsListener net.Listener // nil: metrics are not served
}

// New opens everything that the configuration names and listens, but serves nothing yet. It closes what it opened if it
// returns an error.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	a := &App{
		cfg:      cfg,
		log:      log,
		priority: priority.New(),
		pressure: newPressure(),
		metrics:  newRegistry(),
	}
	a.github.Store(githubOf(cfg))
	for _, step := range []func(context.Context) error{
		a.openProviders,
		a.openStore,
		a.openBroker,
		a.followCommands,
		a.buildEngine,
		a.buildService,
		a.buildWebhooks,
		a.loadCertificates,
		a.listen,
		a.listenSMTP,
		a.listenMetrics,
		a.buildAPI,
		a.buildDashboard,
		a.route,
	} {
		if err := step(ctx); err != nil {
			a.Close()
			return nil, err
		}
	}
	return a, nil
}

func (a *App) openProviders(context.Context) (err error) {
	if a.providers, err = OpenProviders(a.cfg, a.log); err != nil {
		return fmt.Errorf("the configuration has mistakes:\n%w", err)
	}
	for _, p := range a.providers {
		if a.cfg.Has("worker") && a.cfg.Times.StopGrace < p.Timeout {
			a.log.Warn("times.stop_grace is shorter than a call may take; a stop can leave unknown outcomes",
				"provider", p.Name, "stop_grace", a.cfg.Times.StopGrace.String(), "timeout", p.Timeout.String())
		}
	}
	return nil
}

func (a *App) openStore(ctx context.Context) (err error) {
	a.store, err = OpenStore(ctx, a.cfg, a.log)
	return err
}

func (a *App) openBroker(ctx context.Context) (err error) {
	a.broker, err = OpenBroker(ctx, a.cfg, a.log)
	return err
}

func (a *App) followCommands(context.Context) error {
	a.follower = control.NewFollower(a.store)
	a.suppressions = suppression.New(a.store, suppression.DefaultMemory)
	return nil
}

func (a *App) buildEngine(context.Context) (err error) {
	if !a.cfg.Has("worker") {
		return nil
	}
	c := EngineConfig(a.cfg, a.log)
	if BrokerName(a.cfg) != "in-process" {
		if a.standby, err = inproc.NewStandby(a.cfg.ProviderNames(), a.broker, a.log); err != nil {
			return err
		}
		c.Standby = a.standby
	}
	c.Priority = a.priority
	c.Follower, c.Suppressions, c.Metrics = a.follower, a.suppressions, a.metrics
	c.EndpointMailer = func(ctx context.Context, e *endpoint.Endpoint, post string, body []byte) (string, error) {
		return a.service.MailNotice(ctx, e, post, body) // the engine runs after the service is built
	}
	a.engine, err = consumers.New(a.store, a.broker, a.providers, c)
	return err
}

// nearBroker is a broker for other processes with handlers in this one.
type nearBroker struct {
	models.Broker
	here *inproc.Broker
}

// Offer gives a message to a handler of this process that has nothing to do.
func (b nearBroker) Offer(m models.Message) bool { return b.here.Hand(m) }

// near returns a broker whose handlers in this process are those of a standby; nil: it has none.
func near(b models.Broker, standby *inproc.Broker) models.Broker {
	if standby == nil {
		return b
	}
	return nearBroker{b, standby}
}

func (a *App) buildService(context.Context) error {
	workers := EngineConfig(a.cfg, a.log)
	deps := service.Deps{
		Store:        a.store,
		Broker:       near(a.broker, a.standby),
		CommandLog:   a.follower,
		Suppressions: a.suppressions,
		Policy:       consumers.PolicyFor(a.providers, &workers),
		Config:       a.serviceConfig(),
	}
	deps.Composers, deps.Lists = map[string]models.Composer{}, ProviderLists(a.providers)
	deps.Adapters = map[string]models.Adapter{}
	for i := range a.providers {
		deps.Providers = append(deps.Providers, a.providers[i].Provider)
		if a.providers[i].Adapter == nil {
			continue
		}
		deps.Adapters[a.providers[i].Name] = a.providers[i].Adapter
		if c, ok := a.providers[i].Adapter.(models.Composer); ok {
			deps.Composers[a.providers[i].Name] = c
		}
	}
	if a.engine != nil {
		deps.Accepted = a.engine.Accepted
	}
	times := acceptTimes()
	a.metrics.MustRegister(times)
	deps.AcceptTime = func(l models.Lane, took time.Duration) { times.WithLabelValues(string(l)).Observe(took.Seconds()) }
	a.service = service.New(deps)
	return nil
}

// ProviderLists returns the suppression lists of the providers that keep some, by provider.
func ProviderLists(specs []provider.Spec) map[string]models.ProviderLists {
	out := map[string]models.ProviderLists{}
	for i := range specs {
		if l, ok := specs[i].Adapter.(models.ProviderLists); ok {
			out[specs[i].Name] = l
		}
	}
	return out
}

// unsubscribeURL returns the page at which recipients unsubscribe, without their token. It is
// empty without a public URL: recipients could not open the page.
func unsubscribeURL(cfg *config.Config) string {
	if cfg.PublicURL == "" {
		return ""
	}
	return strings.TrimSuffix(cfg.PublicURL, "/") + unsubscribe.Path
}

func (a *App) serviceConfig() service.Config {
	c := service.Config{
		Limits:         a.cfg.Limits,
		Times:          a.cfg.Times,
		UnsubscribeURL: unsubscribeURL(a.cfg),
		EndpointClient: outbound.New(a.cfg.AllowedEndpoints()),
		Quotas:         a.cfg.Quotas.Limits(),
		Currency:       a.cfg.Currency,
		Prices:         a.cfg.Prices(),
		DiskFree:       func() (int64, error) { return freeSpace(a.cfg.DataDir) },
		Sole:           SoleProcess(a.cfg),
		Operator:       func(u models.User) bool { return a.github.Load().Operator(u) },
		Priority:       a.priority,
		Logger:         a.log,
	}
	switch {
	case !a.command:
		c.SpoolDir = a.spoolDir()
	case !SoleProcess(a.cfg):
		c.DiskFree = nil // this machine may have no data folder
	}
	return c
}

// spoolDir returns the folder that keeps large requests while they are checked; "" is the system's temporary folder.
func (a *App) spoolDir() string {
	dir := filepath.Join(a.cfg.DataDir, "spool")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		a.log.Warn("cannot create the spool folder; using the system's temporary folder", "err", err)
		return ""
	}
	return dir
}

func (a *App) buildWebhooks(context.Context) error {
	if !a.cfg.Has("webhooks") {
		return nil
	}
	var hooks []webhooks.Provider
	for _, p := range a.providers {
		if p.Events == models.EventsWebhook {
			hooks = append(hooks, webhooks.Provider{Name: p.Name, Adapter: p.Adapter})
		}
	}
	a.hooks = webhooks.New(webhooksURL(a.cfg), a.store, near(a.broker, a.standby), hooks, a.priority, a.log)
	return nil
}

func (a *App) listen(ctx context.Context) error {
	l, err := listenOn(ctx, a.cfg, "listen", a.cfg.Listen)
	if err != nil {
		return err
	}
	limits := &a.cfg.Limits
	a.listener = limitConnections(l, limits.Connections, quarter(limits.Connections, limits.AddressConnections),
		a.cfg.ProxyNetworks(), func() { go a.pressure.note() })
	return nil
}

// dialects are the APIs of other services, by the names that operators give them.
var dialects = map[string]func() *dialect.Dialect{mailgun.Name: mailgun.New, resend.Name: resend.New, postmark.Name: postmark.New,
	sendgrid.Name: sendgrid.New}

func (a *App) buildAPI(context.Context) error {
	c := api.Config{MaxBody: a.cfg.Limits.Body, Logger: a.log, Refused: a.pressure.note}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(a.cfg.Dialects))) {
		c.Dialects = append(c.Dialects, dialects[name]())
	}
	a.addWork(&c)
	a.api = api.New(a.service, c)
	return nil
}

// speaking answers the paths of dialects by the API, and all others by next. A mux would redirect paths with two slashes.
func (a *App) speaking(next http.Handler) http.Handler {
	if a.dashboard == nil || len(a.cfg.Dialects) == 0 {
		return next
	}
	limited := limitBodies(a.api)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.api.Speaks(r.URL.Path) {
			limited.ServeHTTP(w, r)
		} else {
			next.ServeHTTP(w, r)
		}
	})
}

// route gives every path the part that answers it. Every role serves its health.
func (a *App) route(context.Context) error {
	a.metrics.MustRegister(&intake{a.hooks, a.service, a.mailbox.server})
	a.metrics.MustRegister(diskMetrics(a.cfg.DataDir, a.cfg.Limits.DiskReserve)...)
	all, mux := http.NewServeMux(), http.NewServeMux()
	all.Handle("/", limitBodies(mux))
	mux.Handle("/healthz", a.api)
	mux.Handle("/readyz", a.api)
	if a.hooks != nil {
		all.Handle("/webhooks/", answerEarly(a.hooks)) // it bounds the bodies of posts itself
	}
	if a.dashboard != nil {
		mux.Handle("/v1/", a.api)
		mux.Handle(unsubscribe.Path, unsubscribe.New(a.service, a.log))
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			if api.HasKey(r) { // a client of the API that left out /v1
				a.api.ServeHTTP(w, r)
				return
			}
			a.dashboard.ServeHTTP(w, r)
		})
	}
	stopped := make(chan struct{})
	a.http = &http.Server{
		Handler: limitAnswers(trustProxies(a.cfg.ProxyNetworks(),
			quarter(a.cfg.Limits.Connections, a.cfg.Limits.AddressConnections),
			slowStrangers(a.speaking(all), stopped, a.pressure.note))),
		HTTP2:             http2(),
		ConnContext:       placed,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	a.http.RegisterOnShutdown(sync.OnceFunc(func() { close(stopped) }))
	if a.certs != nil {
		a.http.TLSConfig = a.certs.serverConfig()
	}
	return nil
}

// Addr returns the address that the process listens on.
func (a *App) Addr() string { return a.listener.Addr().String() }

// Store returns the store of the process.
func (a *App) Store() models.Store { return a.store }

// Broker returns the broker of the process.
func (a *App) Broker() models.Broker { return a.broker }

// Service returns the use cases.
func (a *App) Service() *service.Service { return a.service }

// Engine returns the worker; nil without the role worker.
func (a *App) Engine() *consumers.Engine { return a.engine }

// Webhooks returns the webhook receiver; nil without the role webhooks.
func (a *App) Webhooks() *webhooks.Server { return a.hooks }

// Dashboard returns the dashboard; nil without the role api.
func (a *App) Dashboard() *dashboard.Dashboard { return a.dashboard }

// Config returns the configuration of the process, with the address that it listens on.
func (a *App) Config() config.Config {
	cfg := *a.cfg
	cfg.Listen = a.Addr()
	return cfg
}
