package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) queuesCommand() *cobra.Command {
	return c.listCommand(listing{
		use:   "queues",
		short: "Show queue depths, and an upper bound of the age of the oldest message in each",
		head:  "QUEUE\tREADY\tWORKING\tOLDEST",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		queues, err := svc.Operate.Queues(ctx, c.operator())
		for _, q := range queues {
			row(q.Name, q.Ready, q.Working, oldest(&q))
		}
		return err
	})
}

// oldest says how long the oldest message of a queue has waited at most; in JSON in seconds.
func oldest(q *client.Queue) shown {
	switch {
	case q.Ready == 0:
		return shown{}
	case q.OldestSeconds == nil:
		return shown{"not known", nil}
	}
	age := q.Age().Round(time.Second)
	return shown{age.String(), age.Seconds()}
}

// waitingCommand returns the command that lists the mail that waits here.
func waitingCommand(c *cli) *cobra.Command {
	return c.listCommand(listing{
		use:   "waiting",
		short: "Show what mail waits for, how much of it, and since when, urgent mail first",
		head:  "LANE\tWAITS FOR\tPROVIDER\tMESSAGES\tBATCHES\tSINCE\tNEXT ATTEMPT\tOLDEST BATCH\tWHY",
		none:  "no mail waits here",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		b, err := svc.Mail.Backlog(ctx, c.operator())
		for _, l := range b.Lines {
			row(l.Lane, l.Code, l.Provider, l.Recipients, l.Batches, l.Since, l.Until, l.Oldest, l.Text)
		}
		return err
	})
}

func (c *cli) workersCommand() *cobra.Command {
	return c.listCommand(listing{
		use:   "workers",
		short: "Workers that reported lately, and their share of every limit",
		head:  "WORKER\tSTARTED\tSHARE",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		workers, err := svc.Operate.Workers(ctx, c.operator())
		for _, w := range workers {
			row(w.Name, w.Started, shown{fmt.Sprintf("%.0f %%", 100*w.Share), 100 * w.Share})
		}
		return err
	})
}

func (c *cli) parkedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "Messages that no worker could handle",
		Long: `Messages that no worker could handle. A message only wakes a worker: the mail that it is about is in the
store, and the agenda finds it even if the message is discarded.`,
	}
	cmd.AddCommand(
		c.pagesCommand(listing{
			use:   "list",
			short: "List parked messages, oldest first if the broker knows their times",
			head:  "ID\tKEY\tAT\tWHY",
			none:  "no message is parked",
		}, func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
			parked, err := svc.Operate.Parked(ctx, c.operator(), p)
			for _, m := range parked.Parked {
				row(m.ID, m.Key, m.At, m.Why)
			}
			return parked.Next, err
		}),
		c.commandAbout(about{
			use:   "requeue ID",
			short: "Publish a parked message again",
			what:  "parked message",
		}, func(ctx context.Context, svc *service.Service, id, why string) error {
			changed, _, err := svc.Operate.Requeue(ctx, c.operator(), id, why, service.Repeat{})
			if err == nil {
				c.sayDone(models.Requeued, id, changed)
			}
			return err
		}),
		c.commandAbout(about{
			use:   "discard ID",
			short: "Drop one",
			what:  "parked message",
		}, func(ctx context.Context, svc *service.Service, id, why string) error {
			changed, err := svc.Operate.Discard(ctx, c.operator(), id, why)
			if err == nil {
				c.sayDone(models.Discarded, id, changed)
			}
			return err
		}))
	return cmd
}
