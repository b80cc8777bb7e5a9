package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/stats"
	"github.com/safedelivr/safedelivr/service/updates"
)

// updatesFlags are the flags of updates.
type updatesFlags struct {
	user, from, state string
	events            []string
	follow, json      bool
	installation      bool
	query             updates.Query
}

func (c *cli) updatesCommand() *cobra.Command {
	var o updatesFlags
	cmd := &cobra.Command{
		Use:   "updates",
		Short: "Print the status changes of a user's mail, oldest first",
		Args:  takes(0, 0),
		Long: `Print the updates of a user: each change of the state, the reason or the provider of a log, and with --events all
also each deferral, bounce, complaint, unsubscription, first open and first click. With --follow new ones are printed
as they come. With --json each line is an update as GET /v1/updates has it. With --installation it is what operators
want to hear of instead: providers that are suspended, outages, limits that are nearly used up.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return c.updates(ctx, svc, &o)
			})
			if o.follow && cmd.Context().Err() != nil {
				return nil //nolint:nilerr // the user has ended it
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.user, "user", "", "whose, by name (default: the only one, or the one that init has added)")
	f.BoolVar(&o.follow, "follow", false, "go on with those that come")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.StringVar(&o.from, "from", "", "only updates since a time like 2026-01-31T12:00:00Z (default: all that are kept)")
	f.StringVar(&o.query.Batch, "batch", "", "only those of this batch")
	f.StringVar(&o.query.Tag, "tag", "", "only those of batches with this tag")
	f.StringVar(&o.state, "state", "", "only those to this state: queued, delivered, failed or cancelled")
	f.StringSliceVar(&o.events, "events", nil, "only these: "+feed.Names("")+" (default: all changes of the state)")
	f.BoolVar(&o.installation, "installation", false, "those of the installation; --events has the names "+
		feed.Names(feed.Installation))
	cmd.MarkFlagsMutuallyExclusive("installation", "user")
	return cmd
}

func (c *cli) updates(ctx context.Context, svc *service.Service, o *updatesFlags) error {
	whose, err := c.ownerOf(ctx, svc, o.installation, o.user)
	if err != nil {
		return err
	}
	q := o.query
	q.State, q.Limit = models.State(o.state), updates.MaxLimit
	for _, e := range o.events {
		q.Events = append(q.Events, feed.Type(e))
	}
	if o.from != "" {
		if q.From, err = time.Parse(time.RFC3339, o.from); err != nil {
			return wrongUsage("--from: a time like 2026-01-31T12:00:00Z")
		}
	}
	enc := json.NewEncoder(c.out)
	for {
		page, err := svc.Updates.Read(ctx, whose, q)
		if err != nil {
			return explain(err)
		}
		for i := range page.Updates {
			if err := c.printUpdate(enc, &page.Updates[i], o.json); err != nil {
				return err
			}
		}
		if !page.More && !o.follow {
			return nil
		}
		q.Cursor, q.Wait = page.Next, 0
		if o.follow && !page.More {
			q.Wait = updates.MaxWait
		}
	}
}

// printUpdate prints an update as a line.
func (c *cli) printUpdate(enc *json.Encoder, v *feed.Described, asJSON bool) (err error) {
	at := v.At.Format(time.RFC3339)
	switch {
	case asJSON:
		return enc.Encode(v)
	case v.Notice != nil:
		_, err = fmt.Fprintf(c.out, "%s  %d  %s  %s\n", at, v.Number, v.Kind, v.Text())
	case v.Endpoint != nil:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %s  %s\n", at, v.Endpoint.ID, v.Number, v.Event, v.Endpoint.Why)
	case v.Suppression != nil:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %-12s  %s\n", at, v.Suppression.ID, v.Number, v.Event,
			words(v.Suppression.Email, string(v.Suppression.Reason)))
	default:
		_, err = fmt.Fprintf(c.out, "%s  %s  %d  %-12s  %s\n", at, v.Log, v.Number,
			cmp.Or(string(v.State), string(v.Event)), words(v.Provider, string(v.Reason)))
	}
	return err
}

// ownerOf returns the owner of a feed or of endpoints: the installation, or a user by name.
func (c *cli) ownerOf(ctx context.Context, svc *service.Service, installation bool, user string) (string, error) {
	if installation {
		return feed.Installation, nil
	}
	u, err := c.sendingUser(ctx, svc, user)
	return u.ID, err
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
	var q stats.Query
	var user string
	cmd := c.listCommand(listing{
		use:   "stats",
		short: "Print the results of mail, by day, or by provider, category, sender, template or tag",
		head:  "NAME\tACCEPTED\tDELIVERED\tFAILED\tBOUNCED\tDEFERRED\tCOMPLAINED\tUNSUBSCRIBED\tOPENED\tCLICKED",
		none:  "no mail of these days has one",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		who := c.operator()
		who.Everyone = user == ""
		if user != "" {
			u, err := svc.People.User(ctx, c.operator(), user)
			if err != nil {
				return orMissing(err, "user", user)
			}
			who.User = u.ID
		}
		found, err := svc.Stats.Of(ctx, who, q)
		if err != nil {
			return explain(err)
		}
		line := func(name string, n *client.Counts) {
			row(name, n.Accepted, n.Delivered, n.Failed, share(n.FailedReasons["mailbox_invalid"], n.Ended()), n.Events.Deferred,
				share(n.Events.Complained, n.Delivered), share(n.Events.Unsubscribed, n.Delivered),
				share(n.Events.Opened, n.Delivered), share(n.Events.Clicked, n.Delivered))
		}
		if q.By != "" && q.Name == "" {
			for i := range found.Groups {
				line(found.Groups[i].Name, &found.Groups[i].Counts)
			}
		} else {
			for i := range found.Days {
				if found.Days[i].Accepted > 0 {
					line(found.Days[i].Date, &found.Days[i].Counts)
				}
			}
			line("all", &found.Totals)
		}
		if found.MoreGroups {
			c.warn("There are more groups, which are not counted apart.")
		}
		return nil
	})
	cmd.Flags().StringVar(&q.By, "by", "", "provider, category, sender, template or tag (default: by UTC day)")
	cmd.Flags().StringVar(&q.Name, "name", "", "with --by: the days of this one")
	cmd.Flags().StringVar(&q.From, "from", "", "first day, like 2026-01-31 (default: 29 days before --to)")
	cmd.Flags().StringVar(&q.To, "to", "", "last day (default: today)")
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name (default: all users)")
	return cmd
}

// share is a share in percent. That of nothing is a dash, and null in JSON.
func share(part, whole int64) shown {
	if whole == 0 {
		return shown{"–", nil}
	}
	digits := strconv.FormatFloat(float64(part)*100/float64(whole), 'f', 2, 64)
	return shown{digits + " %", json.Number(digits)}
}
