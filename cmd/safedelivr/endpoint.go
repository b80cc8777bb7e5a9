package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/endpoints"
)

// endpointUser is the user whose endpoints a command is about, or the installation.
type endpointUser struct {
	name         string
	installation bool
}

func (c *cli) endpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Addresses of your applications to which Safedelivr posts updates",
	}
	var u endpointUser
	cmd.PersistentFlags().StringVar(
		&u.name,
		"user",
		"",
		"user, by name (default: the only one, or the one that init has added)",
	)
	cmd.PersistentFlags().BoolVar(&u.installation, "installation", false,
		"endpoints of the installation, which get what operators want to hear of")
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	cmd.AddCommand(c.listEndpoints(&u), c.addEndpoint(&u), c.removeEndpoint(&u), c.testEndpoint(&u), c.replayEndpoint(&u),
		c.changeEndpoint(&u, "enable ID", "Post to an endpoint again that was disabled; it gets what it missed",
			func(ctx context.Context, e *endpoints.Endpoints, user, id string) (client.Endpoint, error) {
				return e.Enable(ctx, user, id)
			}),
		c.changeEndpoint(&u, "disable ID", "Post nothing to an endpoint until it is enabled",
			func(ctx context.Context, e *endpoints.Endpoints, user, id string) (client.Endpoint, error) {
				return e.Disable(ctx, user, id, "by command")
			}),
		c.changeEndpoint(&u, "rotate ID", "Give an endpoint a new secret or key pair; the old one is valid for a day more",
			func(ctx context.Context, e *endpoints.Endpoints, user, id string) (client.Endpoint, error) {
				return e.Rotate(ctx, user, id)
			}))
	return cmd
}

// withUser calls f with the ID of the user of a command.
func (c *cli) withUser(
	ctx context.Context, u *endpointUser, f func(ctx context.Context, e *endpoints.Endpoints, user string) error,
) error {
	return c.withService(ctx, func(ctx context.Context, svc *service.Service) error {
		owner, err := c.ownerOf(ctx, svc, u.installation, u.name)
		if err != nil {
			return err
		}
		return f(ctx, svc.Endpoints(c.operator()), owner)
	})
}

func (c *cli) listEndpoints(u *endpointUser) *cobra.Command {
	return c.listCommand(listing{
		use:   "list",
		short: "List the endpoints",
		head:  "ID\tURL\tSTATE\tPOSTED\tRETRYING\tGIVEN UP\tWHY",
		none:  "there is no endpoint; add one with safedelivr endpoint add URL",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		owner, err := c.ownerOf(ctx, svc, u.installation, u.name)
		if err != nil {
			return err
		}
		list, err := svc.Endpoints(c.operator()).List(ctx, owner)
		for i := range list {
			e := &list[i]
			row(e.ID, e.URL, e.State, e.Posted, e.Retrying, e.GivenUp, e.Why)
		}
		return err
	})
}

func (c *cli) addEndpoint(u *endpointUser) *cobra.Command {
	var n client.EndpointSettings
	var events, headers []string
	cmd := &cobra.Command{
		Use:   "add URL",
		Short: "Post updates to an address, and print the secret or the public key of its signatures",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n.URL, n.Events, n.Headers = args[0], events, map[string]string{}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok {
					return wrongUsage("--header %q: write 'Name: value'", h)
				}
				n.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
			}
			return c.withUser(cmd.Context(), u, func(ctx context.Context, e *endpoints.Endpoints, user string) error {
				v, err := e.Create(ctx, user, &n)
				if err == nil {
					c.sayEndpoint(&v)
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(
		&events,
		"events",
		nil,
		"only these: "+feed.Names("")+" (default: all changes of the state); with --installation "+
			feed.Names(feed.Installation)+" (default: all)",
	)
	f.StringVar(&n.Format, "format", "",
		"slack: an incoming webhook of Slack; mail: to the addresses of a URL like mailto:ops@example.com; only with --installation")
	f.StringVar(&n.User, "mail-user", "", "with --format mail: the user whose mail the notices are")
	f.StringVar(&n.Sender, "mail-from", "", "with --format mail: the address that they come from")
	f.StringVar(&n.Signature, "signature", "",
		"v1: with a secret that you have, too (default); v1a: with a private key, whose public one you get")
	f.StringSliceVar(&n.Tags, "tags", nil, "only mail with one of these tags")
	f.StringSliceVar(&n.Categories, "categories", nil, "only mail of these categories")
	f.StringArrayVar(&headers, "header", nil, "header field of the posts, 'Name: value'; may be given several times")
	f.StringVar(&n.Description, "description", "", "what it is for")
	f.BoolVar(&n.Everyone, "everyone", false, "with --installation: updates of the mail of all users, in place of notices")
	f.BoolVar(&n.Batch, "batch", false, "up to 1,000 updates in a post")
	f.IntVar(&n.Rate, "rate", 0, "posts per second at most (default: any number)")
	f.IntVar(&n.AtOnce, "at-once", 0, fmt.Sprintf("posts at once at most (default: %d)", endpoint.DefaultAtOnce))
	f.BoolVar(&n.Ordered, "ordered", false, "a post waits until the one before it was accepted")
	return cmd
}

// sayEndpoint prints an endpoint, with its secret if that is new.
func (c *cli) sayEndpoint(v *client.Endpoint) {
	fmt.Fprintf(c.out, "endpoint %s: %s, %s\n", v.ID, v.URL, v.State)
	if v.Secret != "" {
		fmt.Fprintf(c.out, "secret, shown only now: %s\n", v.Secret)
	}
	if v.PublicKey != "" {
		fmt.Fprintf(c.out, "public key: %s\n", v.PublicKey)
	}
}

// changeEndpoint returns a command that changes an endpoint.
func (c *cli) changeEndpoint(
	u *endpointUser, use, short string,
	do func(ctx context.Context, e *endpoints.Endpoints, user, id string) (client.Endpoint, error),
) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withUser(cmd.Context(), u, func(ctx context.Context, e *endpoints.Endpoints, user string) error {
				v, err := do(ctx, e, user, args[0])
				if err == nil {
					c.sayEndpoint(&v)
				}
				return err
			})
		},
	}
}

func (c *cli) removeEndpoint(u *endpointUser) *cobra.Command {
	return &cobra.Command{
		Use:   "remove ID",
		Short: "Remove an endpoint",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withUser(cmd.Context(), u, func(ctx context.Context, e *endpoints.Endpoints, user string) error {
				if _, err := e.Get(ctx, user, args[0]); err != nil {
					return err
				}
				return e.Remove(ctx, user, args[0])
			})
		},
	}
}

func (c *cli) testEndpoint(u *endpointUser) *cobra.Command {
	return &cobra.Command{
		Use:   "test ID",
		Short: "Make a post of the type test, and print the answer",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withUser(cmd.Context(), u, func(ctx context.Context, e *endpoints.Endpoints, user string) error {
				v, err := e.Test(ctx, user, args[0])
				switch {
				case err != nil:
					return err
				case v.Status == 0:
					return fmt.Errorf("no answer after %d ms: %s", v.TookMS, v.Answer)
				case v.Status/100 != 2:
					return fmt.Errorf("answer %d after %d ms: %s", v.Status, v.TookMS, v.Answer)
				}
				fmt.Fprintf(c.out, "answer %d after %d ms\n", v.Status, v.TookMS)
				return nil
			})
		},
	}
}

func (c *cli) replayEndpoint(u *endpointUser) *cobra.Command {
	var since time.Duration
	var post string
	cmd := &cobra.Command{
		Use:   "replay ID --since 24h",
		Short: "Post the updates of a time again, or one post",
		Args:  takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withUser(cmd.Context(), u, func(ctx context.Context, e *endpoints.Endpoints, user string) error {
				replay := func() (client.Endpoint, error) { return e.Replay(ctx, user, args[0], time.Now().Add(-since)) }
				if post != "" {
					replay = func() (client.Endpoint, error) { return e.ReplayPost(ctx, user, args[0], post) }
				}
				v, err := replay()
				if err == nil {
					c.sayEndpoint(&v)
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&since, "since", 24*time.Hour, "how long ago the first of them was posted")
	cmd.Flags().StringVar(&post, "post", "", "only this one of the newest hundred posts, by its ID (msg_…)")
	cmd.MarkFlagsMutuallyExclusive("since", "post")
	return cmd
}
