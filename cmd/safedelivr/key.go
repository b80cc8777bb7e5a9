package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/app"
)

func keyCommand(c *cli) *cobra.Command {
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
		}, func(_ context.Context, _ *request, k *client.CreatedKey) error {
			fmt.Fprintf(c.err, "key %s of %s; it is not shown again:\n", k.ID, k.UserName)
			fmt.Fprintln(c.out, k.Secret)
			return nil
		}),
		listOf(c, listing{call: call{
			op: "listKeys", use: "list [USER]", short: "List the keys of a user, or of all users",
			ready: func(_ context.Context, r *request) error {
				if r.named != "" {
					r.op, r.path, r.what = operations()["listUserKeys"], client.Path("users", r.named, "keys"), "user"
				}
				return nil
			},
		}, head: "KEY\tUSER\tNAME\tCREATED\tLAST USED\tREVOKED\tSCOPES\tEXPIRES\tFROM"}, keyRow),
		listOf(c, listing{
			call:   call{op: "listRequests", use: "requests", usage: map[string]string{"key": "ID of the key"}},
			head:   "AT\tMETHOD\tPATH\tSTATUS\tCODE\tBATCH\tREQUEST",
			none:   "the key made no requests in the last week",
			paging: true,
		}, func(_ context.Context, _ *operator, r *client.Request) []any {
			return []any{r.At, r.Method, r.Path, r.Status, r.Code, r.BatchID, r.RequestID}
		}),
		doing(c, call{
			op: "revokeKey", use: "revoke USER KEY", short: "Revoke a key, effective within a second",
			ready: func(ctx context.Context, r *request) error {
				u, err := r.find(ctx, r.args[0])
				r.what, r.named = "key of "+u.Name+" with the id", r.args[1]
				return err
			},
		}, func(_ context.Context, r *request, _ *struct{}) error {
			fmt.Fprintf(c.out, "key %s revoked\n", r.named)
			return nil
		}))
	return cmd
}

func keyRow(_ context.Context, _ *operator, k *client.Key) []any {
	var expires any = k.Expires
	if k.Expires.IsZero() {
		expires = shown{"never", nil}
	}
	return []any{k.ID, k.UserName, k.Name, k.Created, k.LastUsed, k.Revoked, listed(k.Scopes, ""), expires,
		listed(k.Networks, "anywhere")}
}

func loginCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "login",
		Short: "Print a link that logs in to the dashboard as an operator, once, within 15 minutes",
		Long: `Print a link that logs in to the dashboard as an operator, once, within 15 minutes, from anywhere. The link
begins with SAFEDELIVR_PUBLIC_URL if that is set. In a container: docker compose exec api safedelivr login`,
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
