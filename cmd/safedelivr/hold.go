package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) holdCommand() *cobra.Command {
	var why string
	lift := &cobra.Command{
		Use:   "lift",
		Short: "Send everything that is held",
		Args:  takes(0, 0),
		Long: `Send everything that is held since a restore. Mail sent after the backup was made arrives twice:
cancel such batches first.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, _, err := svc.LiftHolds(ctx, c.operator(), why, service.Repeat{})
				switch {
				case err != nil:
					return err
				case v.Changed:
					fmt.Fprintln(c.out, "lifted: what was held is sent now")
				default:
					fmt.Fprintln(c.out, "nothing is held")
				}
				return nil
			})
		},
	}
	whyFlag(lift, &why)
	cmd := &cobra.Command{
		Use:   "hold",
		Short: "What is held after a restore from a backup",
		Long: `After a restore from a backup, "serve --after-restore" holds all mail that was accepted before: the
backup does not know what was sent since it was made. Look at it, cancel what must not be sent, and lift
the hold.`,
	}
	cmd.AddCommand(lift, &cobra.Command{
		Use:   "list",
		Short: "List the holds",
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				holds, err := svc.Holds(ctx, c.operator())
				if err != nil {
					return err
				}
				for _, h := range holds {
					fmt.Fprintf(c.out, "mail accepted before %s is held since %s, by %s",
						h.Before.UTC().Format(time.RFC3339), h.At.UTC().Format(time.RFC3339), h.By)
					if h.Why != "" {
						fmt.Fprintf(c.out, ": %s", h.Why)
					}
					fmt.Fprintln(c.out)
				}
				if len(holds) == 0 {
					fmt.Fprintln(c.out, "nothing is held")
				}
				return nil
			})
		},
	})
	return cmd
}
