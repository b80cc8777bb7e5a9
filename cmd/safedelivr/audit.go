package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
)

func (c *cli) auditCommand() *cobra.Command {
	cmd := c.pagesCommand(listing{
		use:   "audit",
		short: "Who gave which command, when and why; newest first",
		head:  "AT\tBY\tCOMMAND\tABOUT\tWHY",
	}, func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
		page, err := svc.Audit.Find(ctx, c.operator(), audit.Filter{}, p)
		name := c.names(ctx, svc)
		for i := range page.Commands {
			e := &page.Commands[i]
			row(e.At, name(e.By), e.Command, subjects(e, name), e.Why)
		}
		return page.Next, err
	})
	cmd.AddCommand(c.accessCommand())
	return cmd
}

func (c *cli) accessCommand() *cobra.Command {
	var kind string
	cmd := c.pagesCommand(listing{
		use:   "access",
		short: "Who logged in, and which logins and API keys were refused; newest first, of the last 90 days",
		head:  "FIRST\tLAST\tTIMES\tKIND\tREASON\tUSER\tKEY\tADDRESS",
	}, func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
		page, err := svc.People.AccessLog(ctx, c.operator(), accesslog.Kind(kind), p)
		name := c.names(ctx, svc)
		for i := range page.Entries {
			e := &page.Entries[i]
			row(e.At, e.LastAt, e.Count, e.Kind, e.Reason, cmp.Or(name(e.User), e.GitHubLogin), e.Key,
				cmp.Or(e.Address, "many"))
		}
		return page.Next, err
	})
	cmd.Flags().StringVar(&kind, "kind", "", "only login, login.failed or key.failed")
	return cmd
}

// subjects names what a command was about.
func subjects(e *audit.Entry, name func(string) string) string {
	var out []string
	if !e.LogID.IsZero() {
		out = append(out, e.LogID.String())
	} else if !e.BatchID.IsZero() {
		out = append(out, e.BatchID.String())
	}
	if e.Block != nil {
		out = append(out, e.Block.ID)
	}
	for _, s := range []string{name(e.User), e.Provider, e.Subject, strings.Join(e.Senders, ",")} {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}
