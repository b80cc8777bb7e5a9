package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/internal/demo"
)

func (c *cli) demoCommand() *cobra.Command {
	o := demo.Options{Commands: handedOver(), Out: c.out, Err: c.err}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See a failover: everything on this machine, with simulated providers",
		Args:  cobra.NoArgs,
		Long: `Start Safedelivr with a simulated SendGrid and a simulated Mailgun on this machine, send a batch through
the API, break SendGrid in the middle and heal it, and count at the simulated providers what arrived. It
needs no credentials, no broker and no database.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := demo.Run(cmd.Context(), o)
			if errors.Is(err, demo.ErrWrong) {
				return exitCode(1) // the summary says what is wrong
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
