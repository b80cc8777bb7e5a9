package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/events"
)

func (c *cli) replayCommand() *cobra.Command {
	var since, until string
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Read webhook posts again, after a parser was fixed",
		Args:  takes(0, 0),
		Long: `Read the posts of the inbox again with the parsers of this program. Results that differ replace those
from before; the same parsers change nothing. Posts are kept for SAFEDELIVR_TIMES_INBOX_KEEP.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := parseSince(since)
			if err != nil {
				return err
			}
			to := time.Now()
			if until != "" {
				if to, err = parseSince(until); err != nil {
					return err
				}
			}
			return c.withEngine(cmd.Context(), func(ctx context.Context, e *consumers.Engine) error {
				tell := func(n events.Replayed) string { return count(n.Posts, "post") + " read again" }
				out, err := e.Replay(ctx, from, to, progress(c, tell))
				if err != nil {
					return err
				}
				fmt.Fprintf(c.out, "%s read again; %s changed\n", count(out.Posts, "post"), count(out.Events, "event"))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "24h", "posts that arrived since: a duration, a day, or a time")
	cmd.Flags().StringVar(&until, "until", "", "posts that arrived before (default: now)")
	return cmd
}
