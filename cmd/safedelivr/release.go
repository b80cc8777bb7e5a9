package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func releaseCommand(c *cli) *cobra.Command {
	return doing(c, call{
		op: "releaseRange", use: "release --from TIME", past: true,
		short: "Release all that is held, of batches accepted in a time range; it may arrive twice",
		long: `Send again what failed because it is unknown whether a provider accepted it, of all users' batches that were
accepted in a time range of at most 31 days. It may arrive twice. Times are a duration before now like 24h, a day
like 2026-01-31 (its beginning, UTC), or a time like 2026-01-31T12:00:00Z.`,
		usage: map[string]string{
			"provider": "only what is held at this provider (default: at any)",
			"from":     "accepted at or after this time",
			"to":       "accepted at or before this time (default: now)",
		},
		ready: func(_ context.Context, r *request) error {
			if r.body["from"] == nil {
				return wrongUsage("--from is missing: when the batches were accepted at the earliest, " +
					"as a duration like 24h, a day or a time")
			}
			if r.body["to"] == nil {
				r.body["to"] = time.Now()
			}
			return nil
		},
	}, func(_ context.Context, _ *request, v *client.ReleaseResult) error {
		done := "released"
		if v.DryRun {
			done = "dry run, nothing was done; to be released"
		}
		fmt.Fprintf(c.out, "%s: %s of %s\n", done, count(v.Recipients, "recipient"), count(v.Batches, "batch"))
		c.warn(v.Warning)
		return nil
	})
}

func holdCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "What is held after a restore from a backup",
		Long: `After a restore from a backup, "serve --after-restore" holds all mail that was accepted before,
because it may have been sent since. Look at it, cancel what must not be sent, and lift
the hold.`,
	}
	cmd.AddCommand(
		doing(c, call{
			op: "liftHolds", use: "lift",
		}, func(_ context.Context, _ *request, v *client.LiftResult) error {
			if v.Changed {
				fmt.Fprintln(c.out, "lifted: what was held is sent now")
			} else {
				fmt.Fprintln(c.out, "nothing is held")
			}
			return nil
		}),
		listOf(c, listing{
			call: call{op: "listHolds", use: "list"},
			head: "BEFORE\tSINCE\tBY\tWHY",
			none: "nothing is held",
		}, func(_ context.Context, _ *operator, h *client.RestoreHold) []any {
			return []any{h.Before, h.At, h.By, h.Why}
		}))
	return cmd
}

func logCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Find recipients, show the story of one, and release the mail to it"}
	const head = "LOG\tRECIPIENT\tSTATE\tATTEMPTS\tREASON"
	row := func(_ context.Context, _ *operator, l *client.Log) []any {
		return []any{l.ID, l.Email, l.State, l.Attempts, l.ReasonText}
	}
	cmd.AddCommand(
		listOf(c, listing{
			call: call{op: "listLogs", use: "list BATCH", what: "batch"},
			head: head, none: "there is no such recipient", paging: true,
		}, row),
		listOf(c, listing{
			call: call{
				op: "searchLogs", use: "search", short: "Find recipients in all batches of all users, newest first", whose: ofAll,
				flags: map[string]string{"q": "part"},
			},
			head: head, none: "there is no such recipient", paging: true,
		}, row),
		doing(c, call{
			op: "getLog", use: "show ID", what: "log",
			short: "Show the story of one recipient: attempts, answers and events, with their times in UTC",
		}, func(_ context.Context, _ *request, v *client.Log) error {
			printStory(c.out, v)
			return nil
		}),
		doing(c, call{
			op: "releaseLog", use: "release ID", what: "log", short: "Send to one recipient again; it may arrive twice",
		}, sayBatch(c)))
	return cmd
}
