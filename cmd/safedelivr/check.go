package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/stats"
)

func (c *cli) checkCommand() *cobra.Command {
	var o rollup.CheckOptions
	var asJSON bool
	var since, user string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Recount every batch, user and day, and compare with what is shown",
		Args:  takes(0, 0),
		Long: `Recount every batch, user and day from recipients, ledger and facts, and compare with summaries, stats
and the feeds of updates.
Prints each difference when it is found, then the counts, and ends with code 1 if there is a difference. It may
run while mail flows: a sum that is being renewed gets a quarter of a minute.

With --json all of it is one JSON object. "found" is an array with an object for each difference, one a
line: "what" (chunk, batch, feed, day, or a span), "user", "id", and the sums "shown" and "counted" as the API has
them, or "damaged" if something cannot be read or a feed is wrong. Then come the numbers of users, batches, chunks,
recipients, days, differences and repaired ones. If the check breaks off, the object ends with "error" and the counts up to there.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := parseSince(since)
			if err != nil {
				return wrongUsage("--since: %w", err)
			}
			o.From = from
			return c.withEngine(cmd.Context(), func(ctx context.Context, e *consumers.Engine) error {
				if user != "" {
					u, err := c.engineUser(ctx, e, user)
					if err != nil {
						return err
					}
					o.User = u.ID
				}
				o.Progress = progress(c, func(n telemetry.Recount) string {
					return "checked " + count(n.Batches, "batch") + ", " + count(n.Recipients, "recipient") + "; " +
						count(n.Differences, "difference")
				})
				check := c.checkInLines
				if asJSON {
					check = c.checkAsJSON
				}
				out, err := check(ctx, e, o)
				if err == nil && out.Differences > 0 {
					err = exitFailed
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "correct wrong sums")
	cmd.Flags().StringVar(&since, "since", "",
		"only batches accepted since: a duration like 24h, a day, or a time (default: all)")
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print differences and counts as one JSON object")
	return cmd
}

// checkInLines checks, and prints a line for each difference and one for the counts.
func (c *cli) checkInLines(ctx context.Context, e *consumers.Engine, o rollup.CheckOptions) (telemetry.Recount, error) {
	o.Found = func(d rollup.Difference) { fmt.Fprintln(c.out, d) }
	out, err := e.Check(ctx, o)
	if err == nil {
		fmt.Fprintf(c.out, "%s, %s, %s, %s: %s, %d repaired\n", count(out.Users, "user"), count(out.Batches, "batch"),
			count(out.Recipients, "recipient"), count(out.Days, "day"), count(out.Differences, "difference"), out.Repaired)
	}
	return out, err
}

// checkAsJSON checks, and prints one JSON object, each difference when it is found:
// memory does not grow with their number.
func (c *cli) checkAsJSON(ctx context.Context, e *consumers.Engine, o rollup.CheckOptions) (telemetry.Recount, error) {
	type sum struct {
		client.Counts
		MadeFrom int64 `json:"made_from"` // entries and facts
	}
	sumOf := func(s *models.Summary) *sum { return &sum{stats.CountsOf(s), s.Version} }
	type difference struct {
		What    string `json:"what"`
		User    string `json:"user"`
		ID      string `json:"id"`
		Shown   *sum   `json:"shown,omitempty"`
		Counted *sum   `json:"counted,omitempty"`
		Damaged string `json:"damaged,omitempty"` // then there are no sums
	}
	fmt.Fprint(c.out, `{"found":[`)
	comma := ""
	o.Found = func(d rollup.Difference) {
		v := difference{What: d.What, User: d.User, ID: d.ID, Damaged: d.Damaged}
		if d.Damaged == "" {
			v.Shown, v.Counted = sumOf(&d.Shown), sumOf(&d.Counted)
		}
		raw, _ := json.Marshal(v) // never an error: numbers and words
		fmt.Fprintf(c.out, "%s\n%s", comma, raw)
		comma = ","
	}
	out, err := e.Check(ctx, o)
	var end struct {
		telemetry.Recount
		Error string `json:"error,omitempty"`
	}
	if end.Recount = out; err != nil {
		end.Error = err.Error()
	}
	counts, _ := json.Marshal(end) // never an error, too
	fmt.Fprintf(c.out, "],\n%s\n", counts[1:])
	return out, err
}

func (c *cli) engineUser(ctx context.Context, e *consumers.Engine, name string) (models.User, error) {
	u, err := e.UserByName(ctx, name)
	if errors.Is(err, models.ErrNotFound) {
		return u, isMissing("user", name)
	}
	return u, err
}

// progress returns a function that prints how far long work is, on stderr, every few seconds.
func progress[T any](c *cli, say func(T) string) func(T) {
	last := time.Now()
	return func(n T) {
		if time.Since(last) >= 3*time.Second {
			last = time.Now()
			fmt.Fprintln(c.err, say(n))
		}
	}
}

// parseSince reads a time in the past: a duration before now, a day in UTC, or a time with its zone. An empty string is
// the zero time.
func parseSince(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, wrongUsage(
		"%q is no time: want a duration like 24h, a day like 2026-01-31, or a time like 2026-01-31T12:00:00Z", s)
}

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
