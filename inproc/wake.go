package inproc

import (
	"context"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// maxWakes bounds the wakes that a subscriber has not handled.
const maxWakes = 100

// Wake implements models.Broker.
func (b *Broker) Wake(ctx context.Context, users ...string) error {
	if err := models.ValidateWake(users); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: wake: %w", models.ErrUnavailable, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return models.ErrClosed
	}
	for c := range b.wakes {
		select {
		case c <- slices.Clone(users):
		default:
		}
	}
	return nil
}

// SubscribeWakes implements models.Broker.
func (b *Broker) SubscribeWakes(ctx context.Context, h func(users []string)) error {
	ctx, leave, err := b.join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	c := make(chan []string, maxWakes)
	b.mu.Lock()
	b.wakes[c] = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.wakes, c)
	}()
	for {
		select {
		case users := <-c:
			h(users)
		case <-ctx.Done():
			return nil
		}
	}
}
