package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

func checkCommand(c *cli) *cobra.Command {
	var in client.NewCheck
	var since string
	cmd := command(c, call{
		use: "check", short: "Recount every batch, user and day, and compare with the stored sums",
		json: "print differences and counts as one JSON object",
		long: `Recount every batch, user and day from recipients, ledger and facts, and compare with summaries, stats
and the feeds of updates.
Prints each difference when it is found, then the counts, and ends with code 1 if there is a difference. It may
run while mail flows: a sum that is being renewed gets a quarter of a minute.

With --json all of it is one JSON object. "found" is an array with an object for each difference, one a
line: "what" (chunk, batch, feed, day, or a span), "user", "id", and the sums "shown" and "counted" as the API has
them, or "damaged" if something cannot be read or a feed is wrong. Then come the numbers of users, batches, chunks,
recipients, days, differences and repaired ones. If the check breaks off, the object ends with "error" and the
counts up to there.`,
	}, func(ctx context.Context, r *request) (err error) {
		if in.Since, err = parseSince(since); err != nil {
			return wrongUsage("--since: %w", err)
		}
		if in.User != "" {
			r.what, r.named = "user", in.User
		}
		check := checkInLines
		if c.json {
			check = checkAsJSON
		}
		out, err := check(ctx, c, r.operator, in)
		if err == nil && out.Differences > 0 {
			err = exitFailed
		}
		return err
	})
	cmd.Flags().BoolVar(&in.Repair, "repair", false, "correct wrong sums")
	cmd.Flags().StringVar(&since, "since", "",
		"only batches accepted since: a duration like 24h, a day, or a time (default: all)")
	cmd.Flags().StringVar(&in.User, "user", "", "only this user's, by name")
	return cmd
}

// checkInLines checks, and prints a line for each difference and one for the counts.
func checkInLines(ctx context.Context, c *cli, o *operator, in client.NewCheck) (client.Check, error) {
	say := progress(c, func(n client.Check) string {
		return "checked " + count(n.Batches, "batch") + ", " + count(n.Recipients, "recipient") + "; " +
			count(n.Differences, "difference")
	})
	out, err := o.RunCheck(ctx, in, func(s *client.Step[client.Check]) {
		if s.Found != nil {
			fmt.Fprintln(c.out, s.Found.Text)
		} else {
			say(*s.Progress)
		}
	})
	if err == nil {
		fmt.Fprintf(c.out, "%s, %s, %s, %s: %s, %d repaired\n", count(out.Users, "user"), count(out.Batches, "batch"),
			count(out.Recipients, "recipient"), count(out.Days, "day"), count(out.Differences, "difference"), out.Repaired)
	}
	return out, err
}

// checkAsJSON checks, and prints one JSON object, each difference when it is found: memory does not grow with their
// number.
func checkAsJSON(ctx context.Context, c *cli, o *operator, in client.NewCheck) (client.Check, error) {
	fmt.Fprint(c.out, `{"found":[`)
	comma := ""
	out, err := o.RunCheck(ctx, in, func(s *client.Step[client.Check]) {
		if s.Found != nil {
			raw, _ := json.Marshal(s.Found) // never an error: numbers and words
			fmt.Fprintf(c.out, "%s\n%s", comma, raw)
			comma = ","
		}
	})
	var end struct {
		client.Check
		Error string `json:"error,omitempty"`
	}
	if end.Check = out; err != nil {
		end.Error = err.Error()
	}
	counts, _ := json.Marshal(end) // never an error, too
	fmt.Fprintf(c.out, "],\n%s\n", counts[1:])
	return out, err
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

// parseSince reads a time in the past; see parseTime. An empty string is the zero time.
func parseSince(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return parseTime(s, true)
}

// parseTime reads a time: a duration before or from now, a day in UTC, or a time with its zone.
func parseTime(s string, past bool) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		if past {
			d = -d
		}
		return time.Now().Add(d).UTC().Truncate(time.Second), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, wrongUsage(
		"%q is no time: want a duration like 24h, a day like 2026-01-31, or a time like 2026-01-31T12:00:00Z", s)
}

func replayCommand(c *cli) *cobra.Command {
	var since, until string
	cmd := command(c, call{
		use: "replay", short: "Read webhook posts again, after a parser was fixed",
		long: `Read the posts of the inbox again with the parsers of this program. Results that differ replace those
from before; the same parsers change nothing. Posts are kept for SAFEDELIVR_TIMES_INBOX_KEEP.`,
	}, func(ctx context.Context, r *request) error {
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
		say := progress(c, func(n client.Replayed) string { return count(n.Posts, "post") + " read again" })
		out, err := r.RunReplay(ctx, client.NewReplay{Since: from, Until: to},
			func(s *client.Step[client.Replayed]) { say(*s.Progress) })
		if err == nil {
			fmt.Fprintf(c.out, "%s read again; %s changed\n", count(out.Posts, "post"), count(out.Events, "event"))
		}
		return err
	})
	cmd.Flags().StringVar(&since, "since", "24h", "posts that arrived since: a duration, a day, or a time")
	cmd.Flags().StringVar(&until, "until", "", "posts that arrived before (default: now)")
	return cmd
}
