package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

func endpointCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "endpoint",
		Short: "Addresses of your applications to which Safedelivr posts updates",
	}
	var user string
	var installation bool
	cmd.PersistentFlags().StringVar(&user, "user", "",
		"user, by name (default: the only one, or the one that init has added)")
	cmd.PersistentFlags().BoolVar(&installation, "installation", false,
		"endpoints of the installation, which get what operators want to hear of")
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	of := func(ctx context.Context, r *request) error {
		if installation {
			r.query.Set("installation", "true")
			return nil
		}
		return ofSender(&user)(ctx, r)
	}
	say := func(_ context.Context, _ *request, v *client.Endpoint) error {
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
				"shape": "whose webhooks the posts are like, for applications that read those: standard (default), mailgun, " +
					"sendgrid, postmark or resend",
				"headers":  "header field of the posts, 'Name: value'; may be given several times",
				"everyone": "with --installation: updates of the mail of all users, in place of notices",
				"at_once":  fmt.Sprintf("posts at once at most (default: %d)", endpoint.DefaultAtOnce),
			},
		}, say),
		doing[struct{}](c, call{
			op: "removeEndpoint", use: "remove ID", whose: of,
			ready: func(ctx context.Context, r *request) error { // the API removes what does not exist, too
				return r.Call(ctx, http.MethodGet, r.path, r.query, nil, nil)
			},
		}, nil),
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
		}, func(_ context.Context, _ *request, v *client.EndpointTest) error {
			switch {
			case v.Status == 0:
				return fmt.Errorf("no answer after %d ms: %s", v.TookMS, v.Answer)
			case v.Status/100 != 2:
				return fmt.Errorf("answer %d after %d ms: %s", v.Status, v.TookMS, v.Answer)
			}
			fmt.Fprintf(c.out, "answer %d after %d ms\n", v.Status, v.TookMS)
			return nil
		}),
		replayEndpoint(c, of, say))
	for op, verb := range verbs("endpoints", "test", "replay") {
		cmd.AddCommand(doing(c, call{op: op, use: verb + " ID", whose: of}, say))
	}
	return cmd
}

func replayEndpoint(
	c *cli, of edit, say func(context.Context, *request, *client.Endpoint) error,
) *cobra.Command {
	cmd := doing(c, call{
		op: "replayEndpoint", use: "replay ID", whose: of, short: "Post the updates of a time again, or one post",
		flags: map[string]string{"from": "since"}, past: true,
		usage: map[string]string{
			"from": "how long ago the first of them was posted (default: 24h)",
			"post": "only this one of the newest hundred posts, by its ID (msg_…)",
		},
		ready: func(_ context.Context, r *request) error {
			if len(r.body) == 0 {
				r.body["from"] = time.Now().Add(-24 * time.Hour)
			}
			return nil
		},
	}, say)
	cmd.MarkFlagsMutuallyExclusive("since", "post")
	return cmd
}
