package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// whyFlag adds the flag that every command has that is in the audit trail.
func whyFlag(cmd *cobra.Command, why *string) {
	cmd.Flags().StringVar(why, "why", "", usages["why"])
}

// controlling returns the command of a call that changes how one thing is switched, and says whether it changed.
func controlling(c *cli, k call) *cobra.Command {
	return doing(c, k, func(_ context.Context, _ *request, v *client.ControlResult) error {
		c.sayDone(models.CommandKind(v.Command), v.Name, v.Changed)
		return nil
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

// warn prints what the user should know about a command that succeeded.
func (c *cli) warn(text string) {
	if text != "" {
		fmt.Fprintln(c.err, text)
	}
}

func blockCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "block", Short: "Rules that keep mail from being sent"}
	cmd.AddCommand(
		doing(c, call{
			op: "addBlock", use: "add",
			short: "Block mail that meets all of the flags; it waits, or fails with --fail",
			long: `Keep mail from being sent that meets all of the flags; at least one of --provider, --user, --sender and
--domain. The mail waits until the rule is removed, or with --fail it fails with the reason blocked.
Prints the id of the rule, which is that of an existing rule if the same was added before.`,
			usage: map[string]string{"fail": "let the mail fail instead of waiting", "provider": "through this provider"},
		}, func(_ context.Context, _ *request, v *client.Block) error {
			fmt.Fprintln(c.out, v.ID)
			return nil
		}),
		controlling(c, call{op: "removeBlock", use: "remove ID", what: "block rule"}),
		listOf(c, listing{
			call: call{op: "listBlocks", use: "list"},
			head: "ID\tPROVIDER\tUSER\tSENDER\tDOMAIN\tMAIL\tBY\tWHY",
			none: "there is no rule",
		}, func(ctx context.Context, o *operator, b *client.Block) []any {
			mail := "waits"
			if b.Fail {
				mail = "fails"
			}
			return []any{b.ID, b.Provider, o.name(ctx, b.User), b.Sender, b.Domain, mail, o.name(ctx, b.By), b.Why}
		}))
	return cmd
}
