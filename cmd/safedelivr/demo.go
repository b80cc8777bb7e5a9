package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/lab/demo"
	"github.com/safedelivr/safedelivr/lab/drill"
	"github.com/safedelivr/safedelivr/lab/simulated"
)

func rehearseCommand(c *cli) *cobra.Command {
	var o drill.Options
	var list, asJSON bool
	var kinds []string
	cmd := &cobra.Command{
		Use:   "rehearse",
		Short: "Rehearse faults: providers, workers, broker and store break, and every mail is counted",
		Long: `Rehearse faults on this set-up: on the embedded one or, if they are configured, on your own RabbitMQ and
Cassandra, in keyspaces and under names that are created for it and removed again. Providers are
simulated: configured ones are not used, and no mail is sent. In each scenario a batch is posted to a
server of its own, something breaks while it is sent and is healed again, and in the end the copies at
the providers are compared with the logs. The exit code is not 0 if anything was lost, doubled or does
not add up.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := c.load()
			if err != nil {
				return err
			}
			o.Config = cfg
			if len(kinds) == 0 {
				kinds = configuredKinds(&cfg)
			}
			if o.Providers, err = pairOf(kinds); err != nil {
				return err
			}
			if list {
				return listScenarios(c, drill.List(o), asJSON)
			}
			return runDrill(cmd.Context(), c, o, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&kinds, "providers", nil,
		"two kinds of provider to simulate; default: the first two kinds that are configured, or sendgrid,mailgun")
	f.BoolVar(&list, "list", false, "list the scenarios, and which are not possible on this set-up")
	f.StringArrayVar(&o.Only, "only", nil, "rehearse only this scenario; may be given several times")
	f.BoolVar(&asJSON, "json", false, "print the results, or the list, as one JSON object; progress goes to stderr")
	f.IntVar(&o.Recipients, "recipients", 2_000,
		"recipients of the batches that each scenario begins with, 100 to 100,000")
	f.IntVar(&o.Parallel, "parallel", 4, "scenarios at a time, 1 to 16")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the times of the faults; 0: a new one")
	return cmd
}

// pairOf returns the simulated providers of two kinds, or the usual ones if there are none.
func pairOf(kinds []string) (simulated.Pair, error) {
	pair, err := simulated.NewPair(kinds...)
	if err != nil {
		err = fmt.Errorf("--providers: %w", err)
	}
	return pair, err
}

// configuredKinds returns the first two kinds of the configured providers that can be simulated, or nil.
func configuredKinds(cfg *config.Config) (kinds []string) {
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		kind := cfg.Providers[name].Kind
		if len(kinds) < 2 && slices.Contains(simulated.Kinds(), kind) && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) < 2 {
		return nil
	}
	return kinds
}

func runDrill(ctx context.Context, c *cli, o drill.Options, asJSON bool) error {
	o.Log = slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: slog.LevelError}))
	o.Progress = c.out
	if asJSON {
		o.Progress = c.err
	}
	report, err := drill.Run(ctx, o)
	if len(report.Results) == 0 { // nothing was rehearsed
		return err
	}
	var perr error
	if asJSON {
		perr = json.NewEncoder(c.out).Encode(report)
	} else {
		perr = report.Print(c.out)
	}
	if err == nil {
		err = perr
	}
	if err == nil && !report.Good {
		err = exitFailed
	}
	return err
}

// listScenarios prints the scenarios, and which are not possible.
func listScenarios(c *cli, l drill.Listing, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(c.out).Encode(l)
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, s := range l.Scenarios {
		note := ""
		if s.NA != "" {
			note = " (n/a here: " + s.NA + ")"
		}
		fmt.Fprintf(w, "%s\t%s%s\n", s.Name, s.Story, note)
	}
	return w.Flush()
}

// rehearsedCommand serves for as long as its standard input stays open. The drill runs it.
func rehearsedCommand(c *cli) *cobra.Command {
	serve := serveCommand(c)
	run := serve.RunE
	serve.Use, serve.Hidden = "rehearsed", true
	serve.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		cmd.SetContext(ctx)
		return run(cmd, args)
	}
	return serve
}

func demoCommand(c *cli) *cobra.Command {
	o := demo.Options{Out: c.out, Err: c.err}
	var kinds []string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a failover: everything on this machine, with simulated providers",
		Long: `Start Safedelivr with a simulated SendGrid and a simulated Mailgun on this machine, send a batch through
the API, break SendGrid in the middle and heal it, and count at the simulated providers what arrived. It
needs no credentials, no broker and no database. Of other kinds of provider, the first one breaks.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Providers, err = pairOf(kinds); err != nil {
				return err
			}
			err = demo.Run(cmd.Context(), o)
			if errors.Is(err, demo.ErrWrong) {
				return exitFailed // the summary says what is wrong
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&kinds, "providers", nil, "two kinds of provider to simulate (default: sendgrid,mailgun)")
	f.IntVar(&o.Recipients, "recipients", 10_000, "recipients of the batch, 100 to 1,000,000")
	f.BoolVar(&o.Exit, "exit", false,
		"end after the summary; the exit code is not 0 if anything was lost, doubled or does not add up")
	f.BoolVar(&o.JSON, "json", false, "print the summary as one JSON object on the last line")
	f.StringVar(&o.Dir, "data-dir", "", "data folder (default: a new temporary one, removed at the end)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "address of the API; another port is taken if it is in use")
	return cmd
}
