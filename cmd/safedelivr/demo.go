package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/lab/demo"
	"github.com/safedelivr/safedelivr/lab/drill"
)

func rehearseCommand(c *cli) *cobra.Command {
	var o drill.Options
	var list, asJSON bool
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
			if list {
				return listScenarios(c, drill.List(cfg), asJSON)
			}
			return runDrill(cmd.Context(), c, o, asJSON)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the scenarios, and which are not possible on this set-up")
	f.StringArrayVar(&o.Only, "only", nil, "rehearse only this scenario; may be given several times")
	f.BoolVar(&asJSON, "json", false, "print the results, or the list, as one JSON object; progress goes to stderr")
	f.IntVar(&o.Recipients, "recipients", 2_000,
		"recipients of the batches that each scenario begins with, 100 to 100,000")
	f.IntVar(&o.Parallel, "parallel", 4, "scenarios at a time, 1 to 16")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the times of the faults; 0: a new one")
	return cmd
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
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a failover: everything on this machine, with simulated providers",
		Long: `Start Safedelivr with a simulated SendGrid and a simulated Mailgun on this machine, send a batch through
the API, break SendGrid in the middle and heal it, and count at the simulated providers what arrived. It
needs no credentials, no broker and no database.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := demo.Run(cmd.Context(), o)
			if errors.Is(err, demo.ErrWrong) {
				return exitFailed // the summary says what is wrong
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Recipients, "recipients", 10_000, "recipients of the batch, 100 to 1,000,000")
	f.BoolVar(&o.Exit, "exit", false,
		"end after the summary; the exit code is not 0 if anything was lost, doubled or does not add up")
	f.BoolVar(&o.JSON, "json", false, "print the summary as one JSON object on the last line")
	f.StringVar(&o.Dir, "data-dir", "", "data folder (default: a new temporary one, removed at the end)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "address of the API; another port is taken if it is in use")
	return cmd
}
