package rollup

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// The times and sizes of a round.
const (
	roundKept   = 7 * 24 * time.Hour // how long the result of a round is kept
	newestMax   = 2000               // chunks of a round that were accepted since the last one
	olderMax    = 300                // cost of a round's older batches, in chunks
	userCost    = 10                 // cost of beginning with a user, in chunks
	userDays    = 8                  // days of a user whose sums are checked
	unknownDays = 100                // days whose unknown outcomes are counted; longer than content is kept

	complaintDays = 7 // days before today whose complaints operators get notices of
)

// Round is the result of a round of checks. The next round continues from it, perhaps in
// another worker.
type Round struct {
	telemetry.Recount           // Differences counts those that last
	Suspects          []suspect `json:"suspects,omitempty"`
	User              string    `json:"user,omitempty"`    // whose older batches are being checked
	Before            models.ID `json:"before,omitzero"`   // the next older batch is before this one; zero: the newest
	Waiting           int64     `json:"waiting,omitempty"` // unknown outcomes that wait for evidence
	Held              int64     `json:"held,omitempty"`    // unknown outcomes that were held
	Doubled           int64     `json:"doubled,omitempty"`
}

// RunChecks checks sums in rounds until ctx ends. One worker at a time makes the rounds;
// every worker calls onRound with their results.
//
// A round renews sums that stay out of date: a worker may have been killed before it renewed
// them. It reports all other sums that stay wrong.
//
// A round checks the batches that were accepted since the last one, some older batches,
// and the sums above them. The older batches are those of one user after the other, from
// the newest to the oldest.
func (s *Rollup) RunChecks(ctx context.Context) {
	runner := jobs.Runner{Store: s.store, Worker: s.cfg.Worker, Log: s.log}
	report := func() {
		if w, err := s.lastRound(ctx); err == nil && !w.At.IsZero() {
			s.onRound(&w)
		}
	}
	runner.Run(ctx, &jobs.Job{Lease: "sums", TTL: 2 * s.cfg.SumsPoll, Every: s.cfg.SumsPoll, Doing: "check sums",
		Round: func(ctx context.Context, now time.Time) error {
			defer report()
			return s.checkSums(ctx, now)
		},
		Idle: report})
}

// lastRound returns the result of the newest round; zero: there is none.
func (s *Rollup) lastRound(ctx context.Context) (w Round, err error) {
	raw, err := s.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	switch {
	case errors.Is(err, models.ErrNotFound):
		return w, nil
	case err != nil:
		return w, err
	}
	return w, json.Unmarshal(raw, &w)
}

// checkSums makes one round and stores its result.
func (s *Rollup) checkSums(ctx context.Context, now time.Time) error {
	w, err := s.lastRound(ctx)
	if err != nil {
		s.log.Warn("cannot read the result of the last check of sums; starting again", "err", err)
		w = Round{}
	}
	users, err := s.store.Users(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(users, func(a, b models.User) int { return strings.Compare(a.ID, b.ID) })
	from := now.Add(-2 * s.cfg.SumsPoll)
	if w.At.After(now.Add(-10 * s.cfg.SumsPoll)) {
		from = w.At.Add(-s.cfg.SumsPoll / 2)
	}
	from = from.Truncate(time.Second)
	var found []Difference
	c := &check{s: s, o: CheckOptions{Found: func(d Difference) { found = append(found, d) }}}
	if err := c.recheck(ctx, w.Suspects); err != nil {
		return err
	}
	if err := c.newest(ctx, users, from, now); err != nil {
		return err
	}
	if err := c.older(ctx, users, &w, from); err != nil {
		return err
	}
	if err := c.days(ctx, users, &w, now); err != nil {
		return err
	}
	for _, d := range s.judge(&w, found, now) {
		if err := s.renew(ctx, &d); err != nil {
			return err
		}
	}
	w.Recount = c.out
	w.Users, w.At, w.Differences = len(users), now.UTC(), w.lasting()
	raw, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return s.store.PutTransient(ctx, telemetry.RecountReport, telemetry.NewestRecount, raw, roundKept)
}

// newest checks the batches that were accepted since from.
func (c *check) newest(ctx context.Context, users []models.User, from, now time.Time) error {
	to := models.MinID(now.Add(-c.s.cfg.SumsPoll / 2).Truncate(time.Second))
	for i := range users {
		before, _, err := c.slice(ctx, users[i].ID, to, from, newestMax-c.out.Chunks)
		if err != nil {
			return err
		}
		if before == to { // nothing was accepted
			continue
		}
		if _, err := c.tree(ctx, users[i].ID, models.DayOf(now)); err != nil {
			return err
		}
	}
	return nil
}

// older checks some of the batches that were accepted before since, from where the last
// round stopped.
func (c *check) older(ctx context.Context, users []models.User, w *Round, since time.Time) error {
	left := olderMax
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
			left -= userCost
			for back := range userDays {
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
		if !more { // continue with the next user
			w.User, w.Before = w.User+"\x00", models.ID{}
		}
	}
	return nil
}

// days reads the sums of the last unknownDays. It counts the unknown outcomes and the duplicates, and notifies
// operators of days with many complaints.
func (c *check) days(ctx context.Context, users []models.User, w *Round, now time.Time) error {
	w.Waiting, w.Held, w.Doubled = 0, 0, 0
	today := models.DayOf(now)
	from, to := today.AddDate(0, 0, -unknownDays), today.AddDate(0, 0, 2)
	oldest := today.AddDate(0, 0, -complaintDays)
	var high []models.Notice
	for i := range users {
		nodes, err := c.s.store.Nodes(ctx, users[i].ID, models.Day, from, to)
		if errors.Is(err, models.ErrDamaged) {
			c.found(Difference{What: string(models.Day), User: users[i].ID, ID: "one of the last", Damaged: err.Error()})
			err = nil
		}
		if err != nil {
			return err
		}
		for k := range nodes {
			sum := &nodes[k].Summary
			w.Waiting += sum.Awaited
			w.Held += sum.Reasons[models.OutcomeUnknown]
			w.Doubled += sum.Doubled
			if n := c.s.complaints(&nodes[k]); n != nil && !n.Since.Before(oldest) {
				high = append(high, *n)
			}
		}
	}
	if len(high) == 0 {
		return nil
	}
	return feed.HighComplaints(ctx, c.s.store, oldest, high)
}

// complaints returns the notice about a day of a user if too much of its mail was reported as spam, or nil. A complaint
// may come days after its mail: it counts on the day of the mail, as all does.
func (s *Rollup) complaints(day *models.Node) *models.Notice {
	sum := &day.Summary
	n := models.Notice{
		User:      day.Span.User,
		Since:     day.Span.Start.UTC(),
		Count:     sum.Events[models.Complained],
		Delivered: sum.Success,
	}
	many := 100*float64(n.Count) > s.cfg.Complaints*float64(n.Delivered)
	if s.cfg.Complaints <= 0 || n.Delivered < max(s.cfg.ComplaintsFrom, 1) || !many {
		return nil
	}
	return &n
}

// slice checks the batches of a user that were accepted before a batch and not before
// from, newest first, up to most chunks. It also checks the sums of the seconds whose
// batches it has all checked, and the sums above these seconds. It returns the batch before
// which the next slice begins, and whether there is more.
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
	if from.IsZero() { // those that were purged cannot be recounted
		var err error
		if from, err = telemetry.LogsPurged(ctx, c.s.store, user); err != nil {
			return before, false, err
		}
	}
	seconds, partial := map[time.Time]models.Summary{}, map[time.Time]bool{}
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
			second := b.Created().Truncate(time.Second)
			switch {
			case b.Created().Before(from):
				break pages
			case c.out.Chunks >= end:
				more = true
				since = before.Time().Truncate(time.Second).Add(time.Second) // the last second is incomplete
				break pages
			case b.Damaged:
				c.damaged("batch", b, b.ID, models.ErrDamaged)
				partial[second] = true
			default:
				sum, err := c.batch(ctx, b)
				if err != nil {
					return before, false, err
				}
				addAt(seconds, second, &sum)
			}
			before = b.ID
		}
		if len(page) < checkPage {
			break
		}
	}
	for start, counted := range seconds {
		if start.Before(since) || !start.Before(upTo) || partial[start] {
			continue
		}
		span := models.Span{User: user, Level: models.Second, Start: start}
		if _, err := c.span(ctx, span, counted, c.sumBelow); err != nil {
			return before, false, err
		}
	}
	return before, more, c.above(ctx, user, seconds)
}

// above compares the sums of the minutes, hours and days of some seconds with the sums below
// them.
func (c *check) above(ctx context.Context, user string, seconds map[time.Time]models.Summary) error {
	for _, level := range models.Levels[1:] {
		spans := map[models.Span]bool{}
		for start := range seconds {
			spans[models.SpanOf(user, level, start)] = true
		}
		for span := range spans {
			counted, err := c.sumBelow(ctx, span)
			if errors.Is(err, models.ErrDamaged) { // the check of the level below reports it
				continue
			}
			if err == nil {
				_, err = c.span(ctx, span, counted, c.sumBelow)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
