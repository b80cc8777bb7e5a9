package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) auditCommand() *cobra.Command {
	return c.pagesCommand(listing{
		use:   "audit",
		short: "Who gave which command, when and why; newest first",
		head:  "AT\tBY\tCOMMAND\tABOUT\tWHY",
	}, func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
		page, err := svc.Audit(ctx, c.operator(), p)
		for i := range page.Commands {
			e := &page.Commands[i]
			row(e.At.UTC().Format(time.RFC3339), e.By, e.Command, subjects(e), e.Why)
		}
		return page.Next, err
	})
}

// subjects names what a command was about.
func subjects(e *service.AuditEntry) string {
	var out []string
	if !e.LogID.IsZero() {
		out = append(out, e.LogID.String())
	} else if !e.BatchID.IsZero() {
		out = append(out, e.BatchID.String())
	}
	if e.Block != nil {
		out = append(out, e.Block.ID)
	}
	for _, s := range []string{e.User, e.Provider, e.Subject, strings.Join(e.Senders, ",")} {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}
