package main

import (
	"context"
	"fmt"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func (c *cli) suppressionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "suppression", Short: "Addresses that no mail is sent to, for all users or for one (--user)"}
	var user string
	cmd.PersistentFlags().StringVar(&user, "user", "", "the list of this user, by name or id, instead of everyone's")
	list := func(ctx context.Context, o *operator, query url.Values) (*operator, error) {
		if user == "" {
			query.Set("everyone", "true")
			return o, nil
		}
		u, err := o.find(ctx, user)
		return o.as(u.ID), err
	}
	const head = "EMAIL\tREASON\tCATEGORY\tSINCE\tUNTIL\tORIGIN\tWHY"
	row := func(_ context.Context, _ *operator, e *client.Suppression) []any {
		return []any{e.Email, e.Reason, e.Category, e.At, e.Expires, e.Origin, e.Why}
	}
	cmd.AddCommand(
		listOf(c, listing{
			call: call{op: "listSuppressions", use: "list", whose: list, flags: map[string]string{"q": "part"}},
			head: head, none: "no address is suppressed", paging: true,
		}, row),
		listOf(c, listing{
			call: call{op: "getSuppressions", use: "show ADDRESS", whose: list, what: "suppressed address"}, head: head,
		}, row),
		doing(c, call{
			op: "addSuppression", use: "add ADDRESS", fields: []string{"email"}, whose: list,
			flags: map[string]string{"expires_at": "for"},
			usage: map[string]string{
				"reason":     "complaint, hard_bounce, manual, unsubscribe or soft_bounce (default: manual)",
				"expires_at": "for this long, like 720h, or until a day or a time (default: for ever)",
			},
		}, func(_ context.Context, _ *operator, _ []string, e *client.Suppression) error {
			fmt.Fprintf(c.out, "%s is suppressed\n", e.Email)
			return nil
		}),
		controlling(c, call{
			op: "removeSuppressions", use: "remove ADDRESS", what: "suppressed address", whose: list,
			long:  "Remove an address from the list. After a complaint or a hard bounce --why is required.",
			usage: map[string]string{"reason": "only the entry with this reason", "category": "only that of this category"},
		}),
		c.importSuppressions(list), c.exportSuppressions(list))
	return cmd
}

func (c *cli) importSuppressions(list whose) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Suppress the addresses of a CSV file",
		Long: `Suppress the addresses of a CSV file. Its first row names the columns: email, and any of reason, category,
expires_at and why. Rows with mistakes are left out. It may be repeated.`,
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				o, options, err := ofList(ctx, o, list)
				if err != nil {
					return err
				}
				v, err := o.ImportSuppressions(ctx, file, options...)
				if err != nil {
					return err
				}
				for _, e := range v.Errors {
					fmt.Fprintf(c.err, "row %s: %s\n", e.Pointer[1:], e.Detail)
				}
				fmt.Fprintf(c.out, "%d rows: %d added, %d left out because of mistakes\n", v.Rows, v.Added, v.Rejected)
				return nil
			})
		},
	}
}

func (c *cli) exportSuppressions(list whose) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print the list as CSV",
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				o, options, err := ofList(ctx, o, list)
				if err != nil {
					return err
				}
				return o.ExportSuppressions(ctx, c.out, options...)
			})
		},
	}
}

// ofList returns how the suppression list of a command is named in a call.
func ofList(ctx context.Context, o *operator, list whose) (*operator, []client.CallOption, error) {
	query := url.Values{}
	o, err := list(ctx, o, query)
	if query.Has("everyone") {
		return o, []client.CallOption{client.Everyone()}, err
	}
	return o, nil, err
}
