package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
)

func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "login",
		Short: "Print a link that logs in to the dashboard as an operator, once, within 15 minutes",
		Long: `Print a link that logs in to the dashboard as an operator, once, within 15 minutes, from anywhere. The link
begins with SAFEDELIVR_PUBLIC_URL if that is set. In a container: docker compose exec api safedelivr login`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if cfg.GitHub.ClientID != "" {
				return fmt.Errorf("users log in through GitHub: open %s", cfg.PublicURL)
			}
			return c.withStore(cmd.Context(), true, func(ctx context.Context, s models.Store) error {
				base := cmp.Or(cfg.PublicURL, app.LocalURL(&cfg))
				link, err := dashboard.NewLoginLink(ctx, s, base, dashboard.LocalUser())
				if err != nil {
					return err
				}
				fmt.Fprintln(c.out, link)
				return nil
			})
		},
	}
}
