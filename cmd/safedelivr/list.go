package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

// tabled is a table that is being printed. A cell that is empty is a dash.
type tabled struct{ w *tabwriter.Writer }

func (c *cli) tabled(head string) tabled {
	t := tabled{tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)}
	fmt.Fprintln(t.w, head)
	return t
}

func (t tabled) row(cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		if cell == "" {
			cell = "-"
		}
		fmt.Fprint(t.w, cell)
	}
	fmt.Fprintln(t.w)
}

// table is a command that prints a list, or nothing where that cannot be read.
func (c *cli) table(use, short, head string, rows func(ctx context.Context, svc *service.Service, row func(...any)) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				t := c.tabled(head)
				if err := rows(ctx, svc, t.row); err != nil {
					return err
				}
				return t.w.Flush()
			})
		},
	}
}

// pageRows is how many rows of a long list are read, and laid out, together.
const pageRows = 500

// pages is a command that prints the beginning of a long list, or with --all the
// whole, page by page, so that memory does not grow with it. page prints one and
// returns the cursor of the next.
func (c *cli) pages(use, short, head string, page func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (next string, err error)) *cobra.Command {
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use: use, Short: short, Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit %d: at least 1", limit)
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				t, p := c.tabled(head), service.Page{}
				for left := limit; all || left > 0; left -= p.Limit {
					if p.Limit = pageRows; !all {
						p.Limit = min(left, pageRows)
					}
					next, err := page(ctx, svc, p, t.row)
					if err != nil {
						return err
					}
					if err := t.w.Flush(); err != nil || next == "" {
						return err
					}
					p.Cursor = next
				}
				c.warn("There are more: --limit N lists N of them, --all lists all.")
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many")
	cmd.Flags().BoolVar(&all, "all", false, "all there are")
	cmd.MarkFlagsMutuallyExclusive("limit", "all")
	return cmd
}

func (c *cli) queuesCommand() *cobra.Command {
	return c.table("queues", "How full the queues are, and how long the oldest message in each has waited at most", "QUEUE\tREADY\tWORKING\tOLDEST", func(ctx context.Context, svc *service.Service, row func(...any)) error {
		queues, err := svc.Queues(ctx, c.operator())
		for _, q := range queues {
			row(q.Name, q.Ready, q.Working, oldestWords(&q))
		}
		return err
	})
}

// oldestWords says how long the oldest message of a queue has waited at most.
func oldestWords(q *service.QueueView) string {
	switch {
	case q.Ready == 0:
		return ""
	case q.Oldest == nil:
		return "not known"
	}
	return q.Age().Round(time.Second).String()
}

func (c *cli) workersCommand() *cobra.Command {
	return c.table("workers", "Workers that reported lately, and their share of every limit", "WORKER\tSTARTED\tSHARE", func(ctx context.Context, svc *service.Service, row func(...any)) error {
		workers, err := svc.Workers(ctx, c.operator())
		for _, w := range workers {
			started := ""
			if !w.Started.IsZero() {
				started = w.Started.UTC().Format(time.RFC3339)
			}
			row(w.Name, started, fmt.Sprintf("%.0f %%", 100*w.Share))
		}
		return err
	})
}
