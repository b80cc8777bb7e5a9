package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/intake"
)

func (c *cli) batchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "List and show batches; stop, resume, cancel, try, retry, release or reschedule them",
		Long: `List batches, show one, or give a command about it, by its id. Each command prints its result, how many
recipients it reaches, and how many are in flight: in calls to a provider that have begun and have no answer.
Commands are idempotent.`,
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
			verb:  "try",
			short: "Try mail now that waits for another attempt",
			long: `Try mail at once that waits for another attempt, for example after an outage of the providers. Limits, suspensions
and the times of the batch still count. To have a suspended provider tried, use "safedelivr provider probe".`,
			kind: models.TryBatch,
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
	cmd.AddCommand(c.batchListCommand(), c.batchShowCommand(), c.batchRejectedCommand(), c.batchRescheduleCommand())
	return cmd
}

func (c *cli) batchListCommand() *cobra.Command {
	var f service.BatchFilter
	var limit int
	cmd := c.listCommand(listing{
		use:   "list",
		short: "List batches, newest first or, if scheduled, next due first, of all users or of one",
		head:  "ID\tCREATED\tDUE\tUSER\tSTATE\tACCEPTED\tQUEUED\tSENT\tDELIVERED\tFAILED\tCANCELLED\tSUBJECT",
		none:  "there is no batch",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		if limit < 1 || limit > pageRows {
			return wrongUsage("--limit %d: from 1 to %d", limit, pageRows)
		}
		list, err := c.firstBatches(ctx, svc, f, limit)
		for i := range list {
			b, n := &list[i].BatchView, &list[i].Counts
			row(b.ID, b.CreatedAt, b.DueAt, list[i].user, stateOf(b), n.Accepted, n.Queued, n.Sent,
				n.Success, n.Failed, n.Cancelled, b.Subject)
		}
		return err
	})
	cmd.Flags().StringVar(&f.User, "user", "", "only this user's, by name (default: all users')")
	cmd.Flags().StringVar(&f.State, "state", "", "only scheduled, queued, sending, sent, done, stopped or cancelled")
	cmd.Flags().IntVar(&limit, "limit", 20, "how many")
	return cmd
}

// stateOf returns the state of a batch, and whether a command stopped or cancelled it.
func stateOf(b *service.BatchView) string {
	switch {
	case b.Cancelled:
		return string(b.State) + ",cancelled"
	case b.Stopped:
		return string(b.State) + ",stopped"
	}
	return string(b.State)
}

// ownedBatch is a batch with the name of its owner.
type ownedBatch struct {
	service.BatchView
	user string
}

// firstBatches returns the first batches of a user, given by name, or of all users: the newest or, of the scheduled
// ones, those that are due next.
func (c *cli) firstBatches(
	ctx context.Context, svc *service.Service, f service.BatchFilter, limit int,
) ([]ownedBatch, error) {
	var users []models.User
	if f.User != "" {
		u, err := svc.User(ctx, c.operator(), f.User)
		if err != nil {
			return nil, orMissing(err, "user", f.User)
		}
		users = append(users, u)
	}
	for p := (service.Page{Limit: pageRows}); f.User == ""; {
		page, err := svc.ListUsers(ctx, c.operator(), p)
		if err != nil {
			return nil, err
		}
		for i := range page.Users {
			users = append(users, models.User{ID: page.Users[i].ID, Name: page.Users[i].Name})
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			break
		}
	}
	var out []ownedBatch
	for _, u := range users {
		f.User = u.ID
		for p := (service.Page{Limit: limit}); ; { // a page may be short
			page, err := svc.FindBatches(ctx, c.operator(), f, p)
			if err != nil {
				return nil, err
			}
			for i := range page.Batches {
				out = append(out, ownedBatch{page.Batches[i], u.Name})
			}
			if p.Cursor = page.Next; p.Cursor == "" || len(page.Batches) > 0 {
				break
			}
		}
	}
	slices.SortStableFunc(out, func(a, b ownedBatch) int {
		if f.State == string(models.BatchScheduled) {
			return a.DueAt.Compare(b.DueAt)
		}
		return b.CreatedAt.Compare(a.CreatedAt)
	})
	return out[:min(len(out), limit)], nil
}

func (c *cli) batchShowCommand() *cobra.Command {
	return c.withJSON(&cobra.Command{
		Use:   "show ID",
		Short: "Show a batch: its counts, what it waits for, and its first recipients",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				b, err := svc.Batch(ctx, c.operator(), args[0])
				if err != nil {
					return orMissing(err, "batch", args[0])
				}
				return c.show(b, func() error { return c.printBatch(ctx, svc, &b) })
			})
		},
	}, jsonObject)
}

func (c *cli) batchRejectedCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rejected ID",
		Short: "Print the recipients that were left out of a batch, as CSV",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				out := csv.NewWriter(c.out)
				err := svc.ExportRejected(ctx, c.operator(), args[0], out.Write)
				if out.Flush(); err == nil {
					err = out.Error()
				}
				return orMissing(err, "batch", args[0])
			})
		},
	}
}

func (c *cli) batchRescheduleCommand() *cobra.Command {
	var o scheduleFlags
	var dryRun bool
	cmd := c.commandAbout(about{
		use:   "reschedule ID",
		short: "Change the times of a batch that has not begun",
		long: `Change when a batch is sent that has not begun, when it expires, or the hours in which it is sent. What is
not given stays as it is. If only the time moves, the expiry moves by the same amount. When the command ends,
nothing is sent before the new time.`,
		what: "batch",
	}, func(ctx context.Context, svc *service.Service, id, why string) error {
		var times intake.Times
		if err := o.set(&times); err != nil {
			return err
		}
		var v service.BatchControlResult
		var err error
		if change := (service.Reschedule{Batch: id, Times: times, Why: why}); dryRun {
			v, err = svc.DryRunReschedule(ctx, c.operator(), change)
		} else {
			v, _, err = svc.RescheduleBatch(ctx, c.operator(), change, service.Repeat{})
		}
		if err != nil {
			return err
		}
		c.sayBatch(&v)
		fmt.Fprintln(c.out, scheduleText(*v.Schedule))
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&o.deliverAt, "deliver-at", "", "when it is sent, like 2026-12-24T18:00, or now")
	f.StringVar(&o.timeZone, "time-zone", "", "time zone of the times, like Europe/Vienna")
	f.StringVar(&o.expiresAt, "expires-at", "", "when what is left expires, like 2026-12-31T18:00")
	o.windowFlags(cmd)
	dryRunFlag(cmd, &dryRun)
	return cmd
}

// shownRecipients is how many recipients batch show prints.
const shownRecipients = 10

func (c *cli) printBatch(ctx context.Context, svc *service.Service, b *service.BatchView) error {
	n, name := &b.Counts, c.names(ctx, svc)
	fmt.Fprintf(c.out, "%s: %s; accepted: %d; queued: %d; sent: %d; delivered: %d; failed: %d; cancelled: %d\n",
		b.ID, stateOf(b), n.Accepted, n.Queued, n.Sent, n.Success, n.Failed, n.Cancelled)
	fmt.Fprintf(
		c.out,
		"subject: %q; from: %s; user: %s; accepted at %s\n",
		b.Subject,
		b.From.Email,
		name(b.User),
		timeOrDash(b.CreatedAt),
	)
	if b.State == models.BatchScheduled || b.Window != nil {
		t := models.Schedule{DeliverAt: b.DeliverAt, Window: b.Window, ExpiresAt: b.ExpiresAt}
		fmt.Fprintln(c.out, scheduleText(t))
	}
	if own := b.OwnTimes; own != nil {
		fmt.Fprintf(c.out, "own times: %s; all are sent from %s to %s\n",
			count(own.Recipients, "recipient"), own.First.Format(time.RFC3339), own.Last.Format(time.RFC3339))
	}
	if b.Rejected != nil {
		fmt.Fprintf(c.out, "left out: %s; see safedelivr batch rejected %s\n", count(b.Rejected.Count, "recipient"), b.ID)
	}
	for _, a := range b.Attached {
		fmt.Fprintf(c.out, "attachment: %q; type: %s; bytes: %d\n", a.Filename, a.Type, a.Size)
	}
	if b.Waits != nil {
		text, until := b.Waits.Text, ""
		if b.StoppedBy != "" {
			text = strings.ReplaceAll(text, b.StoppedBy, name(b.StoppedBy))
		}
		if !b.Waits.Until.IsZero() {
			until = ", until " + b.Waits.Until.Format(time.RFC3339)
		}
		given := ""
		if !b.Waits.Since.IsZero() {
			given = ", since " + b.Waits.Since.Format(time.RFC3339)
			if b.StoppedBy == "" {
				given += " by " + name(b.Waits.By)
			}
		}
		if b.Waits.Why != "" {
			given += fmt.Sprintf(": %q", b.Waits.Why)
		}
		fmt.Fprintf(c.out, "waits: %s (%s)%s%s\n", text, b.Waits.Code, until, given)
	}
	logs, err := svc.Logs(ctx, c.operator(), b.ID.String(), service.LogFilter{}, service.Page{Limit: shownRecipients})
	if err != nil {
		return err
	}
	t := c.newTable("LOG\tRECIPIENT\tSTATE\tATTEMPTS\tREASON")
	for i := range logs.Logs {
		l := &logs.Logs[i]
		t.row(l.ID, l.Email, l.State, l.Attempts, l.ReasonText)
	}
	if logs.Next != "" {
		defer c.warn(
			fmt.Sprintf("These are the first %d recipients; the API lists all: GET /v1/batches/%s/logs", shownRecipients, b.ID),
		)
	}
	return t.flush()
}

// dryRunFlag adds the flag that every command about batches and messages has.
func dryRunFlag(cmd *cobra.Command, dryRun *bool) {
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "print what the command would do, and change nothing")
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

func (c *cli) messageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "message", Short: "Messages by ids that their sender chose"}
	var user string
	cmd.PersistentFlags().StringVar(
		&user, "user", "", "whose, by name (default: the only one, or the one that init has added)")
	cmd.AddCommand(c.putMessages(&user), c.showMessage(&user))
	return cmd
}

// asUser calls do with the service and a caller who sends as a user.
func (c *cli) asUser(
	cmd *cobra.Command, user string, do func(ctx context.Context, svc *service.Service, who service.Caller) error,
) error {
	return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
		u, err := c.sendingUser(ctx, svc, user)
		if err != nil {
			return err
		}
		who := c.operator()
		who.User = u.ID
		return explain(do(ctx, svc, who))
	})
}

func (c *cli) putMessages(user *string) *cobra.Command {
	var strict, dryRun bool
	put := &cobra.Command{
		Use:   "put FILE",
		Short: "Create, change and cancel messages as a file says",
		Long: `Carry out the records of a file, as PUT /v1/messages does: one in each line (NDJSON), or a list in a file that ends
in .json. It may be repeated: the same file again changes nothing. It prints the result of each record. The exit
code is 1 if one is rejected.`,
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(c.path(args[0]))
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			return c.asUser(cmd, *user, func(ctx context.Context, svc *service.Service, who service.Caller) error {
				results, err := api.PutMessages(ctx, svc, who, api.Records{
					Body:   file,
					Lines:  !strings.EqualFold(filepath.Ext(args[0]), ".json"),
					Strict: strict,
					DryRun: dryRun,
				})
				if err != nil {
					return err
				}
				if dryRun {
					c.warn("Dry run: nothing was done.")
				}
				rejected, enc := false, json.NewEncoder(c.out)
				for _, r := range results {
					rejected = rejected || r.Status == changes.Rejected
					if c.json {
						if err := enc.Encode(r); err != nil {
							return err
						}
						continue
					}
					log := ""
					if !r.Log.IsZero() {
						log = r.Log.String()
					}
					fmt.Fprintln(c.out, words(r.ID, string(r.Status), log, r.Code, r.Pointer, r.Detail))
				}
				if rejected {
					return exitFailed
				}
				return nil
			})
		},
	}
	put.Flags().BoolVar(&strict, "strict", false, "change nothing if a record is rejected")
	dryRunFlag(put, &dryRun)
	return c.withJSON(put, "print a JSON object for each record, as the API has it")
}

func (c *cli) showMessage(user *string) *cobra.Command {
	return c.withJSON(&cobra.Command{
		Use:   "show ID",
		Short: "Show the versions of a message, and the story of the present one",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.asUser(cmd, *user, func(ctx context.Context, svc *service.Service, who service.Caller) error {
				m, err := svc.Message(ctx, who, args[0])
				if err != nil {
					return orMissing(err, "message", args[0])
				}
				return c.show(m, func() error {
					for _, v := range m.History {
						at := v.At.Format(time.RFC3339)
						fmt.Fprintln(c.out, words(at, v.Log.String(), string(v.State), string(v.Reason), v.Detail))
					}
					printStory(c.out, &m.Log)
					return nil
				})
			})
		},
	}, jsonObject)
}
