package app

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/providers"
)

// Check returns all that keeps a configuration from being served: what config.Load has found, mistakes in the settings
// of providers, and addresses that cannot be listened on.
func Check(ctx context.Context, cfg *config.Config, found error) error {
	mistakes, wrong := []error{found}, map[string]bool{}
	if all, ok := found.(interface{ Unwrap() []error }); ok {
		for _, err := range all.Unwrap() {
			var m config.Mistake
			if errors.As(err, &m) {
				wrong[m.Setting] = true
			}
		}
	}
	add := func(err error) {
		var m config.Mistake
		if errors.As(err, &m) && !wrong[m.Setting] {
			mistakes = append(mistakes, m)
		}
	}
	for _, name := range cfg.ProviderNames() {
		for _, err := range checkProvider(cfg, providerSettings(cfg, name)) {
			add(err)
		}
	}
	addresses := map[string][]string{"listen": {cfg.Listen}}
	if cfg.Has("api") { // processes on one machine may have the same settings and other roles
		addresses["smtp.listen"], addresses["smtps.listen"] = cfg.SMTP.Listen, cfg.SMTPS.Listen
	}
	if at := cfg.Metrics.Listen; at != "off" && at != config.Defaults().Metrics.Listen {
		addresses["metrics.listen"] = []string{at}
	}
	for _, setting := range []string{"listen", "smtp.listen", "smtps.listen", "metrics.listen"} {
		for _, address := range addresses[setting] {
			if wrong[setting] || address == "" {
				continue
			}
			l, err := listenOn(ctx, cfg, setting, address)
			if err == nil {
				_ = l.Close() // the server listens there in a moment
			}
			add(err)
		}
	}
	return errors.Join(mistakes...)
}

// checkProvider returns the mistakes in the settings of a provider.
func checkProvider(cfg *config.Config, s providers.Settings) []error {
	var out []error
	for _, err := range providers.Check(s) {
		var m providers.Mistake
		if errors.As(err, &m) {
			err = cfg.Mistake("providers."+s.Name+"."+m.Setting, "%s", m.Text)
		}
		out = append(out, err)
	}
	return out
}

// listenOn listens on the address in a setting.
func listenOn(ctx context.Context, cfg *config.Config, setting, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, cfg.Mistake(setting, "%s is in use by another program: stop it, or set another address", address)
	case err != nil:
		return nil, cfg.Mistake(setting, "%s", err)
	}
	return l, nil
}
