package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
)

// statsCommand counts mail by day or by group.
func (c *cli) statsCommand() *cobra.Command {
	var q service.StatsQuery
	var user string
	cmd := c.listCommand(listing{
		use:   "stats",
		short: "What became of mail, by day, or by category, sender, template or tag",
		head:  "NAME\tACCEPTED\tDELIVERED\tFAILED\tBOUNCED\tDEFERRED\tCOMPLAINED\tUNSUBSCRIBED\tOPENED\tCLICKED",
		none:  "no mail of these days has one",
	}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
		who := c.operator()
		who.Everyone = user == ""
		if user != "" {
			u, err := svc.User(ctx, c.operator(), user)
			if err != nil {
				return orMissing(err, "user", user)
			}
			who.User = u.ID
		}
		stats, err := svc.Stats(ctx, who, q)
		if err != nil {
			return explain(err)
		}
		line := func(name string, n *service.Counts) {
			row(name, n.Accepted, n.Success, n.Failed, share(n.Bounced(), n.Ended()), n.Events.Deferred,
				share(n.Events.Complained, n.Success), share(n.Events.Unsubscribed, n.Success),
				share(n.Events.Opened, n.Success), share(n.Events.Clicked, n.Success))
		}
		for i := range stats.Groups {
			line(stats.Groups[i].Name, &stats.Groups[i].Counts)
		}
		if q.By == "" {
			for i := range stats.Days {
				if stats.Days[i].Accepted > 0 {
					line(stats.Days[i].Date, &stats.Days[i].Counts)
				}
			}
			line("all", &stats.Totals)
		}
		if stats.MoreGroups {
			row("(more groups, not counted apart)")
		}
		return nil
	})
	cmd.Flags().StringVar(&q.By, "by", "", "category, sender, template or tag (default: by UTC day)")
	cmd.Flags().StringVar(&q.From, "from", "", "first day, like 2026-01-31 (default: 29 days before --to)")
	cmd.Flags().StringVar(&q.To, "to", "", "last day (default: today)")
	cmd.Flags().StringVar(&user, "user", "", "only this user's, by name (default: all users)")
	return cmd
}

// share returns a share in percent, and a dash for a share of nothing.
func share(part, whole int64) string {
	if whole == 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(part)*100/float64(whole), 'f', 2, 64) + " %"
}
