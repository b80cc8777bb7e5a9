package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// maxPayload bounds a notification, in bytes. PostgreSQL takes up to 8,000.
const maxPayload = 7500

// Publish implements models.Broker.
func (b *Broker) Publish(ctx context.Context, ms ...models.Message) error {
	var queues, bodies []string
	var waits []int64
	now := time.Now()
	for _, m := range ms {
		if err := m.Validate(); err != nil {
			return err
		}
		q := models.Queue{Kind: m.Kind, Provider: m.Provider, Lane: m.Lane}
		if !slices.Contains(b.known, q.Name()) {
			continue
		}
		m.Stamp(now)
		body, err := json.Marshal(form{messageVersion, m})
		if err != nil {
			return fmt.Errorf("%w: message: %w", models.ErrInvalid, err)
		}
		queues, bodies = append(queues, q.Name()), append(bodies, string(body))
		waits = append(waits, micros(max(0, m.NotBefore.Sub(now))))
	}
	if err := b.subs.Open(); err != nil {
		return err
	}
	if len(queues) > 0 {
		err := b.exec(ctx, "publish", `INSERT INTO $.queue_message (queue, due, body)
			SELECT q, now() + w * interval '1 microsecond', b
			FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS u(q, w, b, n) ORDER BY n`,
			queues, waits, bodies)
		if err != nil {
			return err
		}
		b.kick(true, queues...)
	}
	if left := len(ms) - len(queues); left > 0 {
		return fmt.Errorf("%w: %d of %d", models.ErrUnroutable, left, len(ms))
	}
	return nil
}

// serverTime is the time of the server in Unix microseconds.
const serverTime = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// Wake implements models.Broker. A wake of many users is more than one notification.
func (b *Broker) Wake(ctx context.Context, users ...string) error {
	if err := models.ValidateWake(users); err != nil {
		return err
	}
	var payloads []string
	for i, u := range users {
		raw, err := json.Marshal(u)
		if err != nil || len(raw) > maxPayload {
			return fmt.Errorf("%w: a wake of a user of %d bytes", models.ErrInvalid, len(u))
		}
		if last := len(payloads) - 1; i > 0 && len(payloads[last])+len(raw) < maxPayload {
			payloads[last] += "," + string(raw)
			continue
		}
		payloads = append(payloads, string(raw))
	}
	return b.exec(ctx, "wake", `SELECT pg_notify($1, `+serverTime+` || ' ' || p) FROM unnest($2::text[]) AS p`,
		b.config.Schema+wakeChannel, payloads)
}

// SubscribeWakes implements models.Broker. It asks for the server's time, so that it handles no earlier wake.
func (b *Broker) SubscribeWakes(ctx context.Context, h func(users []string)) error {
	ctx, leave, err := b.subs.Join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	var since int64
	ask := func(ctx context.Context) error { return b.pool.QueryRow(ctx, "SELECT "+serverTime).Scan(&since) }
	for pause := newPause(); ctx.Err() == nil && b.call(ctx, "time", true, ask) != nil; {
		sleep(ctx, pause.NextBackOff())
	}
	b.subs.ServeWakes(ctx, since, h)
	return nil
}

// kick makes subscriptions to the given queues, or to all without one, fetch messages. With others it also notifies
// other processes.
func (b *Broker) kick(others bool, queues ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.running {
		if len(queues) == 0 || slices.Contains(queues, s.queue) {
			s.signal()
		}
	}
	for _, q := range queues {
		if others {
			b.kicks[q] = true
			b.flushSoon()
		}
	}
}
