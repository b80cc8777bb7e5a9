package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/commands"
)

func (c *cli) releaseCommand() *cobra.Command {
	var rel client.Release
	var from, to string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "release --from TIME",
		Short: "Release all that is held, of batches accepted in a time range; it may arrive twice",
		Args:  takes(0, 0),
		Long: `Send again what failed because it is unknown whether a provider accepted it, of all users' batches that were
accepted in a time range of at most 31 days. It may arrive twice. Times are a duration before now like 24h, a day
like 2026-01-31 (its beginning, UTC), or a time like 2026-01-31T12:00:00Z.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" {
				return wrongUsage("--from is missing: when the batches were accepted at the earliest, " +
					"as a duration like 24h, a day or a time")
			}
			var err error
			if rel.From, err = parseSince(from); err != nil {
				return wrongUsage("--from: %w", err)
			}
			if rel.To = time.Now(); to != "" {
				if rel.To, err = parseSince(to); err != nil {
					return wrongUsage("--to: %w", err)
				}
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				var v client.ReleaseResult
				var err error
				if dryRun {
					v, err = svc.Commands.DryRunRange(ctx, c.operator(), rel)
				} else {
					v, _, err = svc.Commands.ReleaseRange(ctx, c.operator(), rel, service.Repeat{})
				}
				if err != nil {
					return err
				}
				done := "released"
				if v.DryRun {
					done = "dry run, nothing was done; to be released"
				}
				fmt.Fprintf(c.out, "%s: %s of %s\n", done, count(v.Recipients, "recipient"), count(v.Batches, "batch"))
				c.warn(v.Warning)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&rel.Provider, "provider", "", "only what is held at this provider (default: at any)")
	cmd.Flags().StringVar(&from, "from", "", "accepted at or after this time")
	cmd.Flags().StringVar(&to, "to", "", "accepted at or before this time (default: now)")
	dryRunFlag(cmd, &dryRun)
	whyFlag(cmd, &rel.Why)
	return cmd
}

func (c *cli) holdCommand() *cobra.Command {
	var why string
	lift := &cobra.Command{
		Use:   "lift",
		Short: "Send everything that is held",
		Args:  takes(0, 0),
		Long: `Send everything that is held since a restore. Mail sent after the backup was made arrives twice:
cancel such batches first.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, _, err := svc.Operate.LiftHolds(ctx, c.operator(), why, service.Repeat{})
				switch {
				case err != nil:
					return err
				case v.Changed:
					fmt.Fprintln(c.out, "lifted: what was held is sent now")
				default:
					fmt.Fprintln(c.out, "nothing is held")
				}
				return nil
			})
		},
	}
	whyFlag(lift, &why)
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "What is held after a restore from a backup",
		Long: `After a restore from a backup, "serve --after-restore" holds all mail that was accepted before,
because it may have been sent since. Look at it, cancel what must not be sent, and lift
the hold.`,
	}
	cmd.AddCommand(lift, c.holdListCommand())
	return cmd
}

func (c *cli) holdListCommand() *cobra.Command {
	return c.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the holds",
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				holds, err := svc.Operate.Holds(ctx, c.operator())
				if err != nil {
					return err
				}
				if c.json {
					t := c.newTable("BEFORE\tSINCE\tBY\tWHY")
					for _, h := range holds {
						t.row(h.Before, h.At, h.By, h.Why)
					}
					return t.flush()
				}
				for _, h := range holds {
					fmt.Fprintf(c.out, "mail accepted before %s is held since %s, by %s",
						h.Before.UTC().Format(time.RFC3339), h.At.UTC().Format(time.RFC3339), h.By)
					if h.Why != "" {
						fmt.Fprintf(c.out, ": %s", h.Why)
					}
					fmt.Fprintln(c.out)
				}
				if len(holds) == 0 {
					fmt.Fprintln(c.out, "nothing is held")
				}
				return nil
			})
		},
	}, jsonRows)
}

func (c *cli) logCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Show the story of one recipient; release the mail to it"}
	cmd.AddCommand(c.withJSON(&cobra.Command{
		Use:   "show ID",
		Short: "Show the story of one recipient: attempts, answers and events, with their times in UTC",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				story, err := svc.Mail.Log(ctx, c.operator(), args[0])
				if err != nil {
					return orMissing(err, "log", args[0])
				}
				return c.show(story, func() error {
					printStory(c.out, &story)
					return nil
				})
			})
		},
	}, jsonObject))
	var dryRun bool
	release := c.commandAbout(about{
		use:   "release ID",
		short: "Send to one recipient again; it may arrive twice",
		long: `Send to one recipient again, by the id of the log. The mail must have failed, and not because the recipient was
refused for good. If it is unknown whether a provider accepted it before, it may arrive twice.`,
		what: "log",
	}, func(ctx context.Context, svc *service.Service, id, why string) (err error) {
		var v commands.Result
		if dryRun {
			v, err = svc.Commands.DryRunLog(ctx, c.operator(), id, why)
		} else {
			v, _, err = svc.Commands.ReleaseLog(ctx, c.operator(), id, why, service.Repeat{})
		}
		if err == nil {
			c.sayBatch(&v)
		}
		return err
	})
	dryRunFlag(release, &dryRun)
	cmd.AddCommand(release)
	return cmd
}
