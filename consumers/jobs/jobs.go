// Package jobs runs work that one worker does for all of them, again and again.
//
// Workers agree by a lease in the store. The worker that holds it does the next round, and keeps it. If that worker
// stops, it gives the lease back, and another one goes on at once. If it is killed, the lease ends by itself. Two
// workers may do a round at the same time if a clock or the store is wrong, so each round must be safe to repeat.
package jobs

import (
	"context"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A Store has the leases.
type Store interface {
	// Lease is that of models.Store.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error)
}

// Runner runs jobs for a worker.
type Runner struct {
	Store  Store
	Worker string
	Log    *slog.Logger
}

// Job is work for one worker at a time.
type Job struct {
	Lease   string        // its name
	TTL     time.Duration // of the lease; not less than Every
	Every   time.Duration // between rounds
	AtStart bool          // the first round is at once
	Keep    bool          // a worker that stops keeps the lease, so that no other repeats its round
	Doing   string        // what a failed round cannot do, for the log

	// Due reports whether there is work; nil: always. Without work the job takes no lease. Each worker calls it.
	Due func(ctx context.Context, now time.Time) (bool, error)
	// Round does the work. Another round follows an error.
	Round func(ctx context.Context, now time.Time) error
	// Idle is called in place of a round while another worker holds the lease; it may be nil.
	Idle func()
}

// releaseTime is how long the store may take to give back a lease.
const releaseTime = 2 * time.Second

// Run runs the rounds of a job until ctx ends.
func (r *Runner) Run(ctx context.Context, j *Job) {
	held := false
	defer func() {
		if held && !j.Keep {
			r.release(ctx, j)
		}
	}()
	round := func(now time.Time) {
		var err error
		if held, err = r.Once(ctx, j, now); err != nil && ctx.Err() == nil {
			r.Log.Warn("cannot "+j.Doing+"; will retry", "err", err)
		}
	}
	if j.AtStart {
		round(time.Now())
	}
	for now := range models.Every(ctx, j.Every) {
		round(now)
	}
}

// Once does a round if there is work and this worker gets the lease. It keeps the lease, and reports whether it has it.
func (r *Runner) Once(ctx context.Context, j *Job, now time.Time) (held bool, err error) {
	if j.Due != nil {
		if due, err := j.Due(ctx, now); err != nil || !due {
			return false, err
		}
	}
	switch held, err = r.Store.Lease(ctx, j.Lease, r.Worker, j.TTL); {
	case err != nil:
		return false, err
	case held:
		return true, j.Round(ctx, now)
	case j.Idle != nil:
		j.Idle()
	}
	return false, nil
}

// release gives the lease of a job back, so that another worker can go on at once. If that fails, the lease ends by
// itself.
func (r *Runner) release(ctx context.Context, j *Job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	_, _ = r.Store.Lease(ctx, j.Lease, r.Worker, 0)
}
