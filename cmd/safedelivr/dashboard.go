package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// openDashboard builds the pages; the listener must be there.
func (a *app) openDashboard() (err error) {
	d := dashboard.Deps{Store: a.store, Service: a.service, PublicURL: a.cfg.PublicURL, LocalURL: localURL(a.addr()), Logger: a.log}
	if d.PublicURL == "" {
		d.PublicURL = d.LocalURL
	}
	if g := &a.cfg.GitHub; g.ClientID != "" {
		d.GitHub = &dashboard.GitHub{ClientID: g.ClientID, ClientSecret: g.ClientSecret, BaseURL: g.BaseURL, APIURL: g.APIURL,
			Operators: g.Operators, Logins: g.Logins, Orgs: g.Orgs}
	}
	for _, acc := range a.providers {
		info := dashboard.ProviderInfo{Name: acc.Name, Title: acc.Kind, Webhooks: acc.Events == models.EventsWebhook, Verified: a.cfg.Providers[acc.Name].WebhookKey != ""}
		if k, ok := providers.Find(acc.Kind); ok {
			info.Title = k.Title
		}
		d.Providers = append(d.Providers, info)
	}
	a.dashboard, err = dashboard.New(d)
	return err
}

// loginLink makes a one-time link for the dashboard; empty where people log in
// through GitHub.
func (a *app) loginLink(ctx context.Context, u models.User) (string, error) {
	if a.dashboard == nil || a.cfg.GitHub.ClientID != "" {
		return "", nil
	}
	return a.dashboard.LoginLink(ctx, u)
}

// localURL is where this machine reaches a door that listens on addr.
func localURL(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "http://" + addr
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// loginCommand prints a one-time link. A server that has the data folder makes
// it, like users and keys.
func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use: "login", Short: "Print a link that logs in to the dashboard as an operator, once, on this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if cfg.GitHub.ClientID != "" {
				return fmt.Errorf("people log in through GitHub here: open %s", cfg.PublicURL)
			}
			return c.withStore(cmd.Context(), true, func(ctx context.Context, s models.Store) error {
				link, err := dashboard.NewLoginLink(ctx, s, localURL(listenAddr(&cfg)), dashboard.LocalUser())
				if err != nil {
					return err
				}
				fmt.Fprintln(c.out, link)
				return nil
			})
		},
	}
}

func listenAddr(cfg *config.Config) string {
	if strings.HasPrefix(cfg.Listen, ":") {
		return "127.0.0.1" + cfg.Listen
	}
	return cfg.Listen
}
