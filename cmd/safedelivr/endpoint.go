package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

func (c *cli) endpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Addresses of your applications to which Safedelivr posts updates",
	}
	var user string
	var installation bool
	cmd.PersistentFlags().StringVar(&user, "user", "", "user, by name (default: the only one, or the one that init has added)")
	cmd.PersistentFlags().BoolVar(&installation, "installation", false,
		"endpoints of the installation, which get what operators want to hear of")
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	of := func(ctx context.Context, o *operator, query url.Values) (*operator, error) {
		if installation {
			query.Set("installation", "true")
			return o, nil
		}
		u, err := o.sender(ctx, user)
		return o.as(u.ID), err
	}
	say := func(_ context.Context, _ *operator, _ []string, v *client.Endpoint) error {
		fmt.Fprintf(c.out, "endpoint %s: %s, %s\n", v.ID, v.URL, v.State)
		if v.Secret != "" {
			fmt.Fprintf(c.out, "secret, shown only now: %s\n", v.Secret)
		}
		if v.PublicKey != "" {
			fmt.Fprintf(c.out, "public key: %s\n", v.PublicKey)
		}
		return nil
	}
	cmd.AddCommand(
		listOf(c, listing{
			call: call{op: "listEndpoints", use: "list", short: "List the endpoints", whose: of},
			head: "ID\tURL\tSTATE\tPOSTED\tRETRYING\tGIVEN UP\tWHY",
			none: "there is no endpoint; add one with safedelivr endpoint add URL",
		}, func(_ context.Context, _ *operator, e *client.Endpoint) []any {
			return []any{e.ID, e.URL, e.State, e.Posted, e.Retrying, e.GivenUp, e.Why}
		}),
		doing(c, call{
			op: "createEndpoint", use: "add URL", fields: []string{"url"}, whose: of,
			short: "Post updates to an address, and print the secret or the public key of its signatures",
			flags: map[string]string{"tags": "tags", "user": "mail-user", "sender": "mail-from"},
			usage: map[string]string{
				"events": "only these: " + feed.Names("") + " (default: all changes of the state); with --installation " +
					feed.Names(feed.Installation) + " (default: all)",
				"format": "slack: an incoming webhook of Slack; mail: to the addresses of a URL like mailto:ops@example.com; " +
					"only with --installation",
				"user":   "with --format mail: the user whose mail the notices are",
				"sender": "with --format mail: the address that they come from",
				"signature": "v1: with a secret that you have, too (default); v1a: with a private key, whose public one " +
					"you get",
				"headers":  "header field of the posts, 'Name: value'; may be given several times",
				"everyone": "with --installation: updates of the mail of all users, in place of notices",
				"at_once":  fmt.Sprintf("posts at once at most (default: %d)", endpoint.DefaultAtOnce),
			},
		}, say),
		c.withUser(of, "remove ID", "Remove an endpoint",
			func(ctx context.Context, o *operator, query url.Values, args []string) error {
				path := client.Path("endpoints", args[0])
				if err := o.Call(ctx, http.MethodGet, path, query, nil, nil); err != nil {
					return err // the API removes what does not exist, too
				}
				return o.Call(ctx, http.MethodDelete, path, query, nil, nil)
			}),
		doing[client.Endpoint](c, call{op: "getEndpoint", use: "show ID", whose: of}, nil),
		listOf(c, listing{
			call: call{op: "listEndpointAttempts", use: "attempts ID", whose: of},
			head: "AT\tPOST\tUPDATES\tTYPE\tTRIED\tSTATUS\tWHY",
			none: "nothing was posted",
		}, func(_ context.Context, _ *operator, a *client.EndpointAttempt) []any {
			return []any{a.At, a.Post, a.Updates, a.Type, a.Tried, a.Status, a.Why}
		}),
		doing[client.EndpointRequest](c, call{op: "getEndpointPost", use: "post ID POST", whose: of}, nil),
		doing(c, call{
			op: "testEndpoint", use: "test ID", whose: of,
		}, func(_ context.Context, _ *operator, _ []string, v *client.EndpointTest) error {
			switch {
			case v.Status == 0:
				return fmt.Errorf("no answer after %d ms: %s", v.TookMS, v.Answer)
			case v.Status/100 != 2:
				return fmt.Errorf("answer %d after %d ms: %s", v.Status, v.TookMS, v.Answer)
			}
			fmt.Fprintf(c.out, "answer %d after %d ms\n", v.Status, v.TookMS)
			return nil
		}),
		c.replayEndpoint(of, say))
	for op, use := range map[string]string{
		"enableEndpoint": "enable ID", "disableEndpoint": "disable ID", "rotateEndpoint": "rotate ID",
	} {
		cmd.AddCommand(doing(c, call{op: op, use: use, whose: of}, say))
	}
	return cmd
}

func (c *cli) replayEndpoint(
	of whose, say func(context.Context, *operator, []string, *client.Endpoint) error,
) *cobra.Command {
	var since time.Duration
	var post string
	cmd := c.withUser(of, "replay ID", "Post the updates of a time again, or one post",
		func(ctx context.Context, o *operator, query url.Values, args []string) error {
			in := client.Replay{Post: post}
			if post == "" {
				in.From = time.Now().Add(-since)
			}
			var v client.Endpoint
			path := client.Path("endpoints", args[0], "replay")
			if err := o.Call(ctx, http.MethodPost, path, query, in, &v); err != nil {
				return err
			}
			return say(ctx, o, args, &v)
		})
	cmd.Flags().DurationVar(&since, "since", 24*time.Hour, "how long ago the first of them was posted")
	cmd.Flags().StringVar(&post, "post", "", "only this one of the newest hundred posts, by its ID (msg_…)")
	cmd.MarkFlagsMutuallyExclusive("since", "post")
	return cmd
}
