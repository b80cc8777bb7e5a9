package cassandra

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// errLockLost ends the work of who no longer holds the lock.
var errLockLost = errors.New("the lock of migrations was lost")

// lock takes the lock of migrations; release is nil when somebody else has it.
// It is renewed until release is called, and ends by itself when its holder
// dies. The context it returns ends when the lock is lost.
func (m *migrator) lock(ctx context.Context) (_ context.Context, release func(), err error) {
	const name = "migrate"
	holder := models.NewUserID()
	ttl := m.config.lockTTL
	held, err := lease(ctx, &m.runner, "schema_lock", name, holder, ttl)
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
			held, err := lease(work, &m.runner, "schema_lock", name, holder, ttl)
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
		if _, err := lease(give, &m.runner, "schema_lock", name, holder, 0); err != nil {
			m.config.Logger.Warn("the lock of migrations was not given up and ends by itself", "error", err)
		}
	}, nil
}

// tableID is a UUID that follows from a name.
func tableID(name string) string {
	h := sha256.Sum256([]byte("safedelivr " + name))
	h[6], h[8] = 0x80|h[6]&0x0f, 0x80|h[8]&0x3f // version 8: our own
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
