package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

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
				key, secret, err := svc.CreateKey(ctx, who, name, o)
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
	add.Flags().StringSliceVar(&scopes, "scope", nil, "what it may do: send, read, operate (default: send and read)")
	add.Flags().StringVar(&expires, "expires", "",
		"until when it may be used: a day like 2026-12-31, a time, or a span like 720h "+
			"(default: never, with the scope operate 90 days)")
	add.Flags().StringSliceVar(&networks, "from-network", nil,
		"networks from which it may be used, like 192.0.2.0/24 (default: anywhere)")
	cmd.AddCommand(add,
		&cobra.Command{
			Use:   "list USER",
			Short: "List the keys of a user",
			Args:  takes(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.withKeys(cmd.Context(), args[0], func(
					ctx context.Context, svc *service.Service, who service.Caller, _ models.User,
				) error {
					keys, err := svc.Keys(ctx, who)
					if err != nil {
						return err
					}
					used, err := svc.KeyUses(ctx, who)
					if err != nil {
						return err
					}
					w := tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
					fmt.Fprintln(w, "KEY\tNAME\tCREATED\tLAST USED\tREVOKED\tSCOPES\tEXPIRES\tFROM")
					for _, k := range keys {
						fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, k.Created.Format(time.RFC3339),
							timeOrDash(used[k.ID]), timeOrDash(k.Revoked), optionCells(&k.KeyOptions))
					}
					return w.Flush()
				})
			},
		},
		&cobra.Command{
			Use:   "revoke USER KEY",
			Short: "Revoke a key, effective within a second",
			Args:  takes(2, 2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.withKeys(cmd.Context(), args[0], func(
					ctx context.Context, svc *service.Service, who service.Caller, u models.User,
				) error {
					if err := svc.RevokeKey(ctx, who, args[1], ""); err != nil {
						return orMissing(err, "key of "+u.Name+" with the id", args[1])
					}
					fmt.Fprintf(c.out, "key %s revoked\n", args[1])
					return nil
				})
			},
		})
	return cmd
}

// keyUse works on the keys of a user, as that user.
type keyUse func(ctx context.Context, svc *service.Service, who service.Caller, u models.User) error

// withKeys runs f with the user of a name.
func (c *cli) withKeys(ctx context.Context, name string, f keyUse) error {
	return c.withService(ctx, func(ctx context.Context, svc *service.Service) error {
		who := c.operator()
		u, err := svc.User(ctx, who, name)
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
	return o, fmt.Errorf("%q is not a day like 2026-12-31, a time like 2026-12-31T12:00:00Z, or a span like 720h", expires)
}

// optionCells shows what a key may be used for, as cells of a table.
func optionCells(o *models.KeyOptions) string {
	scopes, expires, from := "send,read", "never", "anywhere"
	if len(o.Scopes) > 0 {
		words := make([]string, len(o.Scopes))
		for i, sc := range o.Scopes {
			words[i] = string(sc)
		}
		scopes = strings.Join(words, ",")
	}
	if !o.Expires.IsZero() {
		expires = o.Expires.Format(time.RFC3339)
	}
	if len(o.Networks) > 0 {
		from = strings.Join(o.Networks, ",")
	}
	return scopes + "\t" + expires + "\t" + from
}
