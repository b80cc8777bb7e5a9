// Package retention removes old content and keeps the history of the providers.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	retentionPoll = time.Hour
	purgePage     = 100
	releasesKept  = 365 * 24 * time.Hour // how long releases of a batch stay in memory after its content
	duesKept      = 24 * time.Hour       // longer than the clocks of processes differ
)

// Config configures Retention.
type Config struct {
	Worker string
	settings.Times
	Logger *slog.Logger
}

// Store is the part of models.Store that the purge needs.
type Store interface {
	models.FeedStore
	models.DocumentStore
	Users(ctx context.Context) ([]models.User, error)
	Keys(ctx context.Context, user string) ([]models.Key, error)
	RemoveKey(ctx context.Context, user, key string) error
	Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error)
	Redact(ctx context.Context, batch models.ID) error
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	BatchIDs(ctx context.Context, user string, before models.ID, limit int) ([]models.ID, error)
	Purge(ctx context.Context, user string, batch models.ID) error
	DropSums(ctx context.Context, user string, t time.Time) error
	Commands(ctx context.Context, after, limit int) ([]models.Command, error)
	PutRules(ctx context.Context, number int, rules []byte) error
	DropCommands(ctx context.Context, upTo int) error
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	DropAddressIndexes(ctx context.Context, user string, t time.Time) error
	DropDues(ctx context.Context, user string, t time.Time) error
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Retention removes the content and the recipients of batches that were accepted more than
// KeepContent ago and whose mail waits for nothing any more. What happened to each log is
// kept without addresses until KeepLogs, and the sums of days for ever.
type Retention struct {
	cfg      Config
	log      *slog.Logger
	store    Store
	follower *control.Follower
}

// New returns Retention for the batches of a store.
func New(cfg Config, store Store, follower *control.Follower) *Retention {
	return &Retention{cfg: cfg, log: cfg.Logger, store: store, follower: follower}
}

// Run purges once an hour until ctx ends. One worker at a time does so.
func (r *Retention) Run(ctx context.Context) {
	runner := jobs.Runner{Store: r.store, Worker: r.cfg.Worker, Log: r.log}
	runner.Run(ctx, &jobs.Job{Lease: "retention", TTL: retentionPoll, Every: retentionPoll, AtStart: true, Keep: true,
		Doing: "remove old content", Due: r.forget, Round: r.Purge})
}

// forget removes commands about old mail from the memory of this worker. There is always something to purge.
func (r *Retention) forget(_ context.Context, now time.Time) (due bool, err error) {
	r.follower.Rules().Forget(now.Add(-r.cfg.KeepContent-releasesKept), models.MinID(r.purgeBefore(now)))
	return true, nil
}

// Purge removes the content and the recipients of all batches that were accepted more than
// KeepContent before now, and their address indexes. It removes everything but the sums of
// days about batches of days that ended KeepLogs before now, and older commands. It removes
// updates that were written more than KeepUpdates before now, records of soft bounces without
// one since KeepContent, and when mail was due. An error about one user does not stop the purge of the others.
func (r *Retention) Purge(ctx context.Context, now time.Time) error {
	users, err := r.store.Users(ctx)
	if err == nil {
		err = r.follower.Sync(ctx) // commands say when batches expire
	}
	if err != nil {
		return err
	}
	var failed []error
	for i := range users {
		n, err := r.purgeUser(ctx, users[i].ID, now)
		if n > 0 {
			r.log.Info("old content and recipients removed", "user_id", users[i].ID, "batches", n)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("user %s: %w", users[i].ID, err))
		}
		n, err = r.purgeLogs(ctx, users[i].ID, r.purgeBefore(now))
		if n > 0 {
			r.log.Info("old batches removed", "user_id", users[i].ID, "batches", n)
		}
		err = errors.Join(err, r.purgeKeys(ctx, users[i].ID, now.Add(-r.cfg.KeepLogs)),
			feed.Drop(ctx, r.store, users[i].ID, now.Add(-r.cfg.KeepUpdates)),
			softbounce.Drop(ctx, r.store, users[i].ID, now.Add(-r.cfg.KeepContent)),
			r.store.DropDues(ctx, users[i].ID, now.Add(-duesKept)))
		if err != nil {
			failed = append(failed, fmt.Errorf("user %s: %w", users[i].ID, err))
		}
	}
	if err := feed.Drop(ctx, r.store, feed.Installation, now.Add(-r.cfg.KeepUpdates)); err != nil {
		failed = append(failed, fmt.Errorf("feed of the installation: %w", err))
	}
	if err := r.compactCommands(ctx, now); err != nil {
		failed = append(failed, fmt.Errorf("command log: %w", err))
	}
	return errors.Join(failed...)
}

// purgeUser purges the batches of a user, from the newest that is old enough back to the
// one where the last complete run began. It returns how many it has purged.
func (r *Retention) purgeUser(ctx context.Context, user string, now time.Time) (n int, err error) {
	cutoff := now.Add(-r.cfg.KeepContent)
	done, err := telemetry.ContentRemoved(ctx, r.store, user) // by the last complete run
	if err != nil {
		return 0, err
	}
	if err := r.dropAddressIndexes(ctx, user, cutoff); err != nil {
		return 0, err
	}
	before := models.MinID(cutoff)
	first := models.ID{}
	var failed []error
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
				failed = append(failed, fmt.Errorf("batch %s: %w", b.ID, models.ErrDamaged))
				continue
			}
			if !r.follower.Rules().Scheduled(b).Ends().Add(r.cfg.FinalEvent).Before(now) {
				first = models.ID{} // it is unfinished: the next run comes back to it
				continue
			}
			if first.IsZero() {
				first = b.ID
			}
			if b.Redacted {
				continue
			}
			if err := r.redact(ctx, b); err != nil && !errors.Is(err, models.ErrNotFound) {
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
		failed = append(failed, telemetry.SetContentRemoved(ctx, r.store, user, first))
	}
	return n, errors.Join(failed...)
}

// redact removes the content and the recipients of a batch.
func (r *Retention) redact(ctx context.Context, b *models.Batch) error {
	for n := 0; b.ClientIDs && n < b.Chunks; n++ {
		rs, err := r.store.Recipients(ctx, b.ID.Chunk(n))
		if err == nil {
			err = clientid.Remember(ctx, r.store, b.ID.Chunk(n), rs)
		}
		if err != nil && !errors.Is(err, models.ErrNotFound) { // an earlier run has removed them
			return err
		}
	}
	return r.store.Redact(ctx, b.ID)
}

// dropAddressIndexes removes the address indexes of old hours.
func (r *Retention) dropAddressIndexes(ctx context.Context, user string, cutoff time.Time) error {
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
