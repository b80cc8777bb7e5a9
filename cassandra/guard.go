package cassandra

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// guardEvery is how often a process looks at the replication of its keyspace.
const guardEvery = 20 * time.Second

// guard withholds compare-and-sets while the keyspace is replicated so that another data centre could decide otherwise.
// Open refuses such a keyspace. The guard notices one that is altered while the process runs.
type guard struct {
	consistency, serial string
	read                func(context.Context) (replication, error)
	log                 *slog.Logger
	why                 atomic.Pointer[error] // nil: nothing is wrong
}

// look reads the replication and compares it with the consistency levels of this process. If it cannot be read, the
// newest one that was read counts.
func (g *guard) look(ctx context.Context) {
	rep, err := g.read(ctx)
	if err != nil {
		return
	}
	switch err, was := rep.serves(g.consistency, g.serial), g.why.Load(); {
	case err != nil:
		g.why.Store(&err)
		g.log.Error("the replication of the keyspace was altered: nothing is sent until it fits again", "err", err)
	case was != nil:
		g.why.Store(nil)
		g.log.Info("the replication of the keyspace fits again")
	}
}

// err returns why no compare-and-set may be made, or nil.
func (g *guard) err() error {
	if g == nil {
		return nil
	}
	if why := g.why.Load(); why != nil {
		// Wrapped, ErrInvalid would blame the caller.
		return fmt.Errorf("%w: the replication of the keyspace was altered: %s", models.ErrUnavailable, (*why).Error())
	}
	return nil
}

// watch looks now and then until a channel is closed.
func (g *guard) watch(ending <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	for range models.Every(ctx, guardEvery) {
		g.look(ctx)
	}
}
