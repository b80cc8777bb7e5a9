package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func auditCommand(c *cli) *cobra.Command {
	cmd := listOf(c, listing{
		call:   call{op: "listAudit", use: "audit", short: "Who gave which command, when and why; newest first"},
		head:   "AT\tBY\tCOMMAND\tABOUT\tWHY",
		paging: true,
	}, func(ctx context.Context, o *operator, e *client.AuditEntry) []any {
		return []any{e.At, o.name(ctx, e.By), e.Command, subjects(ctx, o, e), e.Why}
	})
	cmd.AddCommand(listOf(c, listing{
		call: call{op: "listAccess", use: "access",
			usage: map[string]string{"kind": "only login, login.failed or key.failed"}},
		head:   "FIRST\tLAST\tTIMES\tKIND\tREASON\tUSER\tKEY\tADDRESS",
		paging: true,
	}, func(ctx context.Context, o *operator, e *client.AccessEntry) []any {
		return []any{e.At, e.LastAt, e.Count, e.Kind, e.Reason, cmp.Or(o.name(ctx, e.User), e.GitHubLogin), e.Key,
			cmp.Or(e.Address, "many")}
	}))
	return cmd
}

// subjects names what a command was about.
func subjects(ctx context.Context, o *operator, e *client.AuditEntry) string {
	block := ""
	if e.Block != nil {
		block = e.Block.ID
	}
	return strings.Join(strings.Fields(strings.Join([]string{
		cmp.Or(e.LogID, e.BatchID), block, o.name(ctx, e.User), e.Provider, e.Subject, strings.Join(e.Senders, ","),
	}, " ")), " ")
}
