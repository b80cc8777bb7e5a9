package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) queuesCommand() *cobra.Command {
	return c.listCommand(listing{
		use:   "queues",
		short: "Show queue depths, and an upper bound of the age of the oldest message in each",
		head:  "QUEUE\tREADY\tWORKING\tOLDEST",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		queues, err := svc.Queues(ctx, c.operator())
		for _, q := range queues {
			row(q.Name, q.Ready, q.Working, oldest(&q))
		}
		return err
	})
}

// oldest says how long the oldest message of a queue has waited at most.
func oldest(q *service.QueueView) string {
	switch {
	case q.Ready == 0:
		return ""
	case q.Oldest == nil:
		return "not known"
	}
	return q.Age().Round(time.Second).String()
}

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
