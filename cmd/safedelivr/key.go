package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/app"
)

func (c *cli) keyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Add, list and revoke the API keys of a user, and list their requests"}
	cmd.AddCommand(
		doing(c, call{
			op: "createKey", use: "add USER", what: "user", short: "Create an API key; it is shown once",
			usage: map[string]string{
				"scopes": "what it may do: send, read, operate, pass_unsubscribes (default: send and read)",
				"expires": "until when it may be used: a day like 2026-12-31, a time, or a span like 720h " +
					"(default: never, with the scope operate 90 days)",
				"networks": "networks from which it may be used, like 192.0.2.0/24 (default: anywhere)",
			},
		}, func(_ context.Context, _ *operator, _ []string, k *client.CreatedKey) error {
			fmt.Fprintf(c.err, "key %s of %s; it is not shown again:\n", k.ID, k.UserName)
			fmt.Fprintln(c.out, k.Secret)
			return nil
		}),
		c.listKeysCommand(),
		listOf(c, listing{
			call:   call{op: "listRequests", use: "requests", usage: map[string]string{"key": "ID of the key"}},
			head:   "AT\tMETHOD\tPATH\tSTATUS\tCODE\tBATCH\tREQUEST",
			none:   "the key made no requests in the last week",
			paging: true,
		}, func(_ context.Context, _ *operator, r *client.Request) []any {
			return []any{r.At, r.Method, r.Path, r.Status, r.Code, r.BatchID, r.RequestID}
		}),
		c.revokeKeyCommand())
	return cmd
}

func (c *cli) listKeysCommand() *cobra.Command {
	all := listOf(c, listing{
		call: call{op: "listKeys", use: "list", short: "List the keys of a user, or of all users"},
		head: "KEY\tUSER\tNAME\tCREATED\tLAST USED\tREVOKED\tSCOPES\tEXPIRES\tFROM",
	}, keyRow)
	one := listOf(c, listing{
		call: call{op: "listUserKeys", use: "list USER", what: "user"},
		head: "KEY\tUSER\tNAME\tCREATED\tLAST USED\tREVOKED\tSCOPES\tEXPIRES\tFROM",
	}, keyRow)
	ofAll := all.RunE
	all.Use, all.Args = "list [USER]", takes(0, 1)
	all.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return ofAll(cmd, args)
		}
		one.SetContext(cmd.Context())
		return one.RunE(one, args)
	}
	return all
}

func keyRow(_ context.Context, _ *operator, k *client.Key) []any {
	var expires any = k.Expires
	if k.Expires.IsZero() {
		expires = shown{"never", nil}
	}
	return []any{k.ID, k.UserName, k.Name, k.Created, k.LastUsed, k.Revoked, listed(k.Scopes, ""), expires,
		listed(k.Networks, "anywhere")}
}

func (c *cli) revokeKeyCommand() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "revoke USER KEY",
		Short: "Revoke a key, effective within a second",
		Args:  takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				u, err := o.find(ctx, args[0])
				if err != nil {
					return err
				}
				if err := o.RevokeKey(ctx, u.ID, args[1], why); err != nil {
					return orMissing(err, "key of "+u.Name+" with the id", args[1])
				}
				fmt.Fprintf(c.out, "key %s revoked\n", args[1])
				return nil
			})
		},
	}
	whyFlag(cmd, &why)
	return cmd
}

func (c *cli) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "login",
		Short: "Print a link that logs in to the dashboard as an operator, once, within 15 minutes",
		Long: `Print a link that logs in to the dashboard as an operator, once, within 15 minutes, from anywhere. The link
begins with SAFEDELIVR_PUBLIC_URL if that is set. In a container: docker compose exec api safedelivr login`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			if cfg.GitHub.ClientID != "" {
				return fmt.Errorf("users log in through GitHub: open %s", cfg.PublicURL)
			}
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				var link app.LoginLink
				if err := o.Call(ctx, http.MethodPost, app.LoginPath, nil, nil, &link); err != nil {
					return err
				}
				fmt.Fprintln(c.out, link.URL)
				return nil
			})
		},
	}
}
