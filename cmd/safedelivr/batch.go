package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service/operation"
)

func batchCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "List and show batches; stop, resume, cancel, try, retry, release or reschedule them",
		Long: `List batches, show one, or give a command about it, by its id. Each command prints its result, how many
recipients it reaches, and how many are in flight: in calls to a provider that have begun and have no answer.
Commands are idempotent. They are an operator's: the user of a batch that was stopped here cannot resume it.`,
	}
	for op, verb := range verbs("batches") {
		cmd.AddCommand(doing(c, call{op: op, use: verb + " ID", what: "batch"}, sayBatch(c)))
	}
	cmd.AddCommand(batchListCommand(c), batchRejectedCommand(c), batchRescheduleCommand(c),
		doing(c, call{
			op: "getBatch", use: "show ID", what: "batch",
			short: "Show a batch: its counts, what it waits for, and its first recipients",
		}, func(ctx context.Context, r *request, b *client.Batch) error { return printBatch(ctx, c, r, b) }))
	return cmd
}

func batchListCommand(c *cli) *cobra.Command {
	var user string
	cmd := listOf(c, listing{
		call: call{
			op: "listBatches", use: "list",
			short: "List batches, newest first or, if scheduled, next due first, of all users or of one",
			flags: map[string]string{"user": ""},
			usage: map[string]string{"state": "only scheduled, queued, sending, sent, done, stopped or cancelled"},
			whose: func(ctx context.Context, r *request) error {
				if user == "" {
					return ofAll(ctx, r)
				}
				u, err := r.find(ctx, user)
				r.query.Set("user", u.ID)
				return err
			},
		},
		head:   "ID\tCREATED\tDUE\tUSER\tSTATE\tACCEPTED\tQUEUED\tSENT\tDELIVERED\tFAILED\tCANCELLED\tSUBJECT",
		none:   "there is no batch",
		paging: true,
	}, func(ctx context.Context, o *operator, b *client.Batch) []any {
		n := &b.Counts
		return []any{b.ID, b.Created, b.DueAt, o.name(ctx, b.User), stateOf(b), n.Accepted, n.Queued, n.Sent, n.Delivered,
			n.Failed, n.Cancelled, b.Subject}
	})
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name (default: all users')")
	return cmd
}

// stateOf returns the state of a batch, and whether a command stopped or cancelled it.
func stateOf(b *client.Batch) string {
	switch {
	case b.Cancelled:
		return string(b.State) + ",cancelled"
	case b.Stopped:
		return string(b.State) + ",stopped"
	}
	return string(b.State)
}

func batchRejectedCommand(c *cli) *cobra.Command {
	return command(c, call{
		use: "rejected ID", what: "batch", short: "Print the recipients that were left out of a batch, as CSV",
	}, func(ctx context.Context, r *request) error { return r.ExportRejected(ctx, r.named, c.out) })
}

// rescheduleBatch is described in api/openapi.base.yaml.
var rescheduleBatch = operation.Declared[struct {
	operation.ByID
	operation.Dry
	Body struct {
		DeliverAt string `json:"deliver_at"`
		TimeZone  string `json:"time_zone"`
		ExpiresAt string `json:"expires_at"`
		Why       string `json:"why"`
	}
}, client.BatchControlResult](operation.Operation{Name: "rescheduleBatch", Route: "PATCH /v1/batches/{id}"})

func batchRescheduleCommand(c *cli) *cobra.Command {
	var w windowFlags
	cmd := doing(c, call{
		op: "rescheduleBatch", use: "reschedule ID", what: "batch",
		short: "Change the times of a batch that has not begun",
		long: `Change when a batch is sent that has not begun, when it expires, or the hours in which it is sent. What is
not given stays as it is. If only the time moves, the expiry moves by the same amount. When the command ends,
nothing is sent before the new time.`,
		usage: map[string]string{
			"deliver_at": "when it is sent, like 2026-12-24T18:00, or now",
			"time_zone":  "time zone of the times, like Europe/Vienna",
			"expires_at": "when unsent mail expires, like 2026-12-31T18:00",
		},
		ready: func(_ context.Context, r *request) error {
			if r.body["deliver_at"] == "now" {
				r.body["deliver_at"] = time.Now().Format(time.RFC3339)
			}
			return w.set(r.body)
		},
	}, func(ctx context.Context, r *request, v *client.BatchControlResult) error {
		err := sayBatch(c)(ctx, r, v)
		fmt.Fprintln(c.out, scheduleText(v.DeliverAt, v.ExpiresAt, v.SendWindow))
		return err
	})
	w.add(cmd)
	return cmd
}

// shownRecipients is how many recipients batch show prints.
const shownRecipients = 10

func printBatch(ctx context.Context, c *cli, r *request, b *client.Batch) error {
	n, name := &b.Counts, func(id string) string { return r.name(ctx, id) }
	fmt.Fprintf(c.out, "%s: %s; accepted: %d; queued: %d; sent: %d; delivered: %d; failed: %d; cancelled: %d\n",
		b.ID, stateOf(b), n.Accepted, n.Queued, n.Sent, n.Delivered, n.Failed, n.Cancelled)
	fmt.Fprintf(
		c.out,
		"subject: %q; from: %s; user: %s; accepted at %s\n",
		b.Subject,
		b.From.Email,
		name(b.User),
		timeOrDash(b.Created),
	)
	if b.State == client.BatchScheduled || b.SendWindow != nil {
		fmt.Fprintln(c.out, scheduleText(b.DeliverAt, b.ExpiresAt, b.SendWindow))
	}
	if own := b.OwnTimes; own != nil {
		fmt.Fprintf(c.out, "own times: %s; all are sent from %s to %s\n",
			count(own.Recipients, "recipient"), own.First.Format(time.RFC3339), own.Last.Format(time.RFC3339))
	}
	if b.Rejected != nil {
		fmt.Fprintf(c.out, "left out: %s; see safedelivr batch rejected %s\n", count(b.Rejected.Count, "recipient"), b.ID)
	}
	for _, a := range b.Attachments {
		fmt.Fprintf(c.out, "attachment: %q; type: %s; bytes: %d\n", a.Filename, a.ContentType, a.Size)
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
	options := client.LogOptions{ListOptions: client.ListOptions{PageSize: shownRecipients + 1}}
	logs, err := first(r.Logs(ctx, b.ID, options), shownRecipients+1)
	if err != nil {
		return err
	}
	t := c.newTable("LOG\tRECIPIENT\tSTATE\tATTEMPTS\tREASON")
	for i := range logs[:min(len(logs), shownRecipients)] {
		l := &logs[i]
		t.row(l.ID, l.Email, l.State, l.Attempts, l.ReasonText)
	}
	if len(logs) > shownRecipients {
		defer c.warn(
			fmt.Sprintf("These are the first %d recipients; the API lists all: GET /v1/batches/%s/logs", shownRecipients, b.ID),
		)
	}
	return t.flush()
}

// sayBatch returns a function that prints the result of a command about a batch or a log.
func sayBatch(c *cli) func(context.Context, *request, *client.BatchControlResult) error {
	return func(_ context.Context, _ *request, v *client.BatchControlResult) error {
		done, id := "done", cmp.Or(v.LogID, v.BatchID)
		switch {
		case v.DryRun && v.Changed:
			done = "dry run, nothing was done"
		case v.DryRun:
			done = "dry run, it would change nothing"
		case !v.Changed:
			done = "nothing changed"
		}
		fmt.Fprintf(c.out, "%s %s: %s; recipients: %s; in flight: %s\n",
			v.Command, id, done, orUnknown(v.Recipients), orUnknown(v.InFlight))
		c.warn(v.Warning)
		return nil
	}
}

// orUnknown returns a number as text.
func orUnknown(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

func messageCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "message", Short: "Messages by ids that their sender chose"}
	var user string
	cmd.PersistentFlags().StringVar(
		&user, "user", "", "whose, by name (default: the only one, or the one that init has added)")
	of := ofSender(&user)
	cmd.AddCommand(putMessages(c, of), doing(c, call{
		op: "getMessage", use: "show ID", what: "message", whose: of,
		short: "Show the versions of a message, and the story of the present one",
	}, func(_ context.Context, _ *request, m *client.Message) error {
		for _, v := range m.History {
			fmt.Fprintln(c.out, words(v.At.Format(time.RFC3339), v.Log, string(v.State), v.Reason, v.Detail))
		}
		printStory(c.out, &m.Log)
		return nil
	}))
	return cmd
}

func putMessages(c *cli, of edit) *cobra.Command {
	var strict, dryRun bool
	put := command(c, call{
		use: "put FILE", whose: of, short: "Create, change and cancel messages as a file says",
		json: "print a JSON object for each record, as the API has it",
		long: `Carry out the records of a file, as PUT /v1/messages does: one in each line (NDJSON), or a list in a file that
ends in .json. It may be repeated: the same file again changes nothing. It prints the result of each record. The exit
code is 1 if one is rejected.`,
	}, func(ctx context.Context, r *request) error {
		file, err := os.Open(r.named)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
		kind := "application/x-ndjson"
		if strings.EqualFold(filepath.Ext(r.named), ".json") {
			kind = "application/json"
		}
		if strict {
			r.query.Set("mode", "strict")
		}
		if dryRun {
			r.query.Set("dry_run", "true")
		}
		var out struct{ Results []json.RawMessage }
		err = r.Call(ctx, http.MethodPut, client.Path("messages"), r.query, file, &out, client.ContentType(kind))
		if err != nil {
			return err
		}
		if dryRun {
			c.warn("Dry run: nothing was done.")
		}
		return printChanges(c, out.Results)
	})
	put.Flags().BoolVar(&strict, "strict", false, "change nothing if a record is rejected")
	put.Flags().BoolVar(&dryRun, "dry-run", false, usages["dry_run"])
	return put
}

// printChanges prints the results of records.
func printChanges(c *cli, results []json.RawMessage) error {
	rejected := false
	for _, raw := range results {
		var r client.ChangeResult
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		if rejected = rejected || r.Status == "rejected"; c.json {
			fmt.Fprintf(c.out, "%s\n", raw)
			continue
		}
		fmt.Fprintln(c.out, words(r.ID, r.Status, r.Log, r.Code, r.Pointer, r.Detail))
	}
	if rejected {
		return exitFailed
	}
	return nil
}
