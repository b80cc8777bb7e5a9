package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// pageOfUpdates is a page of updates, or of notices.
type pageOfUpdates struct {
	Updates, Notices []json.RawMessage
	Next             string `json:"next_cursor"`
	More             bool
}

func updatesCommand(c *cli) *cobra.Command {
	var user string
	var follow, installation bool
	cmd := command(c, call{
		op: "listUpdates", use: "updates", short: "Print the status changes of a user's mail, oldest first",
		json: "print JSON",
		long: `Print the updates of a user: each change of the state, the reason or the provider of a log, and with --events
all also each deferral, bounce, complaint, unsubscription, first open and first click. With --follow it prints new ones
as they come. With --json each line is an update as GET /v1/updates has it. With --installation it prints the notices
for operators instead: suspended providers, outages, limits that are nearly used up.`,
		only: []string{"batch", "events", "from", "state", "tag"},
		usage: map[string]string{
			"batch":  "only those of this batch",
			"events": "only these: " + feed.Names("") + " (default: all changes of the state)",
			"from":   "only updates since a time like 2026-01-31T12:00:00Z (default: all that are kept)",
			"state":  "only those to this state: queued, delivered, failed or cancelled",
			"tag":    "only those of batches with this tag",
		},
		ready: func(ctx context.Context, r *request) error {
			if installation {
				r.path = client.Path("notices")
				return nil
			}
			return ofSender(&user)(ctx, r)
		},
	}, func(ctx context.Context, r *request) error {
		err := printUpdates(ctx, c, r, follow)
		if follow && ctx.Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}
		return err
	})
	s := cmd.Flags()
	s.StringVar(&user, "user", "", "whose, by name (default: the only one, or the one that init has added)")
	s.BoolVar(&follow, "follow", false, "go on with those that come")
	s.BoolVar(&installation, "installation", false, "those of the installation; --events has the names "+
		feed.Names(feed.Installation))
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	return cmd
}

// printUpdates prints the updates that a request asks for, and those that come.
func printUpdates(ctx context.Context, c *cli, r *request, follow bool) error {
	r.query.Set("limit", "1000")
	for {
		var page pageOfUpdates
		if err := r.send(ctx, &page); err != nil {
			return err
		}
		for _, raw := range append(page.Updates, page.Notices...) {
			if err := printUpdate(c, raw); err != nil {
				return err
			}
		}
		if !page.More && !follow {
			return nil
		}
		r.query.Set("cursor", page.Next)
		if r.query.Del("wait"); follow && !page.More {
			r.query.Set("wait", "1m")
		}
	}
}

// printUpdate prints an update as a line.
func printUpdate(c *cli, raw json.RawMessage) (err error) {
	if c.json {
		return c.printRaw(raw)
	}
	var v client.Update
	var notice models.Notice
	if err := errors.Join(json.Unmarshal(raw, &v), json.Unmarshal(raw, &notice)); err != nil {
		return err
	}
	at := v.At.Format(time.RFC3339)
	switch {
	case v.Suppression != nil:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %-12s  %s\n", at, v.Suppression.ID, v.Number, v.Event,
			words(v.Suppression.Email, v.Suppression.Reason))
	case v.Endpoint != nil:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %s  %s\n", at, v.Endpoint.ID, v.Number, v.Event, v.Endpoint.Why)
	case v.State == "" && v.Event == "":
		_, err = fmt.Fprintf(c.out, "%s  %d  %s  %s\n", at, v.Number, notice.Kind, notice.Text())
	default:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %-12s  %s\n", at, v.Log, v.Number,
			cmp.Or(string(v.State), v.Event), words(v.Provider, v.Reason))
	}
	return err
}

// words joins texts that are not empty.
func words(texts ...string) (out string) {
	for _, t := range texts {
		if t != "" && out != "" {
			out += "  "
		}
		out += t
	}
	return out
}

// statsCommand counts mail by day or by group.
func statsCommand(c *cli) *cobra.Command {
	var user string
	cmd := doing(c, call{
		op: "getStats", use: "stats", json: jsonRows, whose: ofUserOrAll(&user),
		short: "Print the results of mail, by day, or by provider, category, sender, template or tag",
		usage: map[string]string{
			"by":   "provider, category, sender, template or tag (default: by UTC day)",
			"from": "first day, like 2026-01-31 (default: 29 days before --to)",
			"name": "with --by: the days of this one",
			"to":   "last day (default: today)",
		},
	}, func(_ context.Context, r *request, v *client.Stats) error {
		return printStats(c, v, r.query.Has("by") && !r.query.Has("name"))
	})
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name (default: all users)")
	return cmd
}

// printStats prints a line for each day or group.
func printStats(c *cli, stats *client.Stats, groups bool) error {
	t := c.newTable("NAME\tACCEPTED\tDELIVERED\tFAILED\tBOUNCED\tDEFERRED\tCOMPLAINED\tUNSUBSCRIBED\tOPENED\tCLICKED")
	line := func(name string, n *client.Counts) {
		bounced := n.FailedReasons[string(models.MailboxInvalid)]
		t.row(name, n.Accepted, n.Delivered, n.Failed, share(bounced, n.Delivered+n.Failed), n.Events.Deferred,
			share(n.Events.Complained, n.Delivered), share(n.Events.Unsubscribed, n.Delivered),
			share(n.Events.Opened, n.Delivered), share(n.Events.Clicked, n.Delivered))
	}
	if groups {
		for i := range stats.Groups {
			line(stats.Groups[i].Name, &stats.Groups[i].Counts)
		}
		if len(stats.Groups) == 0 && !c.json {
			fmt.Fprintln(c.out, "no mail of these days has one")
			return nil
		}
	} else {
		for i := range stats.Days {
			if stats.Days[i].Accepted > 0 {
				line(stats.Days[i].Date, &stats.Days[i].Counts)
			}
		}
		line("all", &stats.Totals)
	}
	if stats.MoreGroups {
		c.warn("There are more groups, which are not counted apart.")
	}
	return t.flush()
}

// share is a share in percent. That of nothing is a dash, and null in JSON.
func share(part, whole int64) shown {
	if whole == 0 {
		return shown{"–", nil}
	}
	digits := strconv.FormatFloat(float64(part)*100/float64(whole), 'f', 2, 64)
	return shown{digits + " %", json.Number(digits)}
}
