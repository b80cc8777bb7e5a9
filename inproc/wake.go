package inproc

import (
	"context"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// Wake implements models.Broker.
func (b *Broker) Wake(ctx context.Context, users ...string) error {
	if err := models.ValidateWake(users); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: wake: %w", models.ErrUnavailable, err)
	}
	if err := b.subs.Open(); err != nil {
		return err
	}
	b.subs.Wake(0, users)
	return nil
}

// SubscribeWakes implements models.Broker.
func (b *Broker) SubscribeWakes(ctx context.Context, h func(users []string)) error {
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	b.subs.ServeWakes(ctx, 0, h)
	return nil
}
