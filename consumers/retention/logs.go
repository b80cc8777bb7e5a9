package retention

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// purgeBefore returns the day before which batches are purged. Whole days are purged, so
// that the sums of the others can be recounted.
func (r *Retention) purgeBefore(now time.Time) time.Time {
	return models.DayOf(now.Add(-r.cfg.KeepLogs))
}

// purgeLogs removes the batches of a user that were accepted before a day, and the sums
// below the days that had any. It returns how many batches it has removed. It skips batches
// whose content is still kept: the next run comes back to them.
func (r *Retention) purgeLogs(ctx context.Context, user string, day time.Time) (n int, err error) {
	marked := false
	var dropped time.Time
	for before := models.MinID(day); ; {
		page, err := r.store.BatchIDs(ctx, user, before, purgePage)
		if err != nil {
			return n, err
		}
		for _, id := range page {
			keep, err := r.keeps(ctx, id)
			if err != nil {
				return n, err
			}
			if keep {
				continue
			}
			if !marked { // from now on the sums of these days cannot be recounted
				if err := telemetry.SetLogsPurged(ctx, r.store, user, day); err != nil {
					return n, err
				}
				marked = true
			}
			if of := models.DayOf(id.Time()); !of.Equal(dropped) {
				if err := r.store.DropSums(ctx, user, of); err != nil {
					return n, err
				}
				dropped = of
			}
			if err := clientid.Forget(ctx, r.store, user, id); err != nil {
				return n, err
			}
			if err := r.store.Purge(ctx, user, id); err != nil {
				return n, err
			}
			n++
		}
		if len(page) < purgePage {
			return n, nil
		}
		before = page[len(page)-1]
	}
}

// keeps reports whether the content of a batch was not removed yet.
func (r *Retention) keeps(ctx context.Context, id models.ID) (bool, error) {
	b, err := r.store.Batch(ctx, id)
	switch {
	case errors.Is(err, models.ErrNotFound): // it is purged in part, or was abandoned
		return false, nil
	case errors.Is(err, models.ErrDamaged), errors.Is(err, models.ErrNewer):
		return true, nil
	}
	return !b.Redacted, err
}

// commandPage is the number of commands that are read at a time.
const commandPage = 500

// dropCommandsFrom is the smallest number of commands that are removed together.
const dropCommandsFrom = 100

// compactCommands stores the rules that the command log makes, and then removes the
// commands that are older than KeepLogs. A process that has not read them takes the rules.
func (r *Retention) compactCommands(ctx context.Context, now time.Time) error {
	limit, after, old, upTo := now.Add(-r.cfg.KeepLogs), 0, 0, 0
read:
	for {
		page, err := r.store.Commands(ctx, after, commandPage)
		if err != nil {
			return err
		}
		for i := range page {
			if !page[i].At.Before(limit) {
				break read
			}
			old, upTo = old+1, page[i].Number
		}
		if len(page) < commandPage {
			break
		}
		after = page[len(page)-1].Number
	}
	if old < dropCommandsFrom {
		return nil
	}
	if err := r.follower.Sync(ctx); err != nil {
		return err
	}
	number, rules, err := r.follower.Rules().Snapshot(models.MinID(r.purgeBefore(now)))
	if err != nil {
		return err
	}
	if err := r.store.PutRules(ctx, number, rules); err != nil {
		return err
	}
	return r.store.DropCommands(ctx, min(upTo, number-1))
}

// purgeKeys removes the keys of a user that were revoked or expired before a time.
func (r *Retention) purgeKeys(ctx context.Context, user string, before time.Time) error {
	keys, err := r.store.Keys(ctx, user)
	for i := 0; i < len(keys) && err == nil; i++ {
		k := &keys[i]
		if !k.Revoked.IsZero() && k.Revoked.Before(before) || !k.Expires.IsZero() && k.Expires.Before(before) {
			err = r.store.RemoveKey(ctx, user, k.ID)
		}
	}
	return err
}
