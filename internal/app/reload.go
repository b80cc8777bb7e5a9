package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/providers"
)

// Reload applies the parts of a new configuration that can change while the process runs: the API keys, passwords,
// clients for access tokens and webhook keys of providers, the client secret and lists of GitHub, and the certificates.
// Requests and calls in flight end as they began. Other changes are named in a warning. If anything is wrong, Reload
// changes nothing and returns all mistakes. The caller makes one call at a time.
func (a *App) Reload(next *config.Config) error {
	var mistakes []error
	for _, p := range a.providers {
		if _, ok := next.Providers[p.Name]; ok {
			mistakes = append(mistakes, checkProvider(next, a.settingsFrom(next, p.Name))...)
		}
	}
	for _, c := range a.listened() {
		if _, err := c.load(); err != nil {
			mistakes = append(mistakes, c.unusable(err))
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return fmt.Errorf("the configuration has mistakes:\n%w", err)
	}
	for _, p := range a.providers {
		if _, ok := next.Providers[p.Name]; ok {
			s := a.settingsFrom(next, p.Name)
			providers.SetKeys(p.Adapter, s)
			if a.dashboard != nil {
				a.dashboard.SetVerified(p.Name, s.Verifiable())
			}
		}
	}
	if g := githubOf(next); g != nil && a.github.Load() != nil {
		a.github.Store(g)
		if a.dashboard != nil {
			a.dashboard.SetGitHub(*g)
		}
	}
	if names := a.cfg.NeedRestart(next); len(names) > 0 {
		a.log.Warn("some settings have changed and are used only after a restart", "settings", strings.Join(names, ", "))
	}
	a.log.Info("configuration reloaded")
	return nil
}

// settingsFrom returns the settings of a provider with the keys of another configuration.
func (a *App) settingsFrom(next *config.Config, name string) providers.Settings {
	s, n := providerSettings(a.cfg, name), providerSettings(next, name)
	s.APIKey, s.Pair, s.BouncePassword = n.APIKey, n.Pair, n.BouncePassword
	if s.TokenURL == n.TokenURL { // otherwise these are of no use before a restart
		s.Password, s.ClientID, s.ClientSecret, s.RefreshToken = n.Password, n.ClientID, n.ClientSecret, n.RefreshToken
	}
	s.AccessKeyID, s.SecretAccessKey, s.Topics = n.AccessKeyID, n.SecretAccessKey, n.Topics
	s.WebhookKey, s.WebhookKeyOld, s.Events = n.WebhookKey, n.WebhookKeyOld, n.Events
	return s
}
