package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

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
				v, _, err := svc.AddBlock(ctx, c.operator(), b, why, service.Repeat{})
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
			changed, err := svc.RemoveBlock(ctx, c.operator(), id, why)
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
			blocks, err := svc.Blocks(ctx, c.operator())
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
