package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) auditCommand() *cobra.Command {
	return c.pages("audit", "Who ordered what, when and why; newest first", "AT\tBY\tORDER\tABOUT\tWHY", func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
		page, err := svc.Audit(ctx, c.operator(), p)
		for i := range page.Orders {
			o := &page.Orders[i]
			row(o.At.UTC().Format(time.RFC3339), o.By, o.Order, aboutOf(o), o.Why)
		}
		return page.Next, err
	})
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
	for _, s := range []string{o.User, o.Provider, o.Subject, strings.Join(o.Senders, ",")} {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}
