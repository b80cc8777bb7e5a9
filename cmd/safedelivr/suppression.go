package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func suppressionCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "suppression",
		Short: "Addresses that no mail is sent to, for all users or for one (--user)"}
	var user string
	cmd.PersistentFlags().StringVar(&user, "user", "", "the list of this user, by name or id, instead of everyone's")
	list := ofUserOrAll(&user)
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
		}, func(_ context.Context, _ *request, e *client.Suppression) error {
			fmt.Fprintf(c.out, "%s is suppressed\n", e.Email)
			return nil
		}),
		controlling(c, call{
			op: "removeSuppressions", use: "remove ADDRESS", what: "suppressed address", whose: list,
			long:  "Remove an address from the list. After a complaint or a hard bounce --why is required.",
			usage: map[string]string{"reason": "only the entry with this reason", "category": "only that of this category"},
		}),
		importSuppressions(c, list), exportSuppressions(c, list))
	return cmd
}

func importSuppressions(c *cli, list edit) *cobra.Command {
	return command(c, call{
		use: "import FILE", whose: list, short: "Suppress the addresses of a CSV file",
		long: `Suppress the addresses of a CSV file. Its first row names the columns: email, and any of reason, category,
expires_at and why. Rows with mistakes are left out. It may be repeated.`,
	}, func(ctx context.Context, r *request) error {
		file, err := os.Open(r.named)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
		v, err := r.ImportSuppressions(ctx, file, whoseList(r)...)
		if err != nil {
			return err
		}
		for _, e := range v.Errors {
			fmt.Fprintf(c.err, "row %s: %s\n", e.Pointer[1:], e.Detail)
		}
		fmt.Fprintf(c.out, "%d rows: %d added, %d left out because of mistakes\n", v.Rows, v.Added, v.Rejected)
		return nil
	})
}

func exportSuppressions(c *cli, list edit) *cobra.Command {
	return command(c, call{use: "export", whose: list, short: "Print the list as CSV"},
		func(ctx context.Context, r *request) error { return r.ExportSuppressions(ctx, c.out, whoseList(r)...) })
}

// whoseList returns how the suppression list of a command is named in a call.
func whoseList(r *request) (options []client.CallOption) {
	if r.query.Has("everyone") {
		options = append(options, client.Everyone())
	}
	return options
}
