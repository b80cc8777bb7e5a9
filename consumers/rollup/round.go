package rollup

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Sums are watched beside the work, by one worker at a time: in each round what
// was accepted since the last one, a few older batches, and the sums above them.
// Older batches come one after the other, from each user's newest to the oldest;
// then it begins again.
//
// While mail flows, sums lag behind what they are made of. So what differs is a
// suspect only, and a difference if it lasts although nothing moves.

// The times and sizes of a round.
const (
	recountKept = 7 * 24 * time.Hour // how long the result of a round is kept
	LateSums    = time.Minute        // how late a sum may be before it is reported
	watchNewest = 2000               // chunks of a round that were accepted lately
	watchOlder  = 300                // chunks of a round that are older; a user costs a few
	watchUser   = 10
	watchDays   = 8   // days of a user whose sums are watched
	MaxSuspects = 50  // that are remembered
	unknownDays = 100 // for which logs are told of as unknown: longer than content is kept
)

// Round is what a round found. The next one, maybe by another worker, goes on
// from it.
type Round struct {
	telemetry.Recount           // Differences counts those that last
	Suspects          []suspect `json:"suspects,omitempty"`
	User              string    `json:"user,omitempty"`    // where the older batches are
	Before            models.ID `json:"before,omitzero"`   // zero: at the user's newest
	Waiting           int64     `json:"waiting,omitempty"` // outcomes that are not known, and may become so
	Held              int64     `json:"held,omitempty"`    // those that were given up
	Doubled           int64     `json:"doubled,omitempty"`
}

// suspect is a sum that was not what a recount said.
type suspect struct {
	Difference
	Since time.Time `json:"since"` // when either moved last
	Told  bool      `json:"told,omitempty"`
}

// moved reports whether something was worked on between two findings.
func (s *suspect) moved(d *Difference) bool {
	return s.Counted.FullVersion() != d.Counted.FullVersion() || s.Shown.FullVersion() != d.Shown.FullVersion()
}

// RunChecks makes a round now and then, and keeps the gauges of every worker.
func (s *Rollup) RunChecks(ctx context.Context) {
	t := time.NewTicker(s.Cfg.SumsPoll)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if held, err := s.store.Lease(ctx, "sums", s.Cfg.Worker, 2*s.Cfg.SumsPoll); err == nil && held {
			if err := s.CheckSums(ctx, time.Now()); err != nil && ctx.Err() == nil {
				s.Log.Warn("sums could not be checked", "err", err)
			}
		}
		if w, err := s.LastRound(ctx); err == nil && !w.At.IsZero() {
			s.onRound(&w)
		}
	}
}

// LastRound reads what the newest round found.
func (s *Rollup) LastRound(ctx context.Context) (w Round, err error) {
	raw, err := s.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	switch {
	case errors.Is(err, models.ErrNotFound):
		return w, nil
	case err != nil:
		return w, err
	}
	return w, json.Unmarshal(raw, &w)
}

// CheckSums makes one round.
func (s *Rollup) CheckSums(ctx context.Context, now time.Time) error {
	w, err := s.LastRound(ctx)
	if err != nil {
		s.Log.Warn("the newest check of sums cannot be read; it begins anew", "err", err)
		w = Round{}
	}
	users, err := s.store.Users(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(users, func(a, b models.User) int { return strings.Compare(a.ID, b.ID) })
	from := now.Add(-2 * s.Cfg.SumsPoll)
	if w.At.After(now.Add(-10 * s.Cfg.SumsPoll)) {
		from = w.At.Add(-s.Cfg.SumsPoll / 2)
	}
	var found []Difference
	c := &check{s: s, o: CheckOptions{Found: func(d Difference) { found = append(found, d) }}}
	if err := c.suspects(ctx, w.Suspects); err != nil {
		return err
	}
	to := now.Add(-s.Cfg.SumsPoll / 2).Truncate(time.Second)
	for i := range users {
		before, _, err := c.slice(ctx, users[i].ID, models.MinID(to), from.Truncate(time.Second), watchNewest-c.out.Chunks)
		if err != nil {
			return err
		}
		if before != models.MinID(to) { // something was accepted
			if _, err := c.tree(ctx, users[i].ID, models.DayOf(now)); err != nil {
				return err
			}
		}
	}
	if err := c.older(ctx, users, &w, from.Truncate(time.Second)); err != nil {
		return err
	}
	w.Waiting, w.Held, w.Doubled = 0, 0, 0
	for i := range users {
		nodes, err := s.store.Nodes(
			ctx,
			users[i].ID,
			models.Day,
			models.DayOf(now).AddDate(0, 0, -unknownDays),
			models.DayOf(now).AddDate(0, 0, 2),
		)
		if errors.Is(err, models.ErrDamaged) {
			c.found(Difference{What: string(models.Day), User: users[i].ID, ID: "one of the last", Damaged: err.Error()})
			err = nil
		}
		if err != nil {
			return err
		}
		for k := range nodes {
			s := &nodes[k].Summary
			w.Waiting += s.Awaited
			w.Held += s.Reasons[models.OutcomeUnknown]
			w.Doubled += s.Doubled
		}
	}
	s.Judge(&w, found, now)
	w.Recount = c.out
	w.Users, w.At, w.Differences = len(users), now.UTC(), w.Lasting()
	raw, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return s.store.PutTransient(ctx, telemetry.RecountReport, telemetry.NewestRecount, raw, recountKept)
}

// Judge notes what was found in a round. A difference that is no longer found is forgotten.
func (s *Rollup) Judge(w *Round, differences []Difference, now time.Time) {
	old := w.Suspects
	w.Suspects = nil
	seen := map[string]bool{}
	for i := range differences {
		d := &differences[i]
		key := d.What + " " + d.User + " " + d.ID
		if seen[key] || len(w.Suspects) == MaxSuspects {
			continue
		}
		seen[key] = true
		found := suspect{Difference: *d, Since: now.UTC()}
		k := slices.IndexFunc(old, func(o suspect) bool { return o.What == d.What && o.User == d.User && o.ID == d.ID })
		if k >= 0 && !old[k].moved(d) {
			found.Since, found.Told = old[k].Since, old[k].Told
		}
		if !found.Told && found.lasts(now) {
			found.Told = true
			s.Log.Error("a sum is not what a recount says; run safedelivr check --repair", "difference", d.String())
		}
		w.Suspects = append(w.Suspects, found)
	}
}

// lasts reports whether the sum should be right by now.
func (s *suspect) lasts(now time.Time) bool {
	return s.Damaged != "" || now.Sub(s.Since) >= LateSums
}

// Lasting counts the suspects that were told of.
func (w *Round) Lasting() (n int) {
	for i := range w.Suspects {
		if w.Suspects[i].Told {
			n++
		}
	}
	return n
}

// suspects looks at what was found before.
func (c *check) suspects(ctx context.Context, old []suspect) error {
	batches := map[models.ID]bool{}
	for i := range old {
		s := &old[i]
		if level := models.Level(s.What); level.Length() > 0 {
			start, err := time.Parse(time.RFC3339, s.ID)
			if level == models.Day {
				start, err = time.Parse(time.DateOnly, s.ID)
			}
			if err != nil {
				continue
			}
			span := models.Span{User: s.User, Level: level, Start: start}
			counted, err := c.recount(ctx, span)
			if errors.Is(err, models.ErrDamaged) {
				c.found(s.Difference)
				continue
			}
			if err == nil {
				_, err = c.span(ctx, span, counted, c.recount)
			}
			if err != nil {
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

// older goes on with the batches that were not accepted lately.
func (c *check) older(ctx context.Context, users []models.User, w *Round, since time.Time) error {
	left := watchOlder
	for range users {
		if left <= 0 {
			return nil
		}
		i, _ := slices.BinarySearchFunc(
			users,
			w.User,
			func(u models.User, id string) int { return strings.Compare(u.ID, id) },
		)
		if i == len(users) {
			i = 0
		}
		if users[i].ID != w.User || w.Before.IsZero() {
			w.User, w.Before = users[i].ID, models.MinID(since)
			left -= watchUser
			for back := range watchDays {
				if _, err := c.tree(ctx, w.User, models.DayOf(since).AddDate(0, 0, -back)); err != nil {
					return err
				}
			}
		}
		chunks := c.out.Chunks
		before, more, err := c.slice(ctx, w.User, w.Before, time.Time{}, left)
		if err != nil {
			return err
		}
		left -= c.out.Chunks - chunks
		w.Before = before
		if !more { // the next user's turn
			w.User, w.Before = w.User+"\x00", models.ID{}
		}
	}
	return nil
}

// slice checks the batches of a user that were accepted before one and not before
// from, newest first, until it has checked most chunks; and the seconds that were
// seen whole. It returns before which batch to go on, and whether there is more.
func (c *check) slice(
	ctx context.Context,
	user string,
	before models.ID,
	from time.Time,
	most int,
) (models.ID, bool, error) {
	if most <= 0 {
		return before, true, nil
	}
	seconds, partly := map[time.Time]models.Summary{}, map[time.Time]bool{}
	upTo, since, more := before.Time().Truncate(time.Second), from, false
	end := c.out.Chunks + most
pages:
	for {
		page, err := c.s.store.Batches(ctx, user, before, checkPage)
		if err != nil {
			return before, false, err
		}
		for i := range page {
			b := &page[i]
			switch {
			case b.Created().Before(from):
				break pages
			case c.out.Chunks >= end:
				more = true
				since = before.Time().Truncate(time.Second).Add(time.Second) // the last second was seen in part
				break pages
			}
			if b.Damaged {
				c.damaged("batch", b, b.ID, models.ErrDamaged)
				partly[b.Created().Truncate(time.Second)] = true
				before = b.ID
				continue
			}
			sum, err := c.batch(ctx, b)
			if err != nil {
				return before, false, err
			}
			addAt(seconds, b.Created().Truncate(time.Second), &sum)
			before = b.ID
		}
		if len(page) < checkPage {
			break
		}
	}
	for start, counted := range seconds {
		if start.Before(since) || !start.Before(upTo) || partly[start] {
			continue
		}
		if _, err := c.span(ctx, models.Span{User: user, Level: models.Second, Start: start}, counted, c.recount); err != nil {
			return before, false, err
		}
	}
	return before, more, nil
}

// tree compares the sum of a user's day with its hours, these with their minutes,
// and the minutes of the last hour with their seconds. It reports whether one is
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
			bad, err = c.span(ctx, models.Span{User: user, Level: step.level, Start: at}, counted, c.recount)
			wrong = wrong || bad
		}
	}
	return wrong, err
}

// span compares a stored sum with what was counted of it. While mail flows the two
// are read at different moments, so a difference must last although nothing moves,
// for as long as Settle; where something moves all the time, it cannot be told.
func (c *check) span(
	ctx context.Context,
	s models.Span,
	counted models.Summary,
	recount func(context.Context, models.Span) (models.Summary, error),
) (wrong bool, err error) {
	began := time.Now()
	moved, last := began, [2]int64{-1, -1}
	id := s.Start.UTC().Format(time.RFC3339)
	if s.Level == models.Day {
		id = s.Start.UTC().Format(time.DateOnly)
	}
	for {
		shown, err := c.node(ctx, s)
		if errors.Is(err, models.ErrDamaged) {
			c.found(Difference{What: string(s.Level), User: s.User, ID: id, Damaged: err.Error()})
			return true, nil
		}
		if err != nil || same(&shown, &counted) {
			return false, err
		}
		if at := [2]int64{shown.FullVersion(), counted.FullVersion()}; at != last {
			last, moved = at, time.Now()
		}
		switch {
		case time.Since(moved) >= c.o.Settle:
			c.found(Difference{What: string(s.Level), User: s.User, ID: id, Shown: shown, Counted: counted})
			return true, nil
		case time.Since(began) >= mostSettles*c.o.Settle:
			return false, nil
		}
		select {
		case <-time.After(min(time.Second, c.o.Settle/4)):
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if counted, err = recount(ctx, s); err != nil {
			return false, err
		}
	}
}

// mostSettles bounds how long a sum is watched that moves, in Settle.
const mostSettles = 4

// node reads a stored sum; there may be none.
func (c *check) node(ctx context.Context, s models.Span) (models.Summary, error) {
	nodes, err := c.s.store.Nodes(ctx, s.User, s.Level, s.Start, s.Start.Add(s.Level.Length()))
	if err != nil || len(nodes) == 0 {
		return models.Summary{}, err
	}
	return nodes[0].Summary, nil
}

// recount adds up what lies below a sum.
func (c *check) recount(ctx context.Context, s models.Span) (total models.Summary, err error) {
	if s.Level == models.Second {
		return c.recountBatches(ctx, s.User, s.Start, s.Start.Add(time.Second))
	}
	nodes, err := c.s.store.Nodes(ctx, s.User, s.Level.Child(), s.Start, s.Start.Add(s.Level.Length()))
	for i := range nodes {
		total.Add(&nodes[i].Summary)
	}
	return total, err
}
