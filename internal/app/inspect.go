package app

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers/provider"
	pages "github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/internal/dnscheck"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// inspectTime bounds what InspectProvider asks of a provider and of DNS.
const inspectTime = 30 * time.Second

// InspectProvider finds out whether the key of a provider can send, which domains are verified there, whether its
// webhooks come here, and what the DNS of the domains has. A nil resolver is that of the system. No mail is sent.
func InspectProvider(
	ctx context.Context,
	cfg *config.Config,
	spec *provider.Spec,
	resolver dnscheck.Resolver,
) []providers.Finding {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	url := ""
	if spec.Events == models.EventsWebhook {
		url = webhooksURL(cfg) + spec.Name
	}
	account, err := providers.Inspect(ctx, spec.Adapter, url)
	if err != nil {
		account.Add(providers.Unknown, "key", err.Error(), "Check the network from this machine, and base_url.")
	}
	if url == "" {
		account.Add(providers.OK, "webhooks", "are not used (events: none): mail that it accepted counts as delivered", "")
	} else if !strings.HasPrefix(url, "https://") {
		account.Add(providers.Warning, "webhooks", url+" cannot be reached by the provider",
			"Set SAFEDELIVR_PUBLIC_URL to an https:// URL of this server, or the provider's EVENTS to none.")
	}
	for _, d := range account.Domains {
		account.Findings = append(account.Findings, dnscheck.Domain(ctx, resolver, d)...)
	}
	return account.Findings
}

// webhooksURL returns where the providers reach this server, without the name of a provider.
func webhooksURL(cfg *config.Config) string {
	return strings.TrimSuffix(cmp.Or(cfg.PublicURL, LocalURL(cfg)), "/") + "/webhooks/"
}

// inspect is InspectProvider for the dashboard.
func (a *App) inspect(ctx context.Context, name string) (out []pages.Finding) {
	cfg := a.Config()
	for i := range a.providers {
		if a.providers[i].Name != name {
			continue
		}
		for _, f := range InspectProvider(ctx, &cfg, &a.providers[i], a.resolver) {
			out = append(out, pages.Finding{State: string(f.State), About: f.About, Text: f.Text, ToDo: f.ToDo})
		}
	}
	return out
}
