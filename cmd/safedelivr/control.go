package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// told turns an error of a use case into what a person reads.
func told(err error) error {
	var e *service.Error
	if !errors.As(err, &e) {
		return err
	}
	text := e.Detail
	for _, f := range e.Fields {
		text += "\n  " + strings.TrimPrefix(f.Pointer+": ", ": ") + f.Detail
	}
	return errors.New(text)
}

// operator is who gives orders on the command line: whoever can reach the store
// may do everything.
func (c *cli) operator() service.Caller {
	return service.Caller{By: "cli:" + c.person(), Operator: true}
}

// person is who runs the command: of one that was handed over, whom that names.
func (c *cli) person() string {
	if c.ranBy != "" {
		return c.ranBy
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// order is a command that orders something about the thing named by its one
// argument.
func (c *cli) order(use, short string, do func(ctx context.Context, svc *service.Service, name, why string) error) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error { return do(ctx, svc, args[0], why) })
		},
	}
	cmd.Flags().StringVar(&why, "why", "", "for the audit trail")
	return cmd
}

func (c *cli) batchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "batch", Short: "Stop, resume, cancel, retry, release a batch"}
	for _, o := range []struct {
		verb, short string
		action      models.Action
	}{
		{"stop", "Start no new call for it", models.StopBatch},
		{"resume", "Let it go on", models.ResumeBatch},
		{"cancel", "Cancel, for ever, what was not handed over yet", models.CancelBatch},
		{"retry", "Send again what failed, where that is safe", models.RetryBatch},
		{"release", "Send again what is held for an unknown outcome; it may arrive twice", models.ReleaseBatch},
	} {
		cmd.AddCommand(c.order(o.verb+" ID", o.short, func(ctx context.Context, svc *service.Service, id, why string) error {
			v, _, err := svc.Steer(ctx, c.operator(), o.action, id, why, service.Repeat{})
			if err == nil {
				c.say(&v)
			}
			return err
		}))
	}
	return cmd
}

// say tells what became of an order about a batch.
func (c *cli) say(v *service.Steered) {
	changed := "ordered"
	if !v.Changed {
		changed = "nothing changed, it stood like that before"
	}
	flying := "unknown"
	if v.InFlight != nil {
		flying = fmt.Sprint(*v.InFlight)
	}
	fmt.Fprintf(c.out, "%s %s: %s; in flight: %s\n", v.Order, v.BatchID, changed, flying)
	if v.Warning != "" {
		fmt.Fprintln(c.err, v.Warning)
	}
}

func (c *cli) logCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Release the mail to one recipient"}
	cmd.AddCommand(c.order("release ID", "Send to one recipient again; it may arrive twice", func(ctx context.Context, svc *service.Service, id, why string) error {
		v, _, err := svc.ReleaseLog(ctx, c.operator(), id, why, service.Repeat{})
		if err == nil {
			c.say(&v)
		}
		return err
	}))
	return cmd
}

func (c *cli) releaseCommand() *cobra.Command {
	var rel service.Release
	var from, to string
	cmd := &cobra.Command{
		Use: "release", Short: "Release all that is held at an account, of batches accepted in a time range; it may arrive twice", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for text, t := range map[*string]*time.Time{&from: &rel.From, &to: &rel.To} {
				var err error
				if *t, err = time.Parse(time.RFC3339, *text); err != nil {
					return fmt.Errorf("%q is not a time like 2026-01-31T12:00:00Z", *text)
				}
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, _, err := svc.ReleaseRange(ctx, c.operator(), rel, service.Repeat{})
				if err == nil {
					fmt.Fprintf(c.out, "released in %d batches\n", v.Batches)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVar(&rel.Account, "account", "", "only what is held at this account")
	cmd.Flags().StringVar(&from, "from", "", "accepted at or after this time")
	cmd.Flags().StringVar(&to, "to", time.Now().UTC().Format(time.RFC3339), "accepted at or before this time")
	cmd.Flags().StringVar(&rel.Why, "why", "", "for the audit trail")
	return cmd
}

func (c *cli) switched(v *service.Switched) {
	changed := ""
	if !v.Changed {
		changed = " (it stood like that before)"
	}
	fmt.Fprintf(c.out, "%s %s%s\n", v.Order, v.Name, changed)
}

func (c *cli) pauseCommands() []*cobra.Command {
	one := func(use, short string, do models.Action) *cobra.Command {
		return c.order(use, short, func(ctx context.Context, svc *service.Service, name, why string) error {
			v, _, err := svc.SwitchUser(ctx, c.operator(), do, name, why, service.Repeat{})
			if err == nil {
				c.switched(&v)
			}
			return err
		})
	}
	return []*cobra.Command{one("pause-user USER", "Start no new call for any batch of a user", models.PauseUser),
		one("resume-user USER", "Let the batches of a user go on", models.ResumeUser)}
}

func (c *cli) accountCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "account", Short: "Switch provider accounts"}
	for _, o := range []struct {
		verb, short string
		action      models.Action
	}{
		{"offline", "Make no call through it", models.AccountOffline},
		{"online", "Use it again", models.AccountOnline},
		{"drain", "Give it only mail that no other account may take", models.AccountDrain},
	} {
		cmd.AddCommand(c.order(o.verb+" NAME", o.short, func(ctx context.Context, svc *service.Service, name, why string) error {
			v, _, err := svc.SwitchAccount(ctx, c.operator(), o.action, name, why, service.Repeat{})
			if err == nil {
				c.switched(&v)
			}
			return err
		}))
	}
	return cmd
}

func (c *cli) blockCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "block", Short: "Rules that keep mail from going out"}
	var b models.Block
	var why string
	add := &cobra.Command{
		Use: "add", Short: "Block mail that meets all of the flags; it waits, or with --fail fails", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, _, err := svc.AddBlock(ctx, c.operator(), b, why, service.Repeat{})
				if err == nil {
					fmt.Fprintln(c.out, v.ID)
				}
				return err
			})
		},
	}
	f := add.Flags()
	f.StringVar(&b.Account, "account", "", "handed to this provider account")
	f.StringVar(&b.User, "user", "", "of this user")
	f.StringVar(&b.Sender, "sender", "", "from this address, or @domain")
	f.StringVar(&b.Domain, "domain", "", "to recipients at this domain")
	f.BoolVar(&b.Fail, "fail", false, "it fails instead of waiting")
	f.StringVar(&why, "why", "", "for the audit trail")
	cmd.AddCommand(add,
		c.order("remove ID", "End a rule", func(ctx context.Context, svc *service.Service, id, why string) error {
			return svc.RemoveBlock(ctx, c.operator(), id, why)
		}),
		c.table("list", "List the rules", "ID\tACCOUNT\tUSER\tSENDER\tDOMAIN\tMAIL\tBY\tWHY", func(ctx context.Context, svc *service.Service, row func(...any)) error {
			blocks, err := svc.Blocks(ctx, c.operator())
			for _, b := range blocks {
				mail := "waits"
				if b.Fail {
					mail = "fails"
				}
				row(b.ID, b.Account, b.User, b.Sender, b.Domain, mail, b.By, b.Why)
			}
			return err
		}))
	return cmd
}

// table is a command that prints a list.
func (c *cli) table(use, short, head string, rows func(ctx context.Context, svc *service.Service, row func(...any)) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				w := tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
				fmt.Fprintln(w, head)
				err := rows(ctx, svc, func(cells ...any) {
					for i, cell := range cells {
						if i > 0 {
							fmt.Fprint(w, "\t")
						}
						if cell == "" {
							cell = "-"
						}
						fmt.Fprint(w, cell)
					}
					fmt.Fprintln(w)
				})
				return errors.Join(err, w.Flush())
			})
		},
	}
}

func (c *cli) queuesCommand() *cobra.Command {
	return c.table("queues", "How full the queues are, and how long the oldest message in each has waited at most", "QUEUE\tREADY\tWORKING\tOLDEST", func(ctx context.Context, svc *service.Service, row func(...any)) error {
		queues, err := svc.Queues(ctx, c.operator())
		for _, q := range queues {
			row(q.Name, q.Ready, q.Working, oldestWords(&q))
		}
		return err
	})
}

// oldestWords says how long the oldest message of a queue has waited at most.
func oldestWords(q *service.QueueView) string {
	switch {
	case q.Ready == 0:
		return ""
	case q.Oldest == nil:
		return "not known"
	}
	return q.Age().Round(time.Second).String()
}

func (c *cli) workersCommand() *cobra.Command {
	return c.table("workers", "Workers that reported lately, and their share of every limit", "WORKER\tSTARTED\tSHARE", func(ctx context.Context, svc *service.Service, row func(...any)) error {
		workers, err := svc.Workers(ctx, c.operator())
		for _, w := range workers {
			started := ""
			if !w.Started.IsZero() {
				started = w.Started.UTC().Format(time.RFC3339)
			}
			row(w.Name, started, fmt.Sprintf("%.0f %%", 100*w.Share))
		}
		return err
	})
}

func (c *cli) parkedCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "parked", Short: "Messages that were put aside"}
	cmd.AddCommand(
		c.table("list", "List them", "ID\tKEY\tAT\tWHY", func(ctx context.Context, svc *service.Service, row func(...any)) error {
			parked, err := svc.Parked(ctx, c.operator())
			for _, p := range parked {
				row(p.ID, p.Key, p.At.UTC().Format(time.RFC3339), p.Why)
			}
			return err
		}),
		c.order("requeue ID", "Publish one again", func(ctx context.Context, svc *service.Service, id, why string) error {
			_, err := svc.Requeue(ctx, c.operator(), id, why, service.Repeat{})
			return err
		}),
		c.order("discard ID", "Drop one", func(ctx context.Context, svc *service.Service, id, why string) error {
			return svc.Discard(ctx, c.operator(), id, why)
		}))
	return cmd
}

func (c *cli) auditCommand() *cobra.Command {
	var n int
	cmd := c.table("audit", "Who ordered what, when and why; newest first", "AT\tBY\tORDER\tABOUT\tWHY", func(ctx context.Context, svc *service.Service, row func(...any)) error {
		page, err := svc.Audit(ctx, c.operator(), service.Page{Limit: n})
		for i := range page.Orders {
			o := &page.Orders[i]
			row(o.At.Format(time.RFC3339), o.By, o.Order, aboutOf(o), o.Why)
		}
		return err
	})
	cmd.Flags().IntVar(&n, "limit", 50, "how many, at most 500")
	return cmd
}

// aboutOf names what an order is about.
func aboutOf(o *service.AuditEntry) string {
	var out []string
	if !o.LogID.IsZero() {
		out = append(out, o.LogID.String())
	} else if !o.BatchID.IsZero() {
		out = append(out, o.BatchID.String())
	}
	if o.Block != nil {
		out = append(out, o.Block.ID)
	}
	for _, s := range []string{o.User, o.Account, o.Subject, strings.Join(o.Senders, ",")} {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}
