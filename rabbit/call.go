package rabbit

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/safedelivr/safedelivr/models"
)

// within runs f and returns when f returns or ctx ends. Calls of the library take no context. If the peer does not
// answer, they hang until the heartbeat fails. f may go on after within returned an error, so then the caller must not
// read what f writes.
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

// silent returns the error for a peer that did not answer before ctx ended.
func silent(ctx context.Context) error {
	return fmt.Errorf("%w: RabbitMQ does not answer: %w", models.ErrUnavailable, ctx.Err())
}

// openChannel opens a channel. A channel that opens after ctx has ended is closed.
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

// channel runs f on a new channel of the consuming connection. It returns when ctx
// ends. Without a deadline in ctx it waits for a connection for as long as Publish
// would. If something is missing on RabbitMQ, it declares everything again and runs
// f once more.
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
	if err := b.subs.Open(); err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, publishWait)
		defer cancel()
	}
	return b.consume.wait(ctx)
}

// unavailable turns an error of the library into one of the contract.
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
