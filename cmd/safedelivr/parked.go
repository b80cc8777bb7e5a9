package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) parkedCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "parked", Short: "Messages that were put aside, since nobody could handle them", Long: "Messages that were put aside, since nobody could handle them. A message only wakes a worker: the mail it is about\n" +
		"stands in the store, and the agenda finds it also where the message is discarded."}
	cmd.AddCommand(
		c.pages("list", "List them, oldest first where the broker can tell", "ID\tKEY\tAT\tWHY", func(ctx context.Context, svc *service.Service, p service.Page, row func(...any)) (string, error) {
			parked, err := svc.Parked(ctx, c.operator(), p)
			for _, m := range parked.Parked {
				row(m.ID, m.Key, timeOrDash(m.At), m.Why)
			}
			return parked.Next, err
		}),
		c.order("requeue ID", "parked message", "Publish one again", "", func(ctx context.Context, svc *service.Service, id, why string) error {
			changed, _, err := svc.Requeue(ctx, c.operator(), id, why, service.Repeat{})
			if err == nil {
				c.ordered(models.Requeued, id, changed)
			}
			return err
		}),
		c.order("discard ID", "parked message", "Drop one", "", func(ctx context.Context, svc *service.Service, id, why string) error {
			changed, err := svc.Discard(ctx, c.operator(), id, why)
			if err == nil {
				c.ordered(models.Discarded, id, changed)
			}
			return err
		}))
	return cmd
}
