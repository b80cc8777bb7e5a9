package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// suppressionList is the list that a command is about.
type suppressionList struct{ user string }

// caller returns an operator who means the list.
func (l *suppressionList) caller(ctx context.Context, c *cli, svc *service.Service) (service.Caller, error) {
	who := c.operator()
	if l.user == "" {
		who.Everyone = true
		return who, nil
	}
	u, err := svc.People.User(ctx, who, l.user)
	who.User = u.ID
	return who, orMissing(err, "user", l.user)
}

func (c *cli) suppressionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "suppression", Short: "Addresses that no mail is sent to"}
	var l suppressionList
	cmd.PersistentFlags().StringVar(&l.user, "user", "", "the list of this user, by name or id, instead of everyone's")
	cmd.AddCommand(c.listSuppressions(&l), c.addSuppression(&l), c.removeSuppression(&l), c.importSuppressions(&l),
		c.exportSuppressions(&l))
	return cmd
}

func (c *cli) listSuppressions(l *suppressionList) *cobra.Command {
	return c.pagesCommand(listing{
		use:   "list",
		short: "List the suppressed addresses",
		head:  "EMAIL\tREASON\tCATEGORY\tSINCE\tUNTIL\tORIGIN\tWHY",
		none:  "no address is suppressed",
	}, func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
		who, err := l.caller(ctx, c, svc)
		if err != nil {
			return "", err
		}
		page, err := svc.Suppressions.List(ctx, who, suppressions.Filter{}, p)
		for i := range page.Suppressions {
			e := &page.Suppressions[i]
			row(e.Email, e.Reason, e.Category, e.At, e.Expires, e.Origin, e.Why)
		}
		return page.Next, err
	})
}

func (c *cli) addSuppression(l *suppressionList) *cobra.Command {
	var n client.NewSuppression
	var reason string
	var ttl time.Duration
	add := &cobra.Command{
		Use:   "add ADDRESS",
		Short: "Suppress an address",
		Long: `Suppress an address: no provider is called with it any more, and its logs fail with the reason suppressed.
Without --user it is suppressed for the mail of all users.`,
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				who, err := l.caller(ctx, c, svc)
				if err != nil {
					return err
				}
				n.Email, n.Reason = args[0], reason
				if ttl != 0 {
					n.Expires = time.Now().Add(ttl)
				}
				v, _, err := svc.Suppressions.Suppress(ctx, who, n, models.FromAPI, service.Repeat{})
				if err == nil {
					fmt.Fprintf(c.out, "%s is suppressed\n", v.Email)
				}
				return err
			})
		},
	}
	f := add.Flags()
	f.StringVar(&reason, "reason", "manual", "complaint, hard_bounce, manual, unsubscribe or soft_bounce")
	f.StringVar(&n.Category, "category", "", "only mail of this category")
	f.DurationVar(&ttl, "for", 0, "for this long, like 720h (default: for ever)")
	whyFlag(add, &n.Why)
	return add
}

func (c *cli) removeSuppression(l *suppressionList) *cobra.Command {
	return c.commandAbout(about{
		use:   "remove ADDRESS",
		short: "Send to an address again",
		long:  "Remove an address from the list. After a complaint or a hard bounce --why is required.",
		what:  "suppressed address",
	}, func(ctx context.Context, svc *service.Service, email, why string) error {
		who, err := l.caller(ctx, c, svc)
		if err != nil {
			return err
		}
		changed, err := svc.Suppressions.Unsuppress(ctx, who, email, suppressions.Filter{}, why)
		if err == nil {
			c.sayDone(models.RemovedSuppression, email, changed)
		}
		return err
	})
}

func (c *cli) importSuppressions(l *suppressionList) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Suppress the addresses of a CSV file",
		Long: `Suppress the addresses of a CSV file. Its first row names the columns: email, and any of reason, category,
expires_at and why. Rows with mistakes are left out. It may be repeated.`,
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(c.path(args[0]))
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				who, err := l.caller(ctx, c, svc)
				if err != nil {
					return err
				}
				v, err := svc.Suppressions.Import(ctx, who, file, models.FromImport)
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

func (c *cli) exportSuppressions(l *suppressionList) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print the list as CSV",
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				who, err := l.caller(ctx, c, svc)
				if err != nil {
					return err
				}
				out := csv.NewWriter(c.out)
				err = svc.Suppressions.Export(ctx, who, out.Write)
				if out.Flush(); err == nil {
					err = out.Error()
				}
				return err
			})
		},
	}
}
