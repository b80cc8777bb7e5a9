// Package dashboard serves the web pages. It reads and changes mail through package
// service, as the API does; it uses the store only for sessions and their users.
//
// Pages are html/template and can be read without JavaScript. htmx, its extension
// for server-sent events, uPlot and the editor Squire are embedded; pages load nothing
// from other sites.
package dashboard

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// Store is the part of models.Store that sessions need.
type Store interface {
	CreateUser(ctx context.Context, u models.User) error
	User(ctx context.Context, id string) (models.User, error)
	UserByName(ctx context.Context, name string) (models.User, error)
	Claim(ctx context.Context, key string, c models.Claim, ttl time.Duration) (models.Claim, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// Deps are the dependencies and settings of a Dashboard.
type Deps struct {
	Store     Store
	Service   *service.Service
	PublicURL string         // URL for browsers; cookies are Secure if its scheme is https
	LocalURL  string         // URL on this machine, for one-time links; default: PublicURL
	GitHub    *GitHub        // nil: users log in by one-time links
	Providers []ProviderInfo // the configured providers
	// Inspect finds out about a provider, in bounded time. Nil: pages offer no check.
	Inspect func(ctx context.Context, provider string) []Finding
	Logger  *slog.Logger
}

// ProviderInfo is what pages show of a provider besides its health.
type ProviderInfo struct {
	Name     string
	Title    string // product name, like SendGrid
	Webhooks bool   // it reports events by webhook
	Verified bool   // a webhook key is configured
	Boxes    []models.EventBox
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
	verified   sync.Map // by name of a provider: what SetVerified said last
	inspect    func(ctx context.Context, provider string) []Finding
	inspecting sync.Map // names of the providers that are being inspected
	sessions   sessions
	pages      *pages
	live       *hub
	tracker    *tracker
	keeping    keptBudget // of the forms that are kept
	chunks     chunks

	histories histories
	names     sync.Map // names of users by ID; they never change
	mux       *http.ServeMux
	handler   http.Handler
}

// New returns a dashboard and starts to sample the providers until Close.
func New(d Deps) (*Dashboard, error) {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	public, err := url.Parse(strings.TrimSuffix(d.PublicURL, "/"))
	if err != nil || public.Scheme != "http" && public.Scheme != "https" || public.Host == "" {
		return nil, errors.New("dashboard: the public URL is not an http:// or https:// URL")
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
		inspect:    d.Inspect,
		sessions:   sessions{store: d.Store},
		keeping:    keptBudget{all: semaphore.NewWeighted(keptBytes)},
		pages:      pages,
		live:       newHub(d.Logger),
		chunks:     chunks{service: d.Service, readers: map[string]*chunkReader{}},
		histories:  histories{kept: map[client.HistoryRange]*keptHistory{}},
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

// Close ends all live connections. Open pages say that the connection is lost and
// reconnect.
func (d *Dashboard) Close() { d.live.close() }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// routes returns the handler of all pages. Only POST requests change anything.
func (d *Dashboard) routes() http.Handler {
	mux := http.NewServeMux()
	d.mux = mux
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
	mux.HandleFunc("/", d.noRoute)
	return mux
}

// noRoute answers a request for a path without a page: a browser gets an error page, and
// any other client gets a problem, as from the API. Both are 404 with or without a session, so
// that no program mistakes the login page for an answer.
func (d *Dashboard) noRoute(w http.ResponseWriter, r *http.Request) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if reads && strings.Contains(r.Header.Get("Accept"), "text/html") {
		if d.routed(http.MethodPost, r.URL.Path) { // typed, or a bookmark
			seeOther(w, r, d.pageOf(r.URL.Path))
			return
		}
		v, err := d.visitor(r)
		if err != nil {
			v = nil // the page is the same for a stranger
		}
		w.Header().Set("Cache-Control", "no-store")
		d.fail(w, r, v, errNoPage)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, `{"type":"https://github.com/safedelivr/safedelivr/blob/main/docs/errors.md#no_such_route",`+
		`"title":"Not Found","status":404,"code":"no_such_route",`+
		`"detail":"There is no resource at this path. See /v1/openapi.yaml."}`+"\n")
}

// routed reports whether there is a route for a path.
func (d *Dashboard) routed(method, path string) bool {
	_, pattern := d.mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
	return pattern != "/"
}

// pageOf returns the page that has the form for a path. The fragment is the section.
func (d *Dashboard) pageOf(of string) string {
	section := ""
	for at := of; at != "/"; at = path.Dir(at) {
		if d.routed(http.MethodGet, at) {
			return (&url.URL{Path: at, Fragment: section}).String()
		}
		section = path.Base(at)
	}
	return "/"
}

// handler serves a page to a visitor who is logged in. An error that it returns is
// shown as an error page.
type handler func(w http.ResponseWriter, r *http.Request, v *visitor) error

func (d *Dashboard) userRoutes() map[string]handler {
	routes := map[string]handler{
		"GET /{$}":           d.overview,
		"GET /live/overview": d.overviewEvents,

		"GET /keys/{id}/requests": d.requests,

		"GET /search": d.search,
		"GET /logs":   d.logs,

		"POST /everyone": d.setEveryone,

		"GET /batches":                 d.batches,
		"GET /live/batches":            d.batchesEvents,
		"GET /batches/{id}":            d.batch,
		"GET /live/batches/{id}":       d.batchEvents,
		"GET /batches/{id}/preview":    d.previewBatch,
		"GET /batches/{id}/export.csv": d.exportBatch,

		"GET /batches/{id}/attachments/{number}": d.attachment,

		"POST /selected/{do}": d.sendSelected,

		"GET /batches/{id}/reschedule":  d.askTimes,
		"POST /batches/{id}/reschedule": d.reschedule,

		"GET /batches/{id}/{do}":  d.askBatch,
		"POST /batches/{id}/{do}": d.controlBatch,

		"GET /logs/{id}/release":  d.askLog,
		"POST /logs/{id}/release": d.releaseLog,

		"GET /docs": d.docs,

		"GET /logs/{id}":                     d.logPage,
		"GET /logs/{id}/mail":                d.mailOfLog,
		"GET /logs/{id}/requests/{provider}": d.requestOfLog,
		"GET /live/logs/{id}":                d.logEvents,

		"POST /selected/suppress":           d.suppressSelected,
		"GET /endpoints":                    d.listEndpoints,
		"POST /endpoints":                   d.addEndpoint,
		"GET /endpoints/{id}":               d.endpoint,
		"POST /endpoints/{id}/{do}":         d.controlEndpoint,
		"GET /statistics":                   d.statistics,
		"GET /suppressions":                 d.suppressions,
		"GET /suppressions/export.csv":      exportSuppressions(d),
		"POST /suppressions":                d.addSuppression,
		"GET /suppressions/{email}/remove":  d.askSuppression,
		"POST /suppressions/{email}/remove": d.removeSuppression,

		"GET /providers":      d.providers,
		"GET /live/providers": d.providersEvents,
	}
	maps.Copy(routes, writingRoutes(d))
	maps.Copy(routes, settingsRoutes(d))
	return routes
}

// writingRoutes are the routes of pages on which mail is written.
func writingRoutes(d *Dashboard) map[string]handler {
	return map[string]handler{
		"GET /compose":          d.compose,
		"POST /compose":         d.send,
		"POST /compose/preview": d.preview,
		"POST /compose/columns": showColumns(d),
		"POST /compose/summary": showSummary(d),

		"GET /drafts":              d.drafts,
		"POST /drafts":             d.saveDraft,
		"POST /drafts/{id}/delete": d.deleteDraft,

		"GET /templates":                 d.templates,
		"GET /templates/{name}":          d.template,
		"POST /templates/{name}":         d.saveTemplate,
		"POST /templates/{name}/preview": d.previewTemplate,
		"POST /templates/{name}/values":  showValues(d),
		"POST /templates/{name}/publish": d.publishTemplate,
		"POST /templates/{name}/archive": d.archiveTemplate,
	}
}

// settingsRoutes are the routes of Settings.
func settingsRoutes(d *Dashboard) map[string]handler {
	routes := map[string]handler{
		"GET /settings":                            firstSettings,
		"POST /settings/keys":                      d.createKey,
		"POST /settings/times":                     d.setDefaults,
		"POST /settings/keys/{id}/revoke":          d.revokeKey,
		"POST /settings/account/sessions/{id}/end": d.endSession,
	}
	for _, p := range settingsPages {
		routes["GET "+settingsPath(p.name)] = settings(d, p.name)
	}
	return routes
}

func (d *Dashboard) operatorRoutes() map[string]handler {
	routes := map[string]handler{
		"GET /providers/{name}/check": d.inspectProvider,
		"GET /providers/{name}/{do}":  d.askProvider,
		"POST /providers/{name}/{do}": d.switchProvider,

		"GET /providers/{name}/suppressions":                       d.listedAtProvider,
		"GET /providers/{name}/suppressions/{list}/{email}/clear":  d.askClear,
		"POST /providers/{name}/suppressions/{list}/{email}/clear": d.clearAtProvider,

		"GET /live/operations":       d.operationsEvents,
		"POST /operations/blocks":    d.addBlock,
		"POST /operations/users":     d.controlUser,
		"GET /operations/users/{id}": d.userPage,
		"GET /operations/keys":       d.keysPage,

		"GET /operations/users/{id}/limits":  d.limits,
		"POST /operations/users/{id}/limits": d.setLimits,

		"GET /operations/users/{id}/keys/{key}/limits":  d.limits,
		"POST /operations/users/{id}/keys/{key}/limits": d.setLimits,
		"POST /operations/users/{id}/keys/{key}/revoke": d.revokeKeyOf,

		"GET /operations/holds/lift":        d.askHolds,
		"POST /operations/holds/lift":       d.liftHolds,
		"POST /operations/{what}/{id}/{do}": d.operate,

		"GET /installation/endpoints":            d.listEndpoints,
		"POST /installation/endpoints":           d.addEndpoint,
		"GET /installation/endpoints/{id}":       d.endpoint,
		"POST /installation/endpoints/{id}/{do}": d.controlEndpoint,
	}
	for _, p := range operationsPages {
		routes["GET "+operationsPath(p.name)] = d.operations(p.name)
	}
	return routes
}

// forUsers passes the visitor to h, or redirects to the login page.
func (d *Dashboard) forUsers(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := d.visitor(r)
		page := r.Method == http.MethodGet && r.Header.Get("Accept") != "text/event-stream"
		switch {
		case errors.Is(err, models.ErrNotFound) && page:
			seeOther(w, r, "/login?to="+url.QueryEscape(r.URL.RequestURI()))
		case errors.Is(err, models.ErrNotFound) && r.Method == http.MethodPost:
			d.keepForm(w, r)
		case errors.Is(err, models.ErrNotFound):
			d.fail(w, r, nil, errNoSession)
		case err != nil:
			d.fail(w, r, nil, err)
		default:
			known.Mark(r.Context())
			w.Header().Set("Cache-Control", "no-store")
			if err := d.limited(w, r, v, h); err != nil {
				d.fail(w, r, v, err)
			}
		}
	})
}

// isFeed reports whether the route of a request is one of a live feed.
func isFeed(r *http.Request) bool { return strings.HasPrefix(r.Pattern, "GET /live/") }

// limited calls h within the visitor's limits. A live feed counts only until it begins.
func (d *Dashboard) limited(w http.ResponseWriter, r *http.Request, v *visitor, h handler) error {
	end, err := d.service.Limits.AdmitPage(r.Context(), v.caller())
	if err != nil {
		return err
	}
	if isFeed(r) {
		end()
	} else {
		defer end()
	}
	return h(w, r, v)
}

// maxKept is the size in bytes of the largest form that is kept when the session has ended, and keptBytes that of all
// such forms that are being read: anybody may send one. An address has as much of it as one form needs.
const (
	maxKept   = 4 << 20
	keptBytes = 4 * maxKept
)

// keptBudget counts the bytes of forms as they arrive, so that slow forms keep out no other.
type keptBudget struct {
	all *semaphore.Weighted
	of  perclient.Counts
}

// take takes n more bytes for an address. It returns false if they are too many.
func (k *keptBudget) take(address netip.Addr, n int64) bool {
	if !k.of.Add(address, n, maxKept) {
		return false
	}
	if !k.all.TryAcquire(n) {
		k.of.Remove(address, n)
		return false
	}
	return true
}

// release gives back the bytes of a form.
func (k *keptBudget) release(address netip.Addr, n int64) {
	k.all.Release(n)
	k.of.Remove(address, n)
}

// keptBody is the body of a form that counts against the budget.
type keptBody struct {
	io.ReadCloser
	budget  *keptBudget
	address netip.Addr
	size    int64
}

var errKept = errors.New("too many forms are being read")

// Read implements io.Reader.
func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.budget.take(b.address, int64(n)) {
		return 0, errKept
	}
	b.size += int64(n)
	return n, err
}

// keptForm is a form that was sent after the session had ended.
type keptForm struct {
	To        string
	Multipart bool
	Fields    url.Values
	Lost      bool // it was too large, or could not be read
}

// keepForm answers a form that came without a session: with the form, to send it again after
// a login.
func (d *Dashboard) keepForm(w http.ResponseWriter, r *http.Request) {
	body := &keptBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxKept), budget: &d.keeping, address: perclient.Address(r)}
	defer func() { d.keeping.release(body.address, body.size) }()
	r.Body = body
	kept := keptForm{To: r.URL.RequestURI()}
	err := r.ParseForm()
	if err == nil {
		err = r.ParseMultipartForm(maxKept) //nolint:gosec // bounded above
	}
	if errors.Is(err, errKept) {
		d.fail(w, r, nil, errNoSession)
		return
	}
	kept.Multipart = !errors.Is(err, http.ErrNotMultipart)
	kept.Fields, kept.Lost = r.PostForm, err != nil && kept.Multipart
	w.Header().Set("Cache-Control", "no-store")
	d.render(w, r, nil, http.StatusUnauthorized, "ended", page{Title: "Your session has ended", Data: kept})
}

func operatorsOnly(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if !v.Operator {
			return errNoPage // do not reveal that the page exists
		}
		return h(w, r, v)
	}
}

var (
	errNoSession = service.Fail(
		service.Unauthorized,
		"no_session",
		"You are not logged in, or your session has ended. Log in and try again.",
	)
	errNoPage = service.Fail(
		service.NotFound,
		"not_found",
		"This page does not exist, or you do not have access to it.",
	)
)

// fail shows an error page. Errors of the server are logged.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, v *visitor, err error) {
	if r.Context().Err() != nil {
		return // the browser is gone
	}
	var e *service.Error
	if !errors.As(err, &e) {
		e = service.Fail(service.Internal, "internal", "Something went wrong. The server's log has the details.")
	}
	status := e.Kind.Status()
	if status >= http.StatusInternalServerError {
		d.log.Error("page failed", "path", r.URL.Path, "err", err)
	}
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	d.render(w, r, v, status, "error", page{Title: http.StatusText(status), Data: e})
}
