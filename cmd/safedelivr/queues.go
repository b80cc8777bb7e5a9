package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func queuesCommand(c *cli) *cobra.Command {
	return listOf(c, listing{
		call: call{op: "listQueues", use: "queues"},
		head: "QUEUE\tREADY\tWORKING\tOLDEST",
	}, func(_ context.Context, _ *operator, q *client.Queue) []any {
		return []any{q.Name, q.Ready, q.Working, oldest(q)}
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
	return listOf(c, listing{
		call: call{op: "getWaiting", use: "waiting"},
		head: "LANE\tWAITS FOR\tPROVIDER\tMESSAGES\tBATCHES\tSINCE\tNEXT ATTEMPT\tOLDEST BATCH\tWHY",
		none: "no mail waits here",
	}, func(_ context.Context, _ *operator, l *client.WaitingMail) []any {
		return []any{l.Lane, l.Code, l.Provider, l.Recipients, l.Batches, l.Since, l.Until, l.Oldest, l.Text}
	})
}

func workersCommand(c *cli) *cobra.Command {
	return listOf(c, listing{
		call: call{op: "listWorkers", use: "workers", short: "List the workers, and their share of every limit"},
		head: "WORKER\tSTARTED\tSHARE",
	}, func(_ context.Context, _ *operator, w *client.Worker) []any {
		return []any{w.Name, w.Started, shown{fmt.Sprintf("%.0f %%", 100*w.Share), 100 * w.Share}}
	})
}

func parkedCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "Messages that no worker could handle",
		Long: `Messages that no worker could handle. A message only wakes a worker: the mail that it is about is in the
store, and the agenda finds it even if the message is discarded.`,
	}
	cmd.AddCommand(
		listOf(c, listing{
			call:   call{op: "listParked", use: "list"},
			head:   "ID\tKEY\tAT\tWHY",
			none:   "no message is parked",
			paging: true,
		}, func(_ context.Context, _ *operator, m *client.ParkedMessage) []any {
			return []any{m.ID, m.Key, m.At, m.Why}
		}),
		controlling(c, call{op: "requeueParked", use: "requeue ID", what: "parked message"}),
		controlling(c, call{op: "discardParked", use: "discard ID", what: "parked message"}))
	return cmd
}

// unmatchedCommand returns the command about events of providers that fit no message, or several.
func unmatchedCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "unmatched", Short: "Events of providers that fit no message, or several"}
	cmd.AddCommand(
		listOf(c, listing{
			call:   call{op: "listUnmatched", use: "list"},
			head:   "ID\tPROVIDER\tAT\tEVENT\tRECIPIENT\tREASON\tTEXT",
			none:   "all events fit a message",
			paging: true,
		}, func(_ context.Context, _ *operator, e *client.UnmatchedEvent) []any {
			return []any{e.ID, e.Provider, e.At, e.Kind, e.Email, e.Reason, e.Text}
		}),
		doing[client.UnmatchedEvent](c, call{op: "getUnmatched", use: "show ID", what: "event"}, nil))
	return cmd
}
