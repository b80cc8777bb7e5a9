package quota

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Trial says what Take would answer, and changes nothing. What it was asked for counts at the next question. It reads
// once how much of each limit is used.
type Trial struct {
	guard *Guard
	parts map[string]*part // by key
}

// part is a part of a limit that an amount is taken from: that of an hour or a day, or all of it.
type part struct {
	used  int64         // also by the Trial
	asked int64         // of the Trial
	after time.Duration // from when it was read until more may be used
}

// NewTrial returns a Trial.
func (g *Guard) NewTrial() *Trial { return &Trial{guard: g, parts: map[string]*part{}} }

// Take returns the error with which the amounts would be refused. Errors: an *Exceeded, those of the store.
func (t *Trial) Take(ctx context.Context, subjects []Subject, amounts []Amount) error {
	now := time.Now()
	taken := map[*part]int64{}
	for _, s := range subjects {
		for _, a := range amounts {
			limit := s.Limits[a.Limit]
			if limit == 0 {
				continue
			}
			p, err := t.part(ctx, s, a, now)
			if err != nil {
				return err
			}
			taken[p] += a.N
			switch {
			case p.asked+taken[p] > limit:
				return exceeded(s, a.Limit, 0)
			case p.used+taken[p] > limit:
				return exceeded(s, a.Limit, p.after)
			}
		}
	}
	for p, n := range taken {
		p.used += n
		p.asked += n
	}
	return nil
}

// part returns the part of a limit that an amount is taken from.
func (t *Trial) part(ctx context.Context, s Subject, a Amount, now time.Time) (*part, error) {
	at, kept := models.LaterOf(now, a.At), keptOf(a.Limit) != nil
	key := keyOf(s, a.Limit, at)
	if kept {
		key = s.ID + " " + string(a.Limit)
	}
	if p := t.parts[key]; p != nil {
		return p, nil
	}
	var p part
	var err error
	if kept {
		p.after = storedRetry
		p.used, err = t.guard.Stored(ctx, s, a.Limit)
	} else {
		p.after = t.guard.window(s, a.Limit, at).ends().Sub(now)
		p.used, err = t.guard.claimed(ctx, s, a.Limit, at)
	}
	if err == nil {
		t.parts[key] = &p
	}
	return &p, err
}
