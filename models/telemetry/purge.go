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

// SetLogsPurged records that batches of a user that were accepted before a day are purged.
func SetLogsPurged(ctx context.Context, store interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
}, user string, day time.Time) error {
	raw, err := day.UTC().MarshalText()
	if err != nil {
		return err
	}
	return store.PutTransient(ctx, purgeKind, user, raw, purgeKept)
}
