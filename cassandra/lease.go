package cassandra

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// errLockLost is the cause of the end of a context whose lock was lost.
var errLockLost = errors.New("the migration lock was lost")

// lock takes the migration lock. release is nil if another process has it. The lock is renewed until release is called,
// and ends by its TTL if this process dies. The returned context ends when the lock is lost.
func (m *migrator) lock(ctx context.Context) (_ context.Context, release func(), err error) {
	const name = "migrate"
	holder := models.NewUserID()
	ttl := m.config.lockTTL
	held, err := lease(ctx, &m.runner, leaseID{"schema_lock", name, holder}, ttl)
	if err != nil || !held {
		return ctx, nil, err
	}
	work, lost := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		ticks := time.NewTicker(max(ttl/3, 10*time.Millisecond))
		defer ticks.Stop()
		until := time.Now().Add(ttl)
		for {
			select {
			case <-work.Done():
				return
			case <-ticks.C:
			}
			begun := time.Now()
			held, err := lease(work, &m.runner, leaseID{"schema_lock", name, holder}, ttl)
			switch {
			case err == nil && held:
				until = begun.Add(ttl)
			case err == nil || time.Now().After(until):
				lost(errLockLost)
				return
			}
		}
	}()
	return work, func() {
		lost(nil)
		<-renewed
		give, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timeout)
		defer cancel()
		if _, err := lease(give, &m.runner, leaseID{"schema_lock", name, holder}, 0); err != nil {
			m.config.Logger.Warn("cannot release the migration lock; it will end by itself", "error", err)
		}
	}, nil
}

// leaseID names a lease, the table that it is in, and who wants it.
type leaseID struct{ table, name, holder string }

// lease takes, renews or gives up a lease in a table. The servers' clocks end it, in whole seconds: never before ttl,
// and up to two seconds later. It may be repeated after a time-out: if the first try was applied, the repeat renews the
// lease.
func lease(ctx context.Context, r *runner, id leaseID, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		_, _, err := r.cas(ctx, plain, `DELETE holder FROM `+id.table+` WHERE name = ? IF holder = ?`, id.name, id.holder)
		return false, err
	}
	for {
		held, row, err := r.cas(ctx, plain, `UPDATE `+id.table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = ?`,
			seconds(ttl), id.holder, id.name, id.holder)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" {
			return false, nil
		}
		held, row, err = r.cas(ctx, plain, `UPDATE `+id.table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = null`,
			seconds(ttl), id.holder, id.name)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" && other != id.holder {
			return false, nil
		}
		// An earlier try whose answer was lost took it, or it has just ended.
	}
}

// tableID returns a UUID made from a name.
func tableID(name string) string {
	h := sha256.Sum256([]byte("safedelivr " + name))
	h[6], h[8] = 0x80|h[6]&0x0f, 0x80|h[8]&0x3f // version 8: our own
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
