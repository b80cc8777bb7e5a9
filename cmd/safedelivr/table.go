package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

// table is a table that is being printed. An empty cell is printed as a dash.
type table struct{ w *tabwriter.Writer }

func (c *cli) newTable(head string) table {
	t := table{tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)}
	fmt.Fprintln(t.w, head)
	return t
}

func (t table) row(cells ...any) {
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

func timeOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// count returns a number with its noun, like "1 batch" or "2 batches".
func count[N int | int64](n N, noun string) string {
	if n != 1 {
		if strings.HasSuffix(noun, "ch") {
			noun += "e"
		}
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// listing is a command that prints a list.
type listing struct {
	use, short string
	head       string // of the columns, separated by tabs
	none       string // what is printed if the list is empty
}

// listCommand prints a list. It prints nothing if rows fails.
func (c *cli) listCommand(
	l listing, rows func(ctx context.Context, svc *service.Service, row func(...any)) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   l.use,
		Short: l.short,
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				t, n := c.newTable(l.head), 0
				if err := rows(ctx, svc, func(cells ...any) { n++; t.row(cells...) }); err != nil {
					return err
				}
				if n == 0 && l.none != "" {
					fmt.Fprintln(c.out, l.none)
					return nil
				}
				return t.w.Flush()
			})
		},
	}
}

// pageRows is how many rows of a long list are read and laid out together.
const pageRows = 500

// readPage prints one page of a list and returns the cursor of the next one.
type readPage func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (next string, err error)

// pagesCommand prints the beginning of a long list, or all of it with --all. It reads page by page, so that memory does
// not grow with the list.
func (c *cli) pagesCommand(l listing, page readPage) *cobra.Command {
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use:   l.use,
		Short: l.short,
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return fmt.Errorf("--limit %d: at least 1", limit)
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				t, p, n := c.newTable(l.head), service.Page{}, 0
				row := func(cells ...any) { n++; t.row(cells...) }
				for left := limit; all || left > 0; left -= p.Limit {
					if p.Limit = pageRows; !all {
						p.Limit = min(left, pageRows)
					}
					next, err := page(ctx, svc, p, row)
					if err != nil {
						return err
					}
					if n == 0 && next == "" && l.none != "" {
						fmt.Fprintln(c.out, l.none)
						return nil
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
