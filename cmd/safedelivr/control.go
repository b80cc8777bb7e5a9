package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// told turns an error of a use case into what a person reads on the command line:
// a pointer into a request is a flag there.
func told(err error) error {
	var e *service.Error
	if !errors.As(err, &e) {
		return err
	}
	text := e.Detail
	if len(e.Fields) > 0 {
		text = strings.Replace(text, ": see errors.", ":", 1)
	}
	for _, f := range e.Fields {
		text += "\n  " + flagOf(f.Pointer) + f.Detail
	}
	return errors.New(text)
}

// flagOf names the flag that a pointer into a request stands for, as the beginning
// of a sentence; empty where that is an argument, or the whole.
func flagOf(pointer string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	switch name {
	case "", "senders":
		return ""
	case "scopes":
		name = "scope"
	case "networks":
		name = "from-network"
	}
	return "--" + name + ": "
}

// orMissing says of a thing that was not found what it is and how it was named.
func orMissing(err error, what, name string) error {
	var e *service.Error
	if errors.As(err, &e) && e.Kind == service.NotFound {
		return fmt.Errorf("there is no %s %s", what, name)
	}
	return err
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

// whyFlag is the flag that every order has.
func whyFlag(cmd *cobra.Command, why *string) {
	cmd.Flags().StringVar(why, "why", "", "reason, for the audit trail")
}

// order is a command that orders something about the thing named by its one
// argument. what that is stands in the error where there is none.
func (c *cli) order(use, what, short, long string, do func(ctx context.Context, svc *service.Service, name, why string) error) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return orMissing(do(ctx, svc, args[0], why), what, args[0])
			})
		},
	}
	whyFlag(cmd, &why)
	return cmd
}

func (c *cli) batchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "batch", Short: "Stop, resume, cancel, retry or release a batch", Long: "Give an order about a batch, by its id. Each prints what became of it, and how many recipients are in flight: in calls\n" +
		"to a provider that have begun and were not answered. Ordering what stands already changes nothing."}
	for _, o := range []struct {
		verb, short, long string
		action            models.CommandKind
	}{
		{"stop", "Start no new call for it, until it is resumed",
			"Start no new call to a provider for this batch. When the command ends, no worker starts one any more; calls that had\n" +
				"begun cannot be called back. What an operator stopped, and every order given here is an operator's, its owner cannot\n" +
				"resume.", models.StopBatch},
		{"resume", "Let a stopped batch go on", "Let a stopped batch go on: exactly what was not handed over yet goes out.", models.ResumeBatch},
		{"cancel", "Cancel, for ever, what was not handed over yet", "Cancel, for ever, what was not handed over yet. What a provider has taken is still followed.", models.CancelBatch},
		{"retry", "Send again what failed, where that is safe",
			"Send again what failed, where nothing can arrive twice: every attempt is settled, and nothing final was said about the\n" +
				"recipient.", models.RetryBatch},
		{"release", "Send again what is held for an unknown outcome; it may arrive twice",
			"Send again what failed because nobody knows whether a provider took it (outcome_unknown, no_final_event). It may\n" +
				"arrive twice.", models.ReleaseBatch},
	} {
		cmd.AddCommand(c.order(o.verb+" ID", "batch", o.short, o.long, func(ctx context.Context, svc *service.Service, id, why string) error {
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
	changed, about := "ordered", v.BatchID
	if !v.Changed {
		changed = "nothing changed, it stood like that before"
	}
	if !v.LogID.IsZero() {
		about = v.LogID
	}
	flying := "unknown"
	if v.InFlight != nil {
		flying = fmt.Sprint(*v.InFlight)
	}
	fmt.Fprintf(c.out, "%s %s: %s; in flight: %s\n", v.Order, about, changed, flying)
	c.warn(v.Warning)
}

// warn tells what somebody should know who gave an order that stands.
func (c *cli) warn(text string) {
	if text != "" {
		fmt.Fprintln(c.err, text)
	}
}

func (c *cli) logCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Release the mail to one recipient"}
	cmd.AddCommand(c.order("release ID", "log", "Send to one recipient again; it may arrive twice",
		"Send to one recipient again, by the id of the log, where the mail failed and the recipient was not refused for good. If\n"+
			"nobody knows whether a provider took it before, it may arrive twice.", func(ctx context.Context, svc *service.Service, id, why string) error {
			v, _, err := svc.ReleaseLog(ctx, c.operator(), id, why, service.Repeat{})
			if err == nil {
				c.say(&v)
			}
			return err
		}))
	return cmd
}

// ordered tells of an order what it was about, and whether it changed something.
func (c *cli) ordered(order models.CommandKind, about string, changed bool) {
	before := ""
	if !changed {
		before = " (it stood like that before)"
	}
	fmt.Fprintf(c.out, "%s %s%s\n", order, about, before)
}

// switches is a command that orders something about a user or a provider.
func (c *cli) switches(use, what, short, long string, do func(ctx context.Context, svc *service.Service, name, why string) (service.Switched, bool, error)) *cobra.Command {
	return c.order(use, what, short, long, func(ctx context.Context, svc *service.Service, name, why string) error {
		v, _, err := do(ctx, svc, name, why)
		if err == nil {
			c.ordered(v.Order, v.Name, v.Changed)
		}
		return err
	})
}

func (c *cli) pauseCommands() []*cobra.Command {
	one := func(use, short, long string, do models.CommandKind) *cobra.Command {
		return c.switches(use, "user", short, long, func(ctx context.Context, svc *service.Service, name, why string) (service.Switched, bool, error) {
			return svc.SwitchUser(ctx, c.operator(), do, name, why, service.Repeat{})
		})
	}
	return []*cobra.Command{
		one("pause-user USER", "Start no new call for any batch of a user",
			"Start no new call to a provider for any batch of a user, named by name or id. Batches are accepted and wait. Only an\n"+
				"operator can resume the user then.", models.PauseUser),
		one("resume-user USER", "Let the batches of a paused user go on", "Let the batches of a paused user go on. The user is named by name or id.", models.ResumeUser)}
}

func (c *cli) providerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "provider", Short: "Switch providers offline, online, drain them, or try them again"}
	cmd.AddCommand(c.switches("probe NAME", "provider", "Try a provider at once that mail keeps away from",
		"Try a provider at once that mail keeps away from, as after its key was renewed or its quota raised: what is held against it\n"+
			"is forgotten, and one mail shows how it is.", func(ctx context.Context, svc *service.Service, name, why string) (service.Switched, bool, error) {
			return svc.ProbeProvider(ctx, c.operator(), name, why, service.Repeat{})
		}))
	for _, o := range []struct {
		verb, short string
		action      models.CommandKind
	}{
		{"offline", "Make no call through it", models.ProviderOffline},
		{"online", "Use it again", models.ProviderOnline},
		{"drain", "Give it only mail that no other provider may take", models.ProviderDrain},
	} {
		cmd.AddCommand(c.switches(o.verb+" NAME", "provider", o.short, "", func(ctx context.Context, svc *service.Service, name, why string) (service.Switched, bool, error) {
			return svc.SwitchProvider(ctx, c.operator(), o.action, name, why, service.Repeat{})
		}))
	}
	return cmd
}
