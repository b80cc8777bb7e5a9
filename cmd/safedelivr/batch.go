package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) batchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "Show, stop, resume, cancel, retry or release a batch",
		Long: `Show a batch or give a command about it, by its id. Each command prints its result, how many recipients it
reaches, and how many are in flight: in calls to a provider that have begun and have no answer. Commands are
idempotent.`,
	}
	for _, b := range []struct {
		verb, short, long string
		kind              models.CommandKind
	}{
		{
			verb:  "stop",
			short: "Stop a batch: start no new provider call until it is resumed",
			long: `Start no new call to a provider for this batch. When the command ends, no worker starts one any more;
calls that have begun cannot be stopped. A command given here is an operator's, so the user of the batch
cannot resume it.`,
			kind: models.StopBatch,
		},
		{
			verb:  "resume",
			short: "Resume a stopped batch",
			long:  "Resume a stopped batch: what was not handed over to a provider yet is sent.",
			kind:  models.ResumeBatch,
		},
		{
			verb:  "cancel",
			short: "Cancel permanently what was not handed over yet",
			long: `Cancel permanently what was not handed over to a provider yet. Safedelivr still follows what a provider has
accepted.`,
			kind: models.CancelBatch,
		},
		{
			verb:  "retry",
			short: "Send again what failed, if that is safe",
			long: `Send again what failed if nothing can arrive twice: every attempt has ended, and nothing final is known
about the recipient.`,
			kind: models.RetryBatch,
		},
		{
			verb:  "release",
			short: "Send again what is held for an unknown outcome; it may arrive twice",
			long: `Send again what failed because it is unknown whether a provider accepted it (outcome_unknown, no_final_event).
It may arrive twice.`,
			kind: models.ReleaseBatch,
		},
	} {
		var dryRun bool
		a := about{use: b.verb + " ID", short: b.short, long: b.long, what: "batch"}
		sub := c.commandAbout(a, func(ctx context.Context, svc *service.Service, id, why string) (err error) {
			var v service.BatchControlResult
			if dryRun {
				v, err = svc.DryRunBatch(ctx, c.operator(), b.kind, id, why)
			} else {
				v, _, err = svc.ControlBatch(ctx, c.operator(), b.kind, id, why, service.Repeat{})
			}
			if err == nil {
				c.sayBatch(&v)
			}
			return err
		})
		dryRunFlag(sub, &dryRun)
		cmd.AddCommand(sub)
	}
	cmd.AddCommand(c.batchShowCommand())
	return cmd
}

func (c *cli) batchShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a batch: its counts, and what it waits for",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				b, err := svc.Batch(ctx, c.operator(), args[0])
				if err != nil {
					return orMissing(err, "batch", args[0])
				}
				n := &b.Counts
				fmt.Fprintf(c.out, "%s: %s; accepted: %d; queued: %d; success: %d; failed: %d; cancelled: %d\n",
					b.ID, b.State, n.Accepted, n.Queued, n.Success, n.Failed, n.Cancelled)
				if b.Waits == nil {
					return nil
				}
				until := ""
				if !b.Waits.Until.IsZero() {
					until = ", until " + b.Waits.Until.Format(time.RFC3339)
				}
				fmt.Fprintf(c.out, "waits: %s (%s)%s\n", b.Waits.Text, b.Waits.Code, until)
				return nil
			})
		},
	}
}

// dryRunFlag adds the flag that every command about batches has.
func dryRunFlag(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "print what the command would do, and change nothing")
}

func (c *cli) logCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Release the mail to one recipient"}
	var dryRun bool
	release := c.commandAbout(about{
		use:   "release ID",
		short: "Send to one recipient again; it may arrive twice",
		long: `Send to one recipient again, by the id of the log. The mail must have failed, and not because the recipient was
refused for good. If it is unknown whether a provider accepted it before, it may arrive twice.`,
		what: "log",
	}, func(ctx context.Context, svc *service.Service, id, why string) (err error) {
		var v service.BatchControlResult
		if dryRun {
			v, err = svc.DryRunLog(ctx, c.operator(), id, why)
		} else {
			v, _, err = svc.ReleaseLog(ctx, c.operator(), id, why, service.Repeat{})
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

// sayBatch prints the result of a command about a batch or a log.
func (c *cli) sayBatch(v *service.BatchControlResult) {
	done, id := "done", v.BatchID
	switch {
	case v.DryRun && v.Changed:
		done = "dry run, nothing was done"
	case v.DryRun:
		done = "dry run, it would change nothing"
	case !v.Changed:
		done = "nothing changed"
	}
	if !v.LogID.IsZero() {
		id = v.LogID
	}
	fmt.Fprintf(c.out, "%s %s: %s; recipients: %s; in flight: %s\n",
		v.Command, id, done, orUnknown(v.Recipients), orUnknown(v.InFlight))
	c.warn(v.Warning)
}

// orUnknown returns a number as text.
func orUnknown(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}
