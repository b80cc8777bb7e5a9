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

// lock takes the migration lock. release is nil if another process has it. The lock is
// renewed until release is called, and ends by its TTL if this process dies. The
// returned context ends when the lock is lost.
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

// tableID returns a UUID made from a name.
func tableID(name string) string {
	h := sha256.Sum256([]byte("safedelivr " + name))
	h[6], h[8] = 0x80|h[6]&0x0f, 0x80|h[8]&0x3f // version 8: our own
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
