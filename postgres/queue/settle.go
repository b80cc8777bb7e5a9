package queue

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	gather   = 2 * time.Millisecond // how long results wait for others
	maxFlush = 2000                 // results in one statement
)

// send runs a batch in one round trip and one transaction. Its commit does not wait for the disk: if the server
// crashes, messages that were taken or finished within the last moments are delivered again.
func (b *Broker) send(add func(batch *pgx.Batch)) error {
	batch := &pgx.Batch{}
	batch.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	if add(batch); batch.Len() == 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), callWait)
	defer cancel()
	return b.pool.SendBatch(ctx, batch).Close()
}

// flushSoon makes settle flush.
func (b *Broker) flushSoon() {
	select {
	case b.pending <- struct{}{}:
	default:
	}
}

// settle stores results and renews leases until the broker is closed. One goroutine does both, so that the
// statements of a process never wait for each other.
func (b *Broker) settle() {
	pause, due := newPause(), time.NewTicker(b.config.lease/3)
	defer due.Stop()
	for {
		select {
		case <-b.pending:
			time.Sleep(gather)
			if _, err := b.flush(); err != nil {
				b.log.Warn("results of messages cannot be stored now", "err", err)
				time.AfterFunc(pause.NextBackOff(), b.flushSoon)
				continue
			}
			pause.Reset()
		case <-due.C:
			if err := b.renew(); err != nil {
				b.log.Warn("leases of messages cannot be renewed now", "err", err)
			}
		case <-b.drain:
			for end := time.Now().Add(callWait); time.Now().Before(end); {
				if more, err := b.flush(); err != nil {
					time.Sleep(pause.NextBackOff())
				} else if !more {
					return
				}
			}
			return
		}
	}
}

// flush stores results and notifies other processes. It reports whether more results wait.
func (b *Broker) flush() (more bool, err error) {
	b.mu.Lock()
	results := slices.Clone(b.results[:min(len(b.results), maxFlush)])
	notify := maps.Clone(b.kicks)
	b.mu.Unlock()
	back := map[string]bool{} // queues to which messages go back
	for _, d := range results {
		if !d.Done && d.Why == nil {
			back[d.queue], notify[d.queue] = true, true
		}
	}
	raw, err := json.Marshal(results)
	if err != nil {
		return false, err
	}
	payload := b.name + " " + strings.Join(slices.Collect(maps.Keys(notify)), " ")
	if len(payload) > maxPayload {
		payload = b.name // all queues
	}
	err = b.send(func(batch *pgx.Batch) {
		if len(results) > 0 {
			batch.Queue(b.in(`WITH f AS (SELECT * FROM json_to_recordset($1::json)
					AS f(id bigint, n integer, panics integer, lost integer, done boolean, wait bigint, why text)),
				done AS (DELETE FROM $.queue_message m USING f
					WHERE f.done AND m.id = f.id AND m.deliveries = f.n AND m.taken_by IS NOT NULL)
				UPDATE $.queue_message m SET taken_until = NULL, taken_by = NULL, panics = f.panics, lost = f.lost,
					due = coalesce(now() + f.wait * interval '1 microsecond', m.due),
					queued_at = coalesce(now() + f.wait * interval '1 microsecond', m.queued_at),
					parked_at = CASE WHEN f.why IS NOT NULL THEN now() END, parked_why = f.why
				FROM f WHERE NOT f.done AND m.id = f.id AND m.deliveries = f.n AND m.taken_by IS NOT NULL`), string(raw))
		}
		if len(notify) > 0 {
			batch.Queue(`SELECT pg_notify($1, $2)`, b.config.Schema+queueChannel, payload)
		}
	})
	if err != nil {
		return true, err
	}
	b.mu.Lock()
	for _, d := range results {
		delete(b.held, d.lease)
	}
	b.results = slices.Delete(b.results, 0, len(results))
	if more = len(b.results) > 0; more {
		b.flushSoon()
	}
	maps.DeleteFunc(b.kicks, func(q string, _ bool) bool { return notify[q] })
	b.mu.Unlock()
	if len(back) > 0 {
		b.kick(false, slices.Collect(maps.Keys(back))...)
	}
	return more, nil
}

// renew renews the leases of all messages that this process holds, by one statement.
func (b *Broker) renew() error {
	b.mu.Lock()
	held := slices.Collect(maps.Keys(b.held))
	b.mu.Unlock()
	raw, err := json.Marshal(held)
	if err != nil || len(held) == 0 {
		return err
	}
	return b.send(func(batch *pgx.Batch) {
		batch.Queue(b.in(`UPDATE $.queue_message m SET taken_until = now() + $2::bigint * interval '1 microsecond'
			FROM json_to_recordset($1::json) AS f(id bigint, n integer)
			WHERE m.id = f.id AND m.deliveries = f.n AND m.taken_by IS NOT NULL`), string(raw), micros(b.config.lease))
	})
}
