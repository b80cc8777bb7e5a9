package app

import (
	"context"
	"net"
	"net/netip"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// buildDashboard needs the listener, whose address is in links.
func (a *App) buildDashboard(context.Context) (err error) {
	if !a.cfg.Has("api") {
		return nil
	}
	d := dashboard.Deps{
		Store:     a.store,
		Service:   a.service,
		PublicURL: a.cfg.PublicURL,
		Inspect:   a.inspect,
		Refuse:    a.api.Refuse,
		Logger:    a.log,
	}
	cfg := a.Config()
	d.LocalURL = LocalURL(&cfg)
	if d.PublicURL == "" {
		d.PublicURL = d.LocalURL
	}
	d.GitHub = a.github.Load()
	for _, p := range a.providers {
		info := web.Provider{
			Name:     p.Name,
			Title:    p.Kind,
			Webhooks: p.Events == models.EventsWebhook,
			Verified: providerSettings(a.cfg, p.Name).Verifiable(),
		}
		if k, ok := providers.Find(p.Kind); ok {
			info.Title, info.Boxes = k.Title, k.Boxes
		}
		d.Providers = append(d.Providers, info)
	}
	a.dashboard, err = dashboard.New(d)
	return err
}

// githubOf returns the settings of the login through GitHub; nil: it is not used.
func githubOf(cfg *config.Config) *login.GitHub {
	g := &cfg.GitHub
	if g.ClientID == "" {
		return nil
	}
	return &login.GitHub{
		ClientID:     g.ClientID,
		ClientSecret: g.ClientSecret,
		BaseURL:      g.BaseURL,
		APIURL:       g.APIURL,
		Operators:    g.Operators,
		Logins:       g.Logins,
		Orgs:         g.Orgs,
	}
}

// LoginLink makes a one-time link that logs u in to the dashboard. It returns "" without the role api, and if people
// log in through GitHub.
func (a *App) LoginLink(ctx context.Context, u models.User) (string, error) {
	if a.dashboard == nil || a.cfg.GitHub.ClientID != "" {
		return "", nil
	}
	return a.dashboard.LoginLink(ctx, u)
}

// LocalURL returns where this machine reaches a server with a configuration.
func LocalURL(cfg *config.Config) string {
	scheme := "http://"
	if cfg.TLS.Cert != "" {
		scheme = "https://"
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return scheme + cfg.Listen
	}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() {
		return scheme + cfg.Listen
	}
	return scheme + net.JoinHostPort("127.0.0.1", port)
}
