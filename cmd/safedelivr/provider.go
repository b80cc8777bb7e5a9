package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/dnscheck"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

func providerCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "provider",
		Short: "List and check providers; take them offline and online, drain or probe them",
	}
	cmd.AddCommand(
		listOf(c, listing{
			call: call{op: "listProviders", use: "list"},
			head: "NAME\tKIND\tSTATE\tUNTIL\tCALLS AT ONCE\tACCEPTED/S\tLAST WEBHOOK\tWHY",
			none: "no provider is configured: see safedelivr init",
		}, func(_ context.Context, _ *operator, p *client.Provider) []any {
			state, until, why := "no worker", time.Time{}, ""
			if p.Health != nil {
				state, until, why = p.Health.State, p.Health.Until, p.Health.Why
			}
			return []any{p.Name, p.Kind, state, until, p.Concurrency, shown{fmt.Sprintf("%.1f", p.RateUsed), p.RateUsed},
				lastWebhook(p), why}
		}),
		listOf(c, listing{
			call: call{
				op: "providerHistory", use: "history", short: "Count what happened at each provider lately",
				usage: map[string]string{"range": "hour, day, week or month (default: hour)"},
			},
			head: "PROVIDER\tCALLS\tACCEPTED\tREFUSED\tUNKNOWN\tDELIVERED\tFAILED\tDEFERRED",
		}, func(_ context.Context, _ *operator, p *client.ProviderHistory) []any {
			n := &p.Totals
			return []any{p.Provider, n.Calls, n.Accepted, n.Refused, n.Unknown, n.Delivered, n.Failed, n.Deferred}
		}),
		providerCheckCommand(c), providerSuppressions(c))
	for op, verb := range verbs("providers") {
		cmd.AddCommand(controlling(c, call{op: op, use: verb + " NAME", what: "provider"}))
	}
	return cmd
}

// lastWebhook says when the last webhook of a provider was verified, or that its webhooks are refused.
func lastWebhook(p *client.Provider) shown {
	var v struct {
		At           time.Time `json:"at,omitzero"`            // the last one that was verified
		RefusedSince time.Time `json:"refused_since,omitzero"` // zero: they are not refused
		Refused      int64     `json:"refused,omitempty"`      // how many
	}
	v.At = p.LastWebhook
	text := timeOrDash(p.LastWebhook)
	if r := p.WebhooksRefused; r != nil {
		v.RefusedSince, v.Refused = r.Since, r.Posts
		text = fmt.Sprintf("refused since %s (%d)", timeOrDash(v.RefusedSince), v.Refused)
	}
	return shown{text, v}
}

func providerCheckCommand(c *cli) *cobra.Command {
	received := ""
	cmd := &cobra.Command{
		Use:   "check [NAME …]",
		Short: "Ask providers whether the key can send, and check webhooks, domains and DNS",
		Long: `Ask each provider (default: all) whether its key can send, which domains are verified and whether its
webhooks come here, and look up SPF, DKIM and DMARC of its domains. Says what to do about what is wrong. The
exit code is 1 if anything is wrong. No mail is sent.

With --received no provider is asked: it is said whether a DKIM signature of a mail that you got covers both
header fields of one-click unsubscribing. Authentication-Results in the mail says whether the signature is valid.`,
		ValidArgsFunction: c.offer(nil, valuesOf),
		RunE: func(cmd *cobra.Command, args []string) error {
			if received != "" {
				return checkReceived(c, received)
			}
			cfg, err := c.load()
			if err != nil {
				return err
			}
			specs, err := app.OpenProviders(&cfg, slog.New(slog.NewTextHandler(io.Discard, nil)))
			defer app.CloseProviders(specs)
			if err != nil {
				return mistakes(err)
			}
			names := args
			if len(names) == 0 {
				names = cfg.ProviderNames()
			}
			if len(names) == 0 {
				return errors.New("no provider is configured: see safedelivr init")
			}
			return checkProviders(cmd.Context(), c, &cfg, specs, names)
		},
	}
	cmd.Flags().StringVar(&received, "received", "", "`file` with a mail as it was received, instead of providers")
	return c.withJSON(cmd, "print a JSON object for each finding")
}

// checkProviders prints what was found out about the providers of these names.
func checkProviders(
	ctx context.Context, c *cli, cfg *config.Config, specs []provider.Spec, names []string,
) (err error) {
	t, wrong := c.newTable(findingsHead), false
	for _, name := range names {
		i := slices.IndexFunc(specs, func(s provider.Spec) bool { return s.Name == name })
		if i < 0 {
			return isMissing("provider", name)
		}
		findings := app.InspectProvider(ctx, cfg, &specs[i], c.resolver)
		if c.json {
			findingRows(t, name, findings)
		} else {
			fmt.Fprintf(c.out, "%s (%s)\n", name, specs[i].Kind)
			c.printFindings(c.out, findings)
		}
		wrong = wrong || slices.ContainsFunc(findings, func(f providers.Finding) bool {
			return f.State == providers.Wrong || f.State == providers.Unknown
		})
	}
	if c.json {
		err = t.flush()
	}
	if err == nil && wrong {
		err = exitFailed
	}
	return err
}

// findingsHead names the columns of what was found out about providers.
const findingsHead = "PROVIDER\tSTATE\tABOUT\tTEXT\tTO DO"

// findingRows adds what was found out; name is "" for a mail as it was received.
func findingRows(t *table, name string, findings []providers.Finding) {
	for _, f := range findings {
		t.row(name, f.State, f.About, f.Text, f.ToDo)
	}
}

// checkReceived prints the findings about a mail as it was received.
func checkReceived(c *cli, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	findings, err := dnscheck.Received(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if c.json {
		t := c.newTable(findingsHead)
		findingRows(t, "", findings)
		err = t.flush()
	} else {
		c.printFindings(c.out, findings)
	}
	if err == nil && slices.ContainsFunc(findings, func(f providers.Finding) bool { return f.State == providers.Wrong }) {
		return exitFailed
	}
	return err
}

// providerSuppressions returns the command that lists what a provider suppresses and we do not, and its
// subcommand that clears an address there.
func providerSuppressions(c *cli) *cobra.Command {
	cmd := listOf(c, listing{
		call:   call{op: "listProviderSuppressions", use: "suppressions NAME", what: "provider"},
		head:   "EMAIL\tLIST\tREASON\tSINCE\tREMOVED HERE BY\tTEXT",
		none:   "the provider suppresses no address that is not suppressed here",
		paging: true,
	}, func(_ context.Context, _ *operator, e *client.ProviderSuppression) []any {
		return []any{e.Email, e.List, e.Reason, e.At, e.RemovedBy, e.Text}
	})
	cmd.AddCommand(doing(c, call{
		op: "clearProviderSuppression", use: "clear NAME ADDRESS", what: "provider",
	}, func(_ context.Context, r *request, _ *struct{}) error {
		c.sayDone(models.ProviderUnlist, r.args[1], true)
		return nil
	}))
	return cmd
}

// printFindings prints what was found out, with what to do about it.
func (c *cli) printFindings(w io.Writer, findings []providers.Finding) {
	for _, f := range findings {
		fmt.Fprintf(w, "  %-7s  %s: %s\n", f.State, f.About, f.Text)
		if f.ToDo != "" {
			fmt.Fprintf(w, "           %s\n", f.ToDo)
		}
	}
}
