package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/internal/app"
)

func (c *cli) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of the store up to date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			log := c.logger(&cfg)
			if len(cfg.Cassandra.Hosts) > 0 {
				with, err := app.CassandraConfig(&cfg, log)
				if err != nil {
					return err
				}
				applied, err := cassandra.Migrate(cmd.Context(), with)
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
			store, err := app.OpenStore(cmd.Context(), &cfg, log) // brings its schema up to date
			if err != nil {
				return err
			}
			fmt.Fprintln(c.out, "the schema is up to date")
			return store.Close()
		},
	}
}
