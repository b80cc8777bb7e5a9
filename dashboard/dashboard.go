// Package dashboard serves the web pages. It reads and changes mail through package service, as the API does; it uses
// the store only for sessions and their users.
//
// Pages are html/template and can be read without JavaScript. htmx, its extension
// for server-sent events, uPlot and the editor Squire are embedded; pages load nothing
// from other sites.
//
// Each folder has the pages of a noun: their handlers, their templates and their routes. Package web is their frame.
package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/attention"
	"github.com/safedelivr/safedelivr/dashboard/compose"
	"github.com/safedelivr/safedelivr/dashboard/docs"
	"github.com/safedelivr/safedelivr/dashboard/endpoints"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/mail"
	"github.com/safedelivr/safedelivr/dashboard/operations"
	"github.com/safedelivr/safedelivr/dashboard/overview"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/settings"
	"github.com/safedelivr/safedelivr/dashboard/suppressions"
	"github.com/safedelivr/safedelivr/dashboard/templates"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// Deps are the dependencies and settings of a Dashboard.
type Deps struct {
	Store     web.Store
	Service   *service.Service
	PublicURL string         // URL for browsers; cookies are Secure if its scheme is https
	LocalURL  string         // URL on this machine, for one-time links; default: PublicURL
	GitHub    *login.GitHub  // nil: users log in by one-time links
	Providers []web.Provider // the configured providers
	// Inspect finds out about a provider, in bounded time. Nil: pages offer no check.
	Inspect func(ctx context.Context, provider string) []providers.Finding
	// Refuse answers a program that asks for a path of no page, or for one that has only these methods.
	Refuse func(w http.ResponseWriter, r *http.Request, methods []string)
	Logger *slog.Logger
}

// Dashboard serves the pages.
type Dashboard struct {
	web       *web.Frame
	accounts  *login.Accounts
	local     string // URL of one-time links
	providers *providers.Pages
	rooms     []web.Routes
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
	accounts := login.NewAccounts(d.Store, d.Logger, d.GitHub, public)
	frame, err := web.New(web.Config{
		Store:      d.Store,
		People:     d.Service.People,
		Limits:     d.Service.Limits,
		Accounts:   accounts,
		Public:     public,
		Providers:  web.NewProviders(d.Providers),
		Operations: web.NewOperations(service.Operations(d.Service)),
		Refuse:     d.Refuse,
		Log:        d.Logger,
	})
	if err != nil {
		return nil, err
	}
	b := &Dashboard{
		web: frame, accounts: accounts, local: strings.TrimSuffix(d.LocalURL, "/"),
		providers: providers.New(frame, d.Service, d.Inspect),
	}
	troubles := attention.New(d.Service)
	editor := templates.New(frame, d.Service)
	b.rooms = []web.Routes{ // in the order of the navigation
		frame.Routes(),
		login.New(frame, accounts, d.Service.People).Routes(),
		compose.New(frame, d.Service, editor).Routes(),
		editor.Routes(),
		mail.Routes(frame, d.Service),
		overview.New(frame, d.Service, b.providers, troubles).Routes(),
		suppressions.New(frame, d.Service.Suppressions).Routes(),
		b.providers.Routes(),
		endpoints.New(frame, d.Service.Endpoints).Routes(),
		operations.New(frame, d.Service, b.providers, troubles).Routes(),
		settings.New(frame, d.Service, b.providers).Routes(),
		docs.Routes(frame),
	}
	b.handler = frame.Serve(b.rooms...)
	b.providers.Sample(context.Background(), time.Now())
	frame.Go(b.providers.Run)
	return b, nil
}

// LoginLink returns a one-time link for a user that works only on this machine. It fails if users log in through
// GitHub.
func (d *Dashboard) LoginLink(ctx context.Context, u models.User) (string, error) {
	return d.accounts.LocalLink(ctx, d.local, u)
}

// Arrived reports whether a user has an open session.
func (d *Dashboard) Arrived(ctx context.Context, user string) bool {
	open, err := d.web.Sessions.List(ctx, user)
	return err == nil && len(open) > 0
}

// SetGitHub replaces the client secret and the lists of operators, logins and organisations, from the next request on.
// Nothing else changes.
func (d *Dashboard) SetGitHub(g login.GitHub) { d.accounts.SetGitHub(g) }

// SetVerified records whether a webhook key of a provider is configured, after a change.
func (d *Dashboard) SetVerified(provider string, verified bool) {
	d.web.Providers.SetVerified(provider, verified)
}

// Close ends all live connections. Open pages say that the connection is lost and reconnect.
func (d *Dashboard) Close() { d.web.Close() }

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }
