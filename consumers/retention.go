package consumers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
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

// retain removes what has outlived its time, once an hour, until ctx ends. One
// worker does it.
func (e *Engine) retain(ctx context.Context) {
	t := time.NewTicker(retentionPoll)
	defer t.Stop()
	for {
		e.journal.Rules().Forget(time.Now().Add(-e.cfg.KeepContent - ordersKept))
		held, err := e.store.Lease(ctx, "retention", e.cfg.Worker, retentionPoll)
		if err == nil && held {
			err = e.Purge(ctx, time.Now())
		}
		if err != nil && ctx.Err() == nil {
			e.log.Warn("old content could not be removed yet", "err", err)
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
func (e *Engine) Purge(ctx context.Context, now time.Time) error {
	users, err := e.store.Users(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for i := range users {
		n, err := e.purgeUser(ctx, users[i].ID, now)
		if n > 0 {
			e.log.Info("content and recipients removed after their time", "user_id", users[i].ID, "batches", n)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("user %s: %w", users[i].ID, err))
		}
	}
	return errors.Join(failed...)
}

// purgeUser goes from the newest batch that is old enough back to where the last
// run that came to its end began, or to the first before which nothing was left.
func (e *Engine) purgeUser(ctx context.Context, user string, now time.Time) (n int, err error) {
	cutoff := now.Add(-e.cfg.KeepContent)
	var done models.ID
	raw, err := e.store.Transient(ctx, purgedKind, user)
	switch {
	case err == nil && len(raw) == len(done):
		done = models.ID(raw)
	case err != nil && !isNotFound(err):
		return 0, err
	}
	if err := e.dropPrints(ctx, user, cutoff); err != nil {
		return 0, err
	}
	before := models.MinID(cutoff)
	first := models.ID{}
	var unread []error
	for {
		page, err := e.store.Batches(ctx, user, before, purgePage)
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
			if !b.Deadline.Add(e.cfg.FinalEventWait).Before(now) {
				first = models.ID{} // the next run comes back to it
				continue            // something may still happen to it
			}
			if first.IsZero() {
				first = b.ID
			}
			if b.Redacted {
				continue
			}
			if err := e.store.Redact(ctx, b.ID); err != nil && !isNotFound(err) {
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
		unread = append(unread, e.store.PutTransient(ctx, purgedKind, user, first[:], purgedKept))
	}
	return n, errors.Join(unread...)
}

// dropPrints removes the fingerprints of old hours, also where a batch of theirs
// cannot be read.
func (e *Engine) dropPrints(ctx context.Context, user string, cutoff time.Time) error {
	for {
		hours, err := e.store.AddressIndexHours(ctx, user, cutoff.Add(-time.Hour), purgePage)
		if err != nil {
			return err
		}
		for _, h := range hours {
			if err := e.store.DropAddressIndexes(ctx, user, h); err != nil {
				return err
			}
		}
		if len(hours) < purgePage {
			return nil
		}
	}
}

// print keeps the fingerprints of a chunk's addresses, by which mail to one of
// them is found. It costs nothing but that when it fails.
func (e *Engine) print(c *chunk) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(e.hard, e.cfg.StartBy)
		defer cancel()
		if err := e.store.PutAddressIndex(ctx, c.batch.User, models.NewAddressIndex(c.id, c.recipients)); err != nil {
			e.log.Warn("a chunk cannot be found by address", "chunk", c.id.String(), "err", err)
		}
	}()
	return func() { <-done }
}
