package lists

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	tellPoll     = 500 * time.Millisecond
	tellLease    = "suppressions_told"
	tellLeaseTTL = 10 * time.Second
)

// RunTelling tells the feeds what was added to the suppression lists, until ctx ends. One worker at a time does so; if
// two do, some additions are told twice.
func (r *Reader) RunTelling(ctx context.Context) {
	held := false
	defer func() {
		if held { // another worker goes on at once
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_, _ = r.store.Lease(ctx, tellLease, r.cfg.Worker, 0) // it ends anyway
		}
	}()
	for now := range models.Every(ctx, tellPoll) {
		waits, err := r.suppressions.Untold(ctx)
		if err == nil && waits {
			held, err = r.store.Lease(ctx, tellLease, r.cfg.Worker, tellLeaseTTL)
			if err == nil && held {
				err = r.suppressions.Tell(ctx, now)
			}
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("cannot tell what was added to suppression lists; will retry", "err", err)
		}
	}
}
