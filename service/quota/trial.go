package quota

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Trial says what Take would answer, and changes nothing. What it was asked for counts at the next question.
type Trial struct {
	guard *Guard
	taken map[string]int64
}

// NewTrial returns a Trial.
func (g *Guard) NewTrial() *Trial { return &Trial{guard: g, taken: map[string]int64{}} }

// Take returns the error with which the amounts would be refused. Errors: an *Exceeded, those of the store.
func (t *Trial) Take(ctx context.Context, subjects []Subject, amounts []Amount) error {
	now := time.Now()
	taken := map[string]int64{}
	for _, s := range subjects {
		for _, a := range amounts {
			limit := s.Limits[a.Limit]
			switch {
			case limit == 0:
				continue
			case a.N > limit:
				return exceeded(s, a.Limit, 0)
			}
			key, used, after, err := t.used(ctx, s, a, now)
			if err != nil {
				return err
			}
			if used+t.taken[key]+a.N > limit {
				return exceeded(s, a.Limit, after)
			}
			taken[key] += a.N
		}
	}
	for key, n := range taken {
		t.taken[key] += n
	}
	return nil
}

// used returns how much of a limit is used, and when more may be. key names the part of the limit that an amount is
// taken from.
func (t *Trial) used(
	ctx context.Context, s Subject, a Amount, now time.Time,
) (key string, used int64, after time.Duration, err error) {
	if keptOf(a.Limit) != nil {
		used, err = t.guard.Stored(ctx, s, a.Limit)
		return s.ID + " " + string(a.Limit), used, storedRetry, err
	}
	at := models.LaterOf(now, a.At)
	used, err = t.guard.claimed(ctx, s, a.Limit, at)
	return keyOf(s, a.Limit, at), used, t.guard.window(s, a.Limit, at).ends().Sub(now), err
}
