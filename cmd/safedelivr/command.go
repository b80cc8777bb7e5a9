package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// explain turns an error of a use case into what a person reads on the command line: a pointer into a request becomes a
// flag.
func explain(err error) error {
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
	return exitWith(codeOfKind(err), errors.New(text))
}

// flags are the flags whose names differ from those of the fields that they set.
var flags = map[string]string{
	"attachments": "attach",
	"columns":     "column",
	"headers":     "header",
	"networks":    "from-network",
	"providers":   "provider",
	"scopes":      "scope",
	"tags":        "tag",
}

// flagOf names the flag that sets what a pointer points to, as the beginning of a sentence. It returns "" for an
// argument and for the whole request.
func flagOf(pointer string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	if name == "" || name == "senders" {
		return ""
	}
	return "--" + cmp.Or(flags[name], strings.ReplaceAll(name, "_", "-")) + ": "
}

// orMissing replaces a "not found" by an error that names what was not found.
func orMissing(err error, what, name string) error {
	var e *service.Error
	if errors.As(err, &e) && e.Kind == service.NotFound {
		return isMissing(what, name)
	}
	return err
}

// operator returns the caller of commands. Anyone who can open the store may do everything.
func (c *cli) operator() service.Caller {
	return service.Caller{By: "cli:" + c.person(), Operator: true}
}

// person returns the name of the user who runs the command.
func (c *cli) person() string {
	if c.ranBy != "" {
		return c.ranBy
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// whyFlag adds the flag that every command has that is in the audit trail.
func whyFlag(cmd *cobra.Command, why *string) {
	cmd.Flags().StringVar(why, "why", "", "reason, for the audit trail")
}

// about is a command about one thing, which its argument names.
type about struct {
	use, short, long string
	what             string // the thing; "there is no what NAME" is the error if it does not exist
}

// commandAbout returns a command that runs do with its argument and the reason.
func (c *cli) commandAbout(
	a about, do func(ctx context.Context, svc *service.Service, name, why string) error,
) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   a.use,
		Short: a.short,
		Long:  a.long,
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return orMissing(do(ctx, svc, args[0], why), a.what, args[0])
			})
		},
	}
	whyFlag(cmd, &why)
	return cmd
}

// controlCommand returns a command that changes how a user or a provider is switched.
func (c *cli) controlCommand(
	a about, do func(ctx context.Context, svc *service.Service, name, why string) (client.ControlResult, bool, error),
) *cobra.Command {
	return c.commandAbout(a, func(ctx context.Context, svc *service.Service, name, why string) error {
		v, _, err := do(ctx, svc, name, why)
		if err == nil {
			c.sayDone(models.CommandKind(v.Command), v.Name, v.Changed)
		}
		return err
	})
}

// effects says what is so after a command about a thing.
var effects = map[models.CommandKind]string{
	models.PauseUser:       "%s is paused: no new call begins for the user's mail",
	models.ResumeUser:      "%s is not paused: the user's mail is sent",
	models.DisableUser:     "%s is disabled: all keys and sessions are refused; accepted mail is sent",
	models.EnableUser:      "%s is enabled: the user's keys are accepted",
	models.EndSessions:     "%s has no sessions any more",
	models.ProviderOffline: "%s is offline: no call goes through it",
	models.ProviderOnline:  "%s is online: it gets mail once it is healthy",
	models.ProviderDrain:   "%s drains: it gets only mail that no other provider may send",
	models.ProviderProbe:   "%s is being probed: the next message shows whether it works",
	models.RemoveBlock:     "rule %s is removed: mail that waited for it is sent",
	models.Requeued:        "message %s is published again",
	models.Discarded:       "message %s is dropped",

	models.RemovedSuppression: "%s is not suppressed any more",
	models.ProviderUnlist:     "the provider does not suppress %s any more",
}

// sayDone prints what is so after a command, and whether the command changed anything.
func (c *cli) sayDone(kind models.CommandKind, name string, changed bool) {
	before := ""
	if !changed {
		before = " (it was so before)"
	}
	fmt.Fprintf(c.out, effects[kind]+"%s\n", name, before)
}

// names returns a function that replaces the ID of a user by the user's name, and leaves anything else as it is.
func (c *cli) names(ctx context.Context, svc *service.Service) func(id string) string {
	known := map[string]string{"": ""}
	return func(id string) string {
		name, ok := known[id]
		if !ok {
			name = id
			if u, err := svc.People.User(ctx, c.operator(), id); err == nil && !strings.Contains(id, ":") {
				name = u.Name
			}
			known[id] = name
		}
		return name
	}
}

// warn prints what the user should know about a command that succeeded.
func (c *cli) warn(text string) {
	if text != "" {
		fmt.Fprintln(c.err, text)
	}
}

func (c *cli) blockCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "block", Short: "Rules that keep mail from being sent"}
	var b models.Block
	var why string
	add := &cobra.Command{
		Use:   "add",
		Short: "Block mail that meets all of the flags; it waits, or fails with --fail",
		Args:  takes(0, 0),
		Long: `Keep mail from being sent that meets all of the flags; at least one of --provider, --user, --sender and
--domain. The mail waits until the rule is removed, or with --fail it fails with the reason blocked.
Prints the id of the rule, which is that of an existing rule if the same was added before.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, _, err := svc.Operate.AddBlock(ctx, c.operator(), b, why, service.Repeat{})
				if err == nil {
					fmt.Fprintln(c.out, v.ID)
				}
				return err
			})
		},
	}
	f := add.Flags()
	f.StringVar(&b.Provider, "provider", "", "through this provider")
	f.StringVar(&b.User, "user", "", "of this user, by name or id")
	f.StringVar(&b.Sender, "sender", "", "from this address, or @domain for all of a domain")
	f.StringVar(&b.Domain, "domain", "", "to recipients at this domain")
	f.BoolVar(&b.Fail, "fail", false, "let the mail fail instead of waiting")
	whyFlag(add, &why)
	cmd.AddCommand(add,
		c.commandAbout(about{
			use:   "remove ID",
			short: "Remove a rule",
			long:  "Remove a rule, by the id that block list shows. Mail that waited for it is sent.",
			what:  "block rule",
		}, func(ctx context.Context, svc *service.Service, id, why string) error {
			changed, err := svc.Operate.RemoveBlock(ctx, c.operator(), id, why)
			if err == nil {
				c.sayDone(models.RemoveBlock, id, changed)
			}
			return err
		}),
		c.listCommand(listing{
			use:   "list",
			short: "List the rules",
			head:  "ID\tPROVIDER\tUSER\tSENDER\tDOMAIN\tMAIL\tBY\tWHY",
			none:  "there is no rule",
		}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
			blocks, err := svc.Operate.Blocks(ctx, c.operator())
			name := c.names(ctx, svc)
			for _, b := range blocks {
				mail := "waits"
				if b.Fail {
					mail = "fails"
				}
				row(b.ID, b.Provider, name(b.User), b.Sender, b.Domain, mail, name(b.By), b.Why)
			}
			return err
		}))
	return cmd
}
