package lists

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
)

const (
	publishPoll  = 500 * time.Millisecond
	publishLease = "suppressions_published"
	publishTTL   = 10 * time.Second
)

// RunPublishing publishes additions to suppression lists in the feeds, until ctx ends. One worker at a time does so. If
// two do, some additions are published twice.
func (r *Reader) RunPublishing(ctx context.Context) {
	runner := jobs.Runner{Store: r.Store, Worker: r.cfg.Worker, Log: r.log}
	runner.Run(ctx, &jobs.Job{Lease: publishLease, TTL: publishTTL, Every: publishPoll,
		Doing: "publish additions to suppression lists",
		Due:   func(ctx context.Context, _ time.Time) (bool, error) { return r.Suppressions.Unpublished(ctx) },
		Round: r.Suppressions.Publish})
}
