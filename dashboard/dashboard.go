// Package dashboard is the web pages: what a person sees of the mail, and does
// about it. It reads and changes things through the service alone, as the API
// does; of the store it uses the sessions and the users behind them.
//
// Pages are Go's html/template, readable without JavaScript. htmx, its
// extension for server-sent events and uPlot are embedded, so that nothing is
// loaded from anywhere else.
package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// Store is the part of models.Store that sessions need.
type Store interface {
	CreateUser(ctx context.Context, u models.User) error
	User(ctx context.Context, id string) (models.User, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// Deps is what a dashboard stands on.
type Deps struct {
	Store     Store
	Service   *service.Service
	PublicURL string         // as browsers reach it; its scheme decides whether cookies are Secure
	LocalURL  string         // as this machine reaches it, for one-time links
	GitHub    *GitHub        // nil: people log in by one-time links, on this machine only
	Providers []ProviderInfo // what is known of the providers beyond their health
	Logger    *slog.Logger
}

// ProviderInfo is what a page tells of a provider that its health does not say.
type ProviderInfo struct {
	Name     string
	Title    string // of its provider, for people
	Webhooks bool   // it reports events to us
	Verified bool   // its webhooks can be verified: a key is configured
}

// Dashboard serves the pages.
type Dashboard struct {
	store      Store
	service    *service.Service
	log        *slog.Logger
	public     *url.URL
	local      string
	github     *githubLogin // nil: one-time links
	configured []ProviderInfo
	sessions   sessions
	pages      *pages
	live       *hub
	tracker    *tracker
	chunks     chunks

	histories histories
	names     sync.Map // of users, by id; they never change
	handler   http.Handler
}

// New builds the dashboard and begins to watch the providers; Close ends that.
func New(d Deps) (*Dashboard, error) {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	public, err := url.Parse(strings.TrimSuffix(d.PublicURL, "/"))
	if err != nil || public.Scheme != "http" && public.Scheme != "https" || public.Host == "" {
		return nil, errors.New("dashboard: the public address is not an http:// or https:// URL")
	}
	if d.LocalURL == "" {
		d.LocalURL = public.String()
	}
	pages, err := loadPages()
	if err != nil {
		return nil, err
	}
	b := &Dashboard{
		store:      d.Store,
		service:    d.Service,
		log:        d.Logger,
		public:     public,
		local:      strings.TrimSuffix(d.LocalURL, "/"),
		configured: d.Providers,
		sessions:   sessions{store: d.Store},
		pages:      pages,
		live:       newHub(d.Logger),
		chunks:     chunks{service: d.Service, readers: map[string]*chunkReader{}},
		histories:  histories{kept: map[service.HistoryRange]*keptHistory{}},
		tracker:    &tracker{service: d.Service, history: map[string][]sample{}},
	}
	if d.GitHub != nil {
		b.github = newGitHubLogin(*d.GitHub, public)
	}
	b.handler = b.secured(b.routes())
	b.tracker.sample(b.live.ctx, time.Now())
	b.live.wg.Go(func() { b.tracker.run(b.live.ctx) })
	return b, nil
}

// Close ends all live connections; pages say that the connection is lost, and
// try again.
func (d *Dashboard) Close() { d.live.close() }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// routes is everything there is. Whatever changes something is a POST.
func (d *Dashboard) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /assets/{name...}", d.pages.assets)
	mux.HandleFunc("GET /login", d.loginPage)
	mux.HandleFunc("GET /login/link", d.linkPage)
	mux.HandleFunc("POST /login/link", d.linkLogin)
	mux.HandleFunc("POST /login/github", d.githubStart)
	mux.HandleFunc("GET /login/github/callback", d.githubCallback)
	mux.HandleFunc("POST /logout", d.logout)
	mux.HandleFunc("POST /theme", d.setTheme)
	for pattern, h := range d.userRoutes() {
		mux.Handle(pattern, d.forUsers(h))
	}
	for pattern, h := range d.operatorRoutes() {
		mux.Handle(pattern, d.forUsers(operatorsOnly(h)))
	}
	mux.Handle("/", d.forUsers(func(http.ResponseWriter, *http.Request, *visitor) error { return errNoPage }))
	return mux
}

// handler is a page for somebody who is logged in. An error it returns is shown
// as a page of its own.
type handler func(w http.ResponseWriter, r *http.Request, v *visitor) error

func (d *Dashboard) userRoutes() map[string]handler {
	return map[string]handler{
		"GET /{$}":           d.overview,
		"GET /live/overview": d.overviewEvents,

		"GET /batches":                 d.batches,
		"GET /live/batches":            d.batchesEvents,
		"GET /batches/{id}":            d.batch,
		"GET /live/batches/{id}":       d.batchEvents,
		"GET /batches/{id}/preview":    d.previewBatch,
		"GET /batches/{id}/export.csv": d.exportBatch,

		"GET /batches/{id}/{do}":  d.askBatch,
		"POST /batches/{id}/{do}": d.steerBatch,

		"GET /logs/{id}/release":  d.askLog,
		"POST /logs/{id}/release": d.releaseLog,

		"GET /docs": d.docs,

		"GET /logs/{id}":      d.logPage,
		"GET /live/logs/{id}": d.logEvents,

		"GET /compose":          d.compose,
		"POST /compose":         d.send,
		"POST /compose/preview": d.preview,

		"GET /providers":      d.providers,
		"GET /live/providers": d.providersEvents,

		"GET /settings":                    d.settings,
		"POST /settings/keys":              d.createKey,
		"POST /settings/keys/{id}/revoke":  d.revokeKey,
		"POST /settings/sessions/{id}/end": d.endSession,
	}
}

func (d *Dashboard) operatorRoutes() map[string]handler {
	return map[string]handler{
		"GET /providers/{name}/{do}":  d.askProvider,
		"POST /providers/{name}/{do}": d.switchProvider,

		"GET /operations":                   d.operations,
		"GET /live/operations":              d.operationsEvents,
		"POST /operations/blocks":           d.addBlock,
		"POST /operations/users":            d.steerUser,
		"GET /operations/holds/lift":        d.askHolds,
		"POST /operations/holds/lift":       d.liftHolds,
		"POST /operations/{what}/{id}/{do}": d.operate,
	}
}

// forUsers finds the visitor, or sends the browser to the login.
func (d *Dashboard) forUsers(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := d.visitor(r)
		switch {
		case errors.Is(err, models.ErrNotFound) && r.Method == http.MethodGet && r.Header.Get("Accept") != "text/event-stream":
			seeOther(w, r, "/login?to="+url.QueryEscape(r.URL.RequestURI()))
		case errors.Is(err, models.ErrNotFound):
			d.fail(
				w,
				r,
				nil,
				service.Fail(service.Unauthorized, "no_session", "You are not logged in, or your session has ended. Log in again."),
			)
		case err != nil:
			d.fail(w, r, nil, err)
		default:
			w.Header().Set("Cache-Control", "no-store")
			if err := h(w, r, v); err != nil {
				d.fail(w, r, v, err)
			}
		}
	})
}

func operatorsOnly(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if !v.Operator {
			return errNoPage // it is nobody's business that there is one
		}
		return h(w, r, v)
	}
}

var errNoPage = service.Fail(service.NotFound, "not_found", "There is nothing at this address, or it is not yours.")

// statuses are the HTTP statuses of the kinds of error.
var statuses = map[service.Kind]int{
	service.Malformed: http.StatusBadRequest, service.Unauthorized: http.StatusUnauthorized, service.NotFound: http.StatusNotFound,
	service.Forbidden: http.StatusForbidden, service.NotAllowed: http.StatusMethodNotAllowed, service.Conflict: http.StatusConflict, service.TooLarge: http.StatusRequestEntityTooLarge,
	service.Unsupported: http.StatusUnsupportedMediaType, service.Invalid: http.StatusUnprocessableEntity, service.Unavailable: http.StatusServiceUnavailable,
}

// fail shows an error. What a person can do nothing about is logged.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, v *visitor, err error) {
	if r.Context().Err() != nil {
		return // nobody is there any more
	}
	var e *service.Error
	if !errors.As(err, &e) {
		e = service.Fail(service.Internal, "internal", "Something went wrong here. It is in the server's log.")
	}
	status, ok := statuses[e.Kind]
	if !ok {
		status = http.StatusInternalServerError
	}
	if status >= http.StatusInternalServerError {
		d.log.Error("page failed", "path", r.URL.Path, "err", err)
	}
	d.render(w, r, v, status, "error", page{Title: http.StatusText(status), Data: e})
}
