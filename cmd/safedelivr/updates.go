package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// updatesFlags are the flags of updates.
type updatesFlags struct {
	user, from, batch, tag, state string
	events                        []string
	follow, installation          bool
}

func (c *cli) updatesCommand() *cobra.Command {
	var f updatesFlags
	cmd := &cobra.Command{
		Use:   "updates",
		Short: "Print the status changes of a user's mail, oldest first",
		Args:  takes(0, 0),
		Long: `Print the updates of a user: each change of the state, the reason or the provider of a log, and with --events all
also each deferral, bounce, complaint, unsubscription, first open and first click. With --follow new ones are printed
as they come. With --json each line is an update as GET /v1/updates has it. With --installation it is what operators
want to hear of instead: providers that are suspended, outages, limits that are nearly used up.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error { return c.updates(ctx, o, &f) })
			if f.follow && cmd.Context().Err() != nil {
				return nil //nolint:nilerr // the user has ended it
			}
			return err
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.user, "user", "", "whose, by name (default: the only one, or the one that init has added)")
	s.BoolVar(&f.follow, "follow", false, "go on with those that come")
	s.StringVar(&f.from, "from", "", "only updates since a time like 2026-01-31T12:00:00Z (default: all that are kept)")
	s.StringVar(&f.batch, "batch", "", "only those of this batch")
	s.StringVar(&f.tag, "tag", "", "only those of batches with this tag")
	s.StringVar(&f.state, "state", "", "only those to this state: queued, delivered, failed or cancelled")
	s.StringSliceVar(&f.events, "events", nil, "only these: "+feed.Names("")+" (default: all changes of the state)")
	s.BoolVar(&f.installation, "installation", false, "those of the installation; --events has the names "+
		feed.Names(feed.Installation))
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	return c.withJSON(cmd, "print JSON")
}

func (c *cli) updates(ctx context.Context, o *operator, f *updatesFlags) error {
	path, query := client.Path("notices"), url.Values{"limit": {"1000"}}
	for name, value := range map[string]string{
		"batch": f.batch, "tag": f.tag, "state": f.state, "events": strings.Join(f.events, ","), "from": f.from,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if !f.installation {
		u, err := o.sender(ctx, f.user)
		if err != nil {
			return err
		}
		o, path = o.as(u.ID), client.Path("updates")
	}
	if _, err := time.Parse(time.RFC3339, f.from); f.from != "" && err != nil {
		return wrongUsage("--from: a time like 2026-01-31T12:00:00Z")
	}
	for {
		var page struct {
			Updates, Notices []json.RawMessage
			Next             string `json:"next_cursor"`
			More             bool
		}
		if err := o.Call(ctx, http.MethodGet, path, query, nil, &page); err != nil {
			return err
		}
		for _, raw := range append(page.Updates, page.Notices...) {
			if err := c.printUpdate(raw); err != nil {
				return err
			}
		}
		if !page.More && !f.follow {
			return nil
		}
		query.Set("cursor", page.Next)
		if query.Del("wait"); f.follow && !page.More {
			query.Set("wait", "1m")
		}
	}
}

// printUpdate prints an update as a line.
func (c *cli) printUpdate(raw json.RawMessage) (err error) {
	if c.json {
		_, err = fmt.Fprintf(c.out, "%s\n", raw)
		return err
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
func (c *cli) statsCommand() *cobra.Command {
	var user, by, name, from, to string
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Print the results of mail, by day, or by provider, category, sender, template or tag",
		Args:  takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				query := url.Values{"everyone": {"true"}}
				if user != "" {
					u, err := o.find(ctx, user)
					if err != nil {
						return err
					}
					o, query = o.as(u.ID), url.Values{}
				}
				for parameter, value := range map[string]string{"by": by, "name": name, "from": from, "to": to} {
					if value != "" {
						query.Set(parameter, value)
					}
				}
				var stats client.Stats
				if err := o.Call(ctx, http.MethodGet, client.Path("stats"), query, nil, &stats); err != nil {
					return err
				}
				return c.printStats(&stats, by != "" && name == "")
			})
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "provider, category, sender, template or tag (default: by UTC day)")
	cmd.Flags().StringVar(&name, "name", "", "with --by: the days of this one")
	cmd.Flags().StringVar(&from, "from", "", "first day, like 2026-01-31 (default: 29 days before --to)")
	cmd.Flags().StringVar(&to, "to", "", "last day (default: today)")
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name (default: all users)")
	return c.withJSON(cmd, jsonRows)
}

// printStats prints a line for each day or group.
func (c *cli) printStats(stats *client.Stats, groups bool) error {
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
