package lists

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
)

const (
	tellPoll     = 500 * time.Millisecond
	tellLease    = "suppressions_told"
	tellLeaseTTL = 10 * time.Second
)

// RunTelling tells the feeds what was added to the suppression lists, until ctx ends. One worker at a time does so; if
// two do, some additions are told twice.
func (r *Reader) RunTelling(ctx context.Context) {
	runner := jobs.Runner{Store: r.store, Worker: r.cfg.Worker, Log: r.log}
	runner.Run(ctx, &jobs.Job{Lease: tellLease, TTL: tellLeaseTTL, Every: tellPoll,
		Doing: "publish what was added to suppression lists",
		Due:   func(ctx context.Context, _ time.Time) (bool, error) { return r.suppressions.Untold(ctx) },
		Round: r.suppressions.Tell})
}
