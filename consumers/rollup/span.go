package rollup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// recount returns the sum of a span, counted anew.
type recount func(context.Context, models.Span) (models.Summary, error)

// maxSettles bounds how long a sum that changes is watched, in times of Settle.
const maxSettles = 4

// day compares the stored sums of a user's day, and those below it, with a recount. If one
// of them is wrong, the day would be wrong after its next renewal, so the day is repaired.
func (c *check) day(
	ctx context.Context,
	user string,
	day time.Time,
	counted models.Summary,
	seconds map[time.Time]models.Summary,
) error {
	fromBatches := func(ctx context.Context, s models.Span) (models.Summary, error) {
		return c.sumBatches(ctx, user, s.Start, s.Start.Add(s.Level.Length()))
	}
	whole := models.Span{User: user, Level: models.Day, Start: day}
	wrong, err := c.span(ctx, whole, counted, fromBatches)
	for h := day; h.Before(day.AddDate(0, 0, 1)) && !wrong && err == nil; h = h.Add(time.Hour) {
		wrong, err = c.seconds(ctx, user, h, seconds, fromBatches)
	}
	if !wrong && err == nil {
		wrong, err = c.tree(ctx, user, day)
	}
	if !wrong || err != nil || !c.o.Repair {
		return err
	}
	if err := c.repairDay(ctx, user, day); err != nil {
		return err
	}
	if counted, err = fromBatches(ctx, whole); err != nil {
		return err
	}
	shown, err := c.node(ctx, whole)
	if err == nil && same(&shown, &counted) {
		c.out.Repaired++
	}
	return err
}

// seconds compares the stored sums of the seconds of an hour with a recount.
func (c *check) seconds(
	ctx context.Context,
	user string,
	hour time.Time,
	counted map[time.Time]models.Summary,
	again recount,
) (wrong bool, err error) {
	nodes, err := c.s.store.Nodes(ctx, user, models.Second, hour, hour.Add(time.Hour))
	if err != nil && !errors.Is(err, models.ErrDamaged) {
		return false, err
	}
	shown := map[time.Time]models.Summary{} // sums that cannot be read are missing, so they differ
	for i := range nodes {
		shown[nodes[i].Span.Start.UTC()] = nodes[i].Summary
	}
	for at := hour; at.Before(hour.Add(time.Hour)); at = at.Add(time.Second) {
		sum, node := counted[at], shown[at]
		if same(&node, &sum) {
			continue
		}
		bad, err := c.span(ctx, models.Span{User: user, Level: models.Second, Start: at}, sum, again)
		if err != nil {
			return wrong, err
		}
		wrong = wrong || bad
	}
	return wrong, nil
}

// tree compares the stored sum of a user's day with its hours, the hours with their
// minutes, and the minutes of the last hour with their seconds. It reports whether one is
// wrong.
func (c *check) tree(ctx context.Context, user string, day time.Time) (wrong bool, err error) {
	next := day.AddDate(0, 0, 1)
	nodes := func(level models.Level, from, to time.Time) []models.Node {
		if err != nil {
			return nil
		}
		var out []models.Node
		out, err = c.s.store.Nodes(ctx, user, level, from, to)
		if errors.Is(err, models.ErrDamaged) {
			c.found(Difference{What: string(level), User: user, ID: day.Format(time.DateOnly), Damaged: err.Error()})
			wrong, err = true, nil
		}
		return out
	}
	minutes := nodes(models.Minute, day, next)
	if len(minutes) == 0 {
		return wrong, err
	}
	last := minutes[len(minutes)-1].Span.Start.Truncate(time.Hour)
	seconds, hours := nodes(models.Second, last, last.Add(time.Hour)), nodes(models.Hour, day, next)
	for _, step := range []struct {
		level models.Level
		below []models.Node
	}{{models.Minute, seconds}, {models.Hour, minutes}, {models.Day, hours}} {
		sums := map[time.Time]models.Summary{}
		for i := range step.below {
			addAt(sums, models.SpanOf(user, step.level, step.below[i].Span.Start).Start, &step.below[i].Summary)
		}
		for at, counted := range sums {
			if err != nil {
				return wrong, err
			}
			var bad bool
			bad, err = c.span(ctx, models.Span{User: user, Level: step.level, Start: at}, counted, c.sumBelow)
			wrong = wrong || bad
		}
	}
	return wrong, err
}

// span compares a stored sum with its recount, and reports whether it is wrong. While mail
// flows the two are read at different moments, so they must differ for as long as Settle
// without a change. A sum that changes all the time counts as right.
func (c *check) span(
	ctx context.Context,
	s models.Span,
	counted models.Summary,
	again recount,
) (wrong bool, err error) {
	var began, changed time.Time // of the first comparison, and of the first one since the last change
	last := [2]int64{-1, -1}
	for {
		shown, err := c.node(ctx, s)
		if errors.Is(err, models.ErrDamaged) {
			c.found(Difference{What: string(s.Level), User: s.User, ID: spanID(s), Damaged: err.Error()})
			return true, nil
		}
		if err != nil || same(&shown, &counted) {
			return false, err
		}
		now := time.Now()
		if began.IsZero() {
			began = now
		}
		if at := [2]int64{shown.FullVersion(), counted.FullVersion()}; at != last {
			last, changed = at, now
		}
		switch {
		case now.Sub(changed) >= c.o.Settle:
			c.found(Difference{What: string(s.Level), User: s.User, ID: spanID(s), Shown: shown, Counted: counted})
			return true, nil
		case now.Sub(began) >= maxSettles*c.o.Settle:
			return false, nil
		}
		select {
		case <-time.After(min(time.Second, c.o.Settle/4)):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if counted, err = again(ctx, s); err != nil {
			return false, err
		}
	}
}

// spanID returns the begin of a span as text.
func spanID(s models.Span) string {
	if s.Level == models.Day {
		return s.Start.UTC().Format(time.DateOnly)
	}
	return s.Start.UTC().Format(time.RFC3339)
}

// parseSpan returns the span of a user with a level and an ID that spanID returned.
func parseSpan(user string, level models.Level, id string) (s models.Span, ok bool) {
	layout := time.RFC3339
	if level == models.Day {
		layout = time.DateOnly
	}
	start, err := time.Parse(layout, id)
	return models.Span{User: user, Level: level, Start: start}, err == nil
}

// node returns the stored sum of a span; zero: there is none.
func (c *check) node(ctx context.Context, s models.Span) (models.Summary, error) {
	nodes, err := c.s.store.Nodes(ctx, s.User, s.Level, s.Start, s.Start.Add(s.Level.Length()))
	if err != nil || len(nodes) == 0 {
		return models.Summary{}, err
	}
	return nodes[0].Summary, nil
}

// sumBelow adds up what is stored below a span: sums, or for a second the chunk summaries.
func (c *check) sumBelow(ctx context.Context, s models.Span) (total models.Summary, err error) {
	if s.Level == models.Second {
		return c.sumBatches(ctx, s.User, s.Start, s.Start.Add(time.Second))
	}
	nodes, err := c.s.store.Nodes(ctx, s.User, s.Level.Child(), s.Start, s.Start.Add(s.Level.Length()))
	for i := range nodes {
		total.Add(&nodes[i].Summary)
	}
	return total, err
}

// sumBatches adds up the chunk summaries of the batches accepted in [from, to).
func (c *check) sumBatches(ctx context.Context, user string, from, to time.Time) (total models.Summary, err error) {
	err = c.eachBatch(ctx, user, from, to, func(b *models.Batch) error {
		var sum models.Summary
		for s, err := range c.s.store.Summaries(ctx, user, b.ID, 0) {
			if err != nil {
				return err
			}
			sum.Add(&s.Summary)
		}
		sum = b.Total(sum)
		total.Add(&sum)
		return nil
	})
	return total, err
}

// eachBatch calls f for the batches of a user that were accepted in [from, to).
func (c *check) eachBatch(ctx context.Context, user string, from, to time.Time, f func(*models.Batch) error) error {
	for before := models.MinID(to); ; {
		page, err := c.s.store.Batches(ctx, user, before, checkPage)
		if err != nil {
			return err
		}
		for i := range page {
			if page[i].Created().Before(from) {
				return nil
			}
			if page[i].Damaged {
				return fmt.Errorf("batch %s: %w", page[i].ID, models.ErrDamaged)
			}
			if err := f(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < checkPage {
			return nil
		}
		before = page[len(page)-1].ID
	}
}
