package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	purgeKind = "logs-purged"
	purgeKept = 5 * 365 * 24 * time.Hour

	contentKind = "purged"
	contentKept = 2 * 365 * 24 * time.Hour
)

// transients is the part of models.Store that keeps marks.
type transients interface {
	Transient(ctx context.Context, kind, name string) ([]byte, error)
}

// LogsPurged returns the day before which batches of a user are purged; zero: none are. The
// sums of earlier days cannot be recounted.
func LogsPurged(ctx context.Context, store transients, user string) (day time.Time, err error) {
	raw, err := store.Transient(ctx, purgeKind, user)
	if errors.Is(err, models.ErrNotFound) {
		return day, nil
	}
	if err == nil {
		err = day.UnmarshalText(raw)
	}
	return day, err
}

// ContentRemoved returns the newest batch of a user such that it and all older ones have no content any more; zero:
// there is none.
func ContentRemoved(ctx context.Context, store transients, user string) (id models.ID, err error) {
	raw, err := store.Transient(ctx, contentKind, user)
	if errors.Is(err, models.ErrNotFound) {
		return id, nil
	}
	if err == nil && len(raw) == len(id) {
		id = models.ID(raw)
	}
	return id, err
}

// SetContentRemoved records what ContentRemoved returns.
func SetContentRemoved(ctx context.Context, store transientWriter, user string, id models.ID) error {
	return store.PutTransient(ctx, contentKind, user, id[:], contentKept)
}

// transientWriter is the part of models.Store that writes marks.
type transientWriter interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
}

// SetLogsPurged records that batches of a user that were accepted before a day are purged.
func SetLogsPurged(ctx context.Context, store transientWriter, user string, day time.Time) error {
	raw, err := day.UTC().MarshalText()
	if err != nil {
		return err
	}
	return store.PutTransient(ctx, purgeKind, user, raw, purgeKept)
}
