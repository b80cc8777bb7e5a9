package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/tracing"
)

func (c *cli) serveCommand() *cobra.Command {
	var roles string
	var restored bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run Safedelivr: API, webhooks and workers", Args: cobra.NoArgs,
		Long: "Run Safedelivr. Without any service configured everything runs in this process on SQLite and an in-process broker;\n" +
			"SAFEDELIVR_CASSANDRA_HOSTS and SAFEDELIVR_AMQP_URL switch to Cassandra and RabbitMQ, and roles can then run apart.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			environ := c.environ
			if roles != "" {
				environ = append(slices.Clone(c.env()), "SAFEDELIVR_ROLES="+roles)
			}
			with := *c
			with.environ = environ
			cfg, err := with.load()
			if err != nil {
				return err
			}
			log := c.logger(&cfg)
			if len(cfg.Providers) == 0 {
				log.Warn("no provider is configured: batches are kept, and nothing can be sent")
			}
			limitMemory(&cfg)
			if cfg.Traces.Endpoint != "" {
				end, err := tracing.Setup(cmd.Context(), cfg.Traces.Endpoint, cfg.Traces.Ratio, version())
				if err != nil {
					return err
				}
				defer func() {
					last, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 5*time.Second)
					defer cancel()
					if err := end(last); err != nil {
						log.Warn("the last traces were not sent", "err", err)
					}
				}()
			}
			a, err := newApp(cmd.Context(), &cfg, log)
			if err != nil {
				return err
			}
			if restored {
				if err := told(a.service.HoldOld(cmd.Context(), c.operator(), "restored from a backup")); err != nil {
					a.close()
					return fmt.Errorf("nothing was started: what was accepted before could not be held: %w", err)
				}
				log.Warn("mail that was accepted before now is held: look at it, cancel what went out already, then: safedelivr hold lift")
			}
			if link, err := a.loginLink(cmd.Context(), dashboard.LocalUser()); err != nil {
				log.Warn("no link to log in to the dashboard", "err", err)
			} else if link != "" {
				fmt.Fprintln(c.out, "dashboard, for a quarter of an hour and once:", link)
			}
			return a.serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&roles, "roles", "", "what this process does, separated by commas: api, webhooks, worker (default: all)")
	cmd.Flags().BoolVar(&restored, "after-restore", false, "hold all mail that was accepted before now: the backup does not know what went out since")
	return cmd
}

func (c *cli) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "migrate", Short: "Bring the schema of the store up to date", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			log := c.logger(&cfg)
			if len(cfg.Cassandra.Hosts) > 0 {
				applied, err := cassandra.Migrate(cmd.Context(), cassandraConfig(&cfg, log))
				if err != nil {
					return err
				}
				if len(applied) == 0 {
					fmt.Fprintln(c.out, "the schema is up to date")
				} else {
					fmt.Fprintln(c.out, "applied:", strings.Join(applied, ", "))
				}
				return nil
			}
			store, err := openStore(cmd.Context(), &cfg, log) // brings its own schema up to date
			if err != nil {
				return err
			}
			fmt.Fprintln(c.out, "the schema is up to date")
			return store.Close()
		},
	}
}
