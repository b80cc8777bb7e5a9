package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) keyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Add, list and revoke the API keys of a user"}
	var name, expires string
	var scopes, networks []string
	add := &cobra.Command{
		Use:   "add USER",
		Short: "Create an API key; it is shown once",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := keyOptions(scopes, expires, networks)
			if err != nil {
				return err
			}
			return c.withKeys(cmd.Context(), args[0], func(
				ctx context.Context, svc *service.Service, who service.Caller, u models.User,
			) error {
				key, secret, err := svc.People.CreateKey(ctx, who, name, o)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.err, "key %s of %s; it is not shown again:\n", key.ID, u.Name)
				fmt.Fprintln(c.out, secret)
				return nil
			})
		},
	}
	add.Flags().StringVar(&name, "name", "", "what the key is for")
	add.Flags().StringSliceVar(
		&scopes,
		"scope",
		nil,
		"what it may do: send, read, operate, pass_unsubscribes (default: send and read)",
	)
	add.Flags().StringVar(&expires, "expires", "",
		"until when it may be used: a day like 2026-12-31, a time, or a span like 720h "+
			"(default: never, with the scope operate 90 days)")
	add.Flags().StringSliceVar(&networks, "from-network", nil,
		"networks from which it may be used, like 192.0.2.0/24 (default: anywhere)")
	cmd.AddCommand(add,
		c.listKeysCommand(),
		c.revokeKeyCommand())
	return cmd
}

func (c *cli) listKeysCommand() *cobra.Command {
	return c.withJSON(&cobra.Command{
		Use:   "list [USER]",
		Short: "List the keys of a user, or of all users",
		Args:  takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				t := c.newTable("KEY\tUSER\tNAME\tCREATED\tLAST USED\tREVOKED\tSCOPES\tEXPIRES\tFROM")
				if len(args) > 0 {
					keys, err := svc.People.KeysOf(ctx, c.operator(), args[0])
					if err != nil {
						return orMissing(err, "user", args[0])
					}
					keyRows(t, keys)
					return t.flush()
				}
				for p := (service.Page{Limit: pageRows}); ; {
					page, err := svc.People.AllKeys(ctx, c.operator(), p)
					if err != nil {
						return err
					}
					keyRows(t, page.Keys)
					if p.Cursor = page.Next; p.Cursor == "" {
						return t.flush()
					}
				}
			})
		},
	}, jsonRows)
}

func keyRows(t *table, keys []client.Key) {
	for i := range keys {
		k := &keys[i]
		var expires any = k.Expires
		if k.Expires.IsZero() {
			expires = shown{"never", nil}
		}
		t.row(k.ID, k.UserName, k.Name, k.Created, k.LastUsed, k.Revoked, listed(k.Scopes, ""), expires,
			listed(k.Networks, "anywhere"))
	}
}

func (c *cli) revokeKeyCommand() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "revoke USER KEY",
		Short: "Revoke a key, effective within a second",
		Args:  takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withKeys(cmd.Context(), args[0], func(
				ctx context.Context, svc *service.Service, who service.Caller, u models.User,
			) error {
				if err := svc.People.RevokeKey(ctx, who, args[1], why); err != nil {
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

// keyUse works on the keys of a user, as that user.
type keyUse func(ctx context.Context, svc *service.Service, who service.Caller, u models.User) error

// withKeys runs f with the user of a name.
func (c *cli) withKeys(ctx context.Context, name string, f keyUse) error {
	return c.withService(ctx, func(ctx context.Context, svc *service.Service) error {
		who := c.operator()
		u, err := svc.People.User(ctx, who, name)
		if err != nil {
			return orMissing(err, "user", name)
		}
		who.User = u.ID
		return f(ctx, svc, who, u)
	})
}

// keyOptions reads the flags of a new key.
func keyOptions(scopes []string, expires string, networks []string) (o models.KeyOptions, err error) {
	for _, sc := range scopes {
		o.Scopes = append(o.Scopes, models.Scope(sc))
	}
	o.Networks = networks
	if expires == "" {
		return o, nil
	}
	if span, err := time.ParseDuration(expires); err == nil {
		o.Expires = time.Now().Add(span).UTC().Truncate(time.Second)
		return o, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if o.Expires, err = time.Parse(layout, expires); err == nil {
			return o, nil
		}
	}
	return o, wrongUsage("%q is not a day like 2026-12-31, a time like 2026-12-31T12:00:00Z, or a span like 720h", expires)
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
			return c.withStore(cmd.Context(), func(ctx context.Context, s models.Store) error {
				base := cmp.Or(cfg.PublicURL, app.LocalURL(&cfg))
				link, err := dashboard.NewLoginLink(ctx, s, base, dashboard.LocalUser())
				if err != nil {
					return err
				}
				fmt.Fprintln(c.out, link)
				return nil
			})
		},
	}
}
