// Package retention removes content when its time is over and keeps the history of the
// providers.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Retention: content and recipients are kept for a set time after acceptance.
// Then they are removed: recipients first, so that nothing half-removed can be
// sent again. What happened to each log stays, without addresses.

const (
	retentionPoll = time.Hour
	purgedKind    = "purged"
	purgedKept    = 2 * 365 * 24 * time.Hour
	purgePage     = 100
	ordersKept    = 365 * 24 * time.Hour // in memory, after the time of the content
)

// Config says how long things are kept.
type Config struct {
	Worker         string
	KeepContent    time.Duration // content and recipients, after acceptance
	FinalEventWait time.Duration // how long accepted mail waits for a final event
	Logger         *slog.Logger
}

// Store is the part of models.Store that the purge needs.
type Store interface {
	Users(ctx context.Context) ([]models.User, error)
	Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error)
	Redact(ctx context.Context, batch models.ID) error
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	DropAddressIndexes(ctx context.Context, user string, t time.Time) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Retention removes content and recipients when their time is over.
type Retention struct {
	cfg      Config
	log      *slog.Logger
	store    Store
	follower *control.Follower
}

// New returns a retention that is not running.
func New(cfg Config, store Store, follower *control.Follower) *Retention {
	return &Retention{cfg: cfg, log: cfg.Logger, store: store, follower: follower}
}

// Run removes what has outlived its time, once an hour, until ctx ends. One
// worker does it.
func (r *Retention) Run(ctx context.Context) {
	t := time.NewTicker(retentionPoll)
	defer t.Stop()
	for {
		r.follower.Rules().Forget(time.Now().Add(-r.cfg.KeepContent - ordersKept))
		held, err := r.store.Lease(ctx, "retention", r.cfg.Worker, retentionPoll)
		if err == nil && held {
			err = r.Purge(ctx, time.Now())
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("old content could not be removed yet", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Purge removes content and recipients of all batches that were accepted more
// than KeepContent before now, and the fingerprints of their addresses. What is
// wrong with one user's does not keep the others'.
func (r *Retention) Purge(ctx context.Context, now time.Time) error {
	users, err := r.store.Users(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for i := range users {
		n, err := r.purgeUser(ctx, users[i].ID, now)
		if n > 0 {
			r.log.Info("content and recipients removed after their time", "user_id", users[i].ID, "batches", n)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("user %s: %w", users[i].ID, err))
		}
	}
	return errors.Join(failed...)
}

// purgeUser goes from the newest batch that is old enough back to where the last
// run that came to its end began, or to the first before which nothing was left.
func (r *Retention) purgeUser(ctx context.Context, user string, now time.Time) (n int, err error) {
	cutoff := now.Add(-r.cfg.KeepContent)
	var done models.ID
	raw, err := r.store.Transient(ctx, purgedKind, user)
	switch {
	case err == nil && len(raw) == len(done):
		done = models.ID(raw)
	case err != nil && !errors.Is(err, models.ErrNotFound):
		return 0, err
	}
	if err := r.dropPrints(ctx, user, cutoff); err != nil {
		return 0, err
	}
	before := models.MinID(cutoff)
	first := models.ID{}
	var unread []error
	for {
		page, err := r.store.Batches(ctx, user, before, purgePage)
		if err != nil {
			return n, err
		}
		end := len(page) < purgePage
		for i := range page {
			b := &page[i]
			if b.ID == done {
				end = true
				break
			}
			if b.Damaged {
				first = models.ID{}
				unread = append(unread, fmt.Errorf("batch %s: %w", b.ID, models.ErrDamaged))
				continue
			}
			if !b.Deadline.Add(r.cfg.FinalEventWait).Before(now) {
				first = models.ID{} // the next run comes back to it
				continue            // something may still happen to it
			}
			if first.IsZero() {
				first = b.ID
			}
			if b.Redacted {
				continue
			}
			if err := r.store.Redact(ctx, b.ID); err != nil && !errors.Is(err, models.ErrNotFound) {
				return n, err
			}
			n++
		}
		if end {
			break
		}
		before = page[len(page)-1].ID
	}
	if !first.IsZero() {
		unread = append(unread, r.store.PutTransient(ctx, purgedKind, user, first[:], purgedKept))
	}
	return n, errors.Join(unread...)
}

// dropPrints removes the fingerprints of old hours, also where a batch of theirs
// cannot be read.
func (r *Retention) dropPrints(ctx context.Context, user string, cutoff time.Time) error {
	for {
		hours, err := r.store.AddressIndexHours(ctx, user, cutoff.Add(-time.Hour), purgePage)
		if err != nil {
			return err
		}
		for _, h := range hours {
			if err := r.store.DropAddressIndexes(ctx, user, h); err != nil {
				return err
			}
		}
		if len(hours) < purgePage {
			return nil
		}
	}
}
