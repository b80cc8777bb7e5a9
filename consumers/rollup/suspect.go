package rollup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	// maxSuspects is how many suspects a round stores.
	maxSuspects = 50
	// settleRounds is how long a sum may differ from its recount before it is reported.
	settleRounds = time.Minute
)

// suspect is a sum that differed from its recount. While mail flows, sums lag behind what
// they are made of, so a suspect is reported only if it lasts while nothing changes.
type suspect struct {
	Difference
	Since    time.Time `json:"since"`              // when the sum or its recount changed last
	Renewed  bool      `json:"renewed,omitempty"`  // it was out of date, and renewed
	Reported bool      `json:"reported,omitempty"` // it was reported
}

// outdated reports whether a sum is older than its parts, as if a worker was killed before it renewed the sum.
func (d *Difference) outdated() bool {
	return d.Damaged == "" && (d.What == "chunk" || models.Level(d.What).Length() > 0) &&
		d.Shown.FullVersion() < d.Counted.FullVersion()
}

// changed reports whether the sum or its recount has changed between s and d.
func (s *suspect) changed(d *Difference) bool {
	return s.Counted.FullVersion() != d.Counted.FullVersion() || s.Shown.FullVersion() != d.Shown.FullVersion()
}

// lasts reports whether the sum should be right by now.
func (s *suspect) lasts(now time.Time) bool {
	return s.Damaged != "" || now.Sub(s.Since) >= settleRounds
}

// lasting returns how many suspects were reported.
func (w *Round) lasting() (n int) {
	for i := range w.Suspects {
		if w.Suspects[i].Reported {
			n++
		}
	}
	return n
}

// judge makes the differences of a round its suspects, and reports those that last. It returns those to renew first:
// sums that last and are out of date.
func (s *Rollup) judge(w *Round, differences []Difference, now time.Time) (outdated []Difference) {
	old := w.Suspects
	w.Suspects = nil
	seen := map[string]bool{}
	for i := range differences {
		d := &differences[i]
		key := d.What + " " + d.User + " " + d.ID
		if seen[key] || len(w.Suspects) == maxSuspects {
			continue
		}
		seen[key] = true
		found := suspect{Difference: *d, Since: now.UTC()}
		k := slices.IndexFunc(old, func(o suspect) bool { return o.What == d.What && o.User == d.User && o.ID == d.ID })
		if k >= 0 && !old[k].changed(d) {
			found.Since, found.Renewed, found.Reported = old[k].Since, old[k].Renewed, old[k].Reported
		}
		switch {
		case found.Reported || !found.lasts(now):
		case !found.Renewed && d.outdated():
			found.Since, found.Renewed = now.UTC(), true
			outdated = append(outdated, *d)
		default:
			found.Reported = true
			s.log.Error("a sum differs from its recount; run safedelivr check --repair", "difference", d.String())
		}
		w.Suspects = append(w.Suspects, found)
	}
	return outdated
}

// renew renews a sum that is out of date, and the sums above it.
func (s *Rollup) renew(ctx context.Context, d *Difference) error {
	s.log.Warn("a sum is out of date, as if a worker was killed before it renewed the sum; renewing it",
		"difference", d.String())
	if d.What == "chunk" {
		id, err := models.ParseID(d.ID)
		if err == nil {
			s.Mark(d.User, id)
		}
		return err
	}
	span, ok := parseSpan(d.User, models.Level(d.What), d.ID)
	if !ok { // no level has such a difference
		return nil
	}
	for _, level := range models.Levels[slices.Index(models.Levels[:], span.Level):] {
		if err := s.store.RollUp(ctx, models.SpanOf(d.User, level, span.Start)); err != nil {
			return err
		}
	}
	return nil
}

// recheck checks the suspects of the round before.
func (c *check) recheck(ctx context.Context, old []suspect) error {
	batches := map[models.ID]bool{}
	for i := range old {
		s := &old[i]
		if level := models.Level(s.What); level.Length() > 0 {
			if err := c.recheckSpan(ctx, s, level); err != nil {
				return err
			}
			continue
		}
		id, err := models.ParseID(s.ID)
		if err != nil || batches[id.Batch()] {
			continue
		}
		batches[id.Batch()] = true
		b, err := c.s.store.Batch(ctx, id.Batch())
		switch {
		case errors.Is(err, models.ErrNotFound):
			continue
		case errors.Is(err, models.ErrDamaged):
			c.found(s.Difference)
			continue
		case err != nil:
			return err
		}
		if _, err := c.batch(ctx, &b); err != nil {
			return err
		}
	}
	return nil
}

// recheckSpan checks a suspect that is a sum of a level.
func (c *check) recheckSpan(ctx context.Context, s *suspect, level models.Level) error {
	span, ok := parseSpan(s.User, level, s.ID)
	if !ok { // the sums of several spans could not be read
		return nil
	}
	purged, err := telemetry.LogsPurged(ctx, c.s.store, s.User)
	if err != nil || span.Start.Before(purged) { // what it was the sum of is removed
		return err
	}
	counted, err := c.sumBelow(ctx, span)
	if errors.Is(err, models.ErrDamaged) {
		c.found(s.Difference)
		return nil
	}
	if err == nil {
		_, err = c.span(ctx, span, counted, c.sumBelow)
	}
	return err
}
