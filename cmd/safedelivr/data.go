package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/postgres"
	"github.com/safedelivr/safedelivr/sqlite"
)

func migrateCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema of the store up to date",
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
			cfg.Postgres.Migrate = true
			if cfg.Store != "" {
				if err := postgres.Migrate(cmd.Context(), app.PostgresConfig(&cfg, log)); err != nil {
					return err
				}
				fmt.Fprintln(c.out, "the schema is up to date")
				return nil
			}
			// Opening the store updates its schema. A process that serves has opened it.
			return c.withAPI(cmd.Context(), func(context.Context, *operator) error {
				fmt.Fprintln(c.out, "the schema is up to date")
				return nil
			})
		},
	}
}

func backupCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FOLDER",
		Short: "Copy the data folder of the embedded store while it is used",
		Long: `Copy the database of the embedded store into a new folder. The copy is that of one moment, and the
server goes on meanwhile. The folder must not exist.

To restore it, stop the server and start it on the copy:

  SAFEDELIVR_DATA_DIR=FOLDER safedelivr serve --after-restore

That holds all mail that was accepted before, because it may have been sent since: see hold.
PostgreSQL and Cassandra have their own backups.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if app.StoreName(&cfg) != "sqlite" {
				return errors.New("backup copies only the embedded store; PostgreSQL and Cassandra have their own " +
					"(pg_basebackup, nodetool snapshot)")
			}
			type copied struct{ done, all int64 }
			say := progress(c, func(n copied) string { return fmt.Sprintf("%d of about %d MB copied", n.done>>20, n.all>>20) })
			size, err := sqlite.Backup(cmd.Context(), cfg.DataDir, args[0], func(done, all int64) { say(copied{done, all}) })
			if err != nil {
				return err
			}
			fmt.Fprintf(c.out, "%s has a copy of %s (%d bytes)\n", args[0], cfg.DataDir, size)
			return nil
		},
	}
}

func eraseCommand(c *cli) *cobra.Command {
	return doing(c, call{
		op: "eraseAddress", use: "erase ADDRESS", fields: []string{"email"},
		short: "Remove a person's address, name and variables from all that is stored",
		long: `Remove an address, its name and variables from the recipients, events and webhook posts that are stored,
and from the search. Mail to the address that was not sent fails with the reason erased, and no command sends mail to
it again. States and timelines stay, without the address. The audit trail names only the domain.

It may be stopped and run again. Addresses that users send from, and block rules, stay.`,
		usage: map[string]string{"cursor": "where an erasure that was stopped goes on"},
	}, func(ctx context.Context, r *request, all *client.Erasure) error {
		say := progress(c, func(n *client.Erasure) string {
			return fmt.Sprintf("%s read; go on here with --cursor %s", count(n.Batches, "batch"), n.Next)
		})
		for part := *all; !part.Done; {
			say(all)
			r.body["cursor"], part = part.Next, client.Erasure{}
			if err := r.send(ctx, &part); err != nil {
				return err
			}
			all.Batches, all.Recipients, all.Next = all.Batches+part.Batches, all.Recipients+part.Recipients, part.Next
			all.Posts, all.Unreadable = all.Posts+part.Posts, all.Unreadable+part.Unreadable
		}
		fmt.Fprintf(c.out, "erased: %s, %s; %s read\n", count(all.Recipients, "recipient"),
			count(all.Posts, "webhook post"), count(all.Batches, "batch"))
		if all.Unreadable > 0 {
			return fmt.Errorf("damaged: %s; the address may be in them: see safedelivr check", count(all.Unreadable, "batch"))
		}
		return nil
	})
}
