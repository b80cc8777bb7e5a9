package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) providerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Take providers offline and online, drain or probe them"}
	cmd.AddCommand(c.controlCommand(about{
		use:   "probe NAME",
		short: "End the suspension of a provider early",
		long: `Send mail through a suspended provider at once, for example after its key was renewed or its quota raised. One
mail shows whether it works.`,
		what: "provider",
	}, func(ctx context.Context, svc *service.Service, name, why string) (service.ControlResult, bool, error) {
		return svc.ProbeProvider(ctx, c.operator(), name, why, service.Repeat{})
	}))
	for _, p := range []struct {
		verb, short string
		kind        models.CommandKind
	}{
		{"offline", "Make no call through it", models.ProviderOffline},
		{"online", "Use it again", models.ProviderOnline},
		{"drain", "Give it only mail that no other provider may send", models.ProviderDrain},
	} {
		a := about{use: p.verb + " NAME", short: p.short, what: "provider"}
		cmd.AddCommand(c.controlCommand(a,
			func(ctx context.Context, svc *service.Service, name, why string) (service.ControlResult, bool, error) {
				return svc.ControlProvider(ctx, c.operator(), p.kind, name, why, service.Repeat{})
			}))
	}
	return cmd
}
