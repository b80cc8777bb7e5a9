package rabbit

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// within runs f, and returns when ctx ends if f has not returned by then: calls of
// the library know no context, and hang until the heartbeat fails where the peer
// does not answer. What f does later is for nobody, so that the caller reads
// nothing of f's when within returns an error.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return silent(ctx)
	}
}

func silent(ctx context.Context) error {
	return fmt.Errorf("%w: RabbitMQ does not answer: %w", models.ErrUnavailable, ctx.Err())
}

// openChannel opens a channel. One that comes after ctx has ended is closed.
func openChannel(ctx context.Context, conn *amqp.Connection) (*amqp.Channel, error) {
	type opened struct {
		ch  *amqp.Channel
		err error
	}
	taken := make(chan opened)
	go func() {
		ch, err := conn.Channel()
		select {
		case taken <- opened{ch, err}:
		case <-ctx.Done():
			if err == nil {
				_ = ch.Close()
			}
		}
	}()
	select {
	case o := <-taken:
		return o.ch, o.err
	case <-ctx.Done():
		return nil, silent(ctx)
	}
}

// channel runs f on a channel of its own on the consuming connection. It returns
// when ctx ends; without a deadline in ctx it waits for a connection for as long as
// Publish would. Where something is missing on the broker it is declared again, and
// f runs once more.
func (b *Broker) channel(ctx context.Context, f func(*amqp.Channel) error) error {
	conn, err := b.connected(ctx)
	if err != nil {
		return err
	}
	run := func() error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }()
		return f(ch)
	}
	if err = within(ctx, run); missing(err) && b.restorer.restore(ctx, b.consume) == nil {
		err = within(ctx, run)
	}
	return unavailable(err)
}

// connected returns the consuming connection as soon as there is one.
func (b *Broker) connected(ctx context.Context) (*amqp.Connection, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	return b.consume.wait(ctx)
}

// unavailable makes an error of the library one of the contract.
func unavailable(err error) error {
	for _, known := range []error{models.ErrNotFound, models.ErrUnavailable, models.ErrUnroutable, models.ErrClosed} {
		if errors.Is(err, known) {
			return err
		}
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: RabbitMQ: %w", models.ErrUnavailable, err)
}
