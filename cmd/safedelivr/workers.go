package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) workersCommand() *cobra.Command {
	return c.listCommand(listing{
		use:   "workers",
		short: "Workers that reported lately, and their share of every limit",
		head:  "WORKER\tSTARTED\tSHARE",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		workers, err := svc.Workers(ctx, c.operator())
		for _, w := range workers {
			row(w.Name, timeOrDash(w.Started), fmt.Sprintf("%.0f %%", 100*w.Share))
		}
		return err
	})
}
