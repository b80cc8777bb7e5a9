package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/stats"
	"github.com/safedelivr/safedelivr/service/walk"
)

// FindBatches returns a page of the batches that a filter selects, newest first, or those with mail whose time is to
// come, next first. A page may be short and still have a next cursor.
func (s *Reader) FindBatches(
	ctx context.Context, who caller.Caller, f BatchFilter, p operation.Page,
) (BatchPage, error) {
	users, err := s.People.Owners(ctx, who, f.User)
	if err != nil {
		return BatchPage{}, err
	}
	var q operation.Query
	f.check(&q)
	l := listing[BatchView]{
		name: fmt.Sprintf("batches %s %q %q %q %q %s", who.Whose(), f.User, f.State, f.Subject, f.Sender, f.Logs.key()),
	}
	l.ID = func(v *BatchView) models.ID { return v.ID }
	n, at := q.Limit(p), placeOf(&q, p, l.name)
	if err := q.Err(); err != nil {
		return BatchPage{}, err
	}
	span := spanOf(f.Logs.From, f.Logs.To)
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps {
			if f.Logs.empty() {
				return walk.Batches(ctx, s.Store, span)
			}
			return walk.Batched(walk.Chunks(ctx, s.Store, span, f.Logs.mayMatch))
		})
	}
	l.Load = func(ctx context.Context, st walk.Step) ([]BatchView, int, error) { return s.listed(ctx, who, st, &f) }
	if f.State == string(models.BatchScheduled) {
		s.inOrderOfTime(ctx, users, &l)
	}
	var out BatchPage
	if out.Batches, out.PageInfo, err = l.page(ctx, n, at); err != nil {
		return BatchPage{}, problem.FromStore("list batches", err)
	}
	last := out.First + len(out.Batches) - 1
	total, err := s.totalOf(ctx, users, span, walk.Counter{List: "batches " + f.Logs.Tag, Of: f.count}, last)
	if err == nil {
		err = l.count(ctx, s.counts, &out.PageInfo, last, total)
	}
	if err != nil {
		return BatchPage{}, problem.FromStore("count batches", err)
	}
	if out.Batches == nil {
		out.Batches = []BatchView{}
	}
	return out, nil
}

// batchCost is what reading a batch and its summaries counts, in rows of an index.
const batchCost = 40

// listed returns a batch if the filter selects it, and what reading it costs. If the step has a time, the batch must be
// due then, and next.
func (s *Reader) listed(
	ctx context.Context, who caller.Caller, st walk.Step, f *BatchFilter,
) ([]BatchView, int, error) {
	due := &st.Due
	if !due.Batch.IsZero() {
		st.At = due.Batch
	}
	b, err := s.Store.Batch(ctx, st.At)
	switch {
	case errors.Is(err, models.ErrNotFound): // it is being stored, or was abandoned
		if time.Since(st.At.Time()) > maxIntake {
			s.removeDue(ctx, st.User, due)
		}
		return nil, batchCost, nil
	case errors.Is(err, models.ErrDamaged), errors.Is(err, models.ErrNewer):
		b, err = models.Batch{ID: st.At, User: st.User, Damaged: true}, nil
	}
	if err != nil {
		return nil, 0, err
	}
	v, _, err := s.view(ctx, &b)
	if v.Cancelled {
		s.removeDue(ctx, st.User, due)
	}
	selected := err == nil && f.selects(&b, &v)
	if selected && !due.Batch.IsZero() {
		selected, err = s.dueThen(ctx, &b, &v, due, &f.Logs)
	}
	if err != nil || !selected {
		return nil, batchCost + b.Chunks, err
	}
	if b.User != who.User {
		v.User = b.User
	}
	return []BatchView{v}, batchCost + b.Chunks, nil
}

// FoundLog is a log of any batch.
type FoundLog struct {
	LogView
	BatchID   models.ID `json:"batch_id"`
	User      string    `json:"user,omitempty"` // the owner, if it is not the caller
	CreatedAt time.Time `json:"created_at"`
}

// FoundPage is a page of logs of any batch.
type FoundPage struct {
	Logs []FoundLog `json:"logs"`
	PageInfo
}

// FindLogs returns a page of the logs that a filter selects, newest first: those of the caller, or of everybody if the
// caller wants that. A log is found by its address from its first attempt on, until its address is removed. A page may
// be short and still have a next cursor.
func (s *Reader) FindLogs(ctx context.Context, who caller.Caller, f LogFilter, p operation.Page) (FoundPage, error) {
	users, err := s.People.Owners(ctx, who, "")
	if err != nil {
		return FoundPage{}, err
	}
	var q operation.Query
	f.check(&q)
	l := listing[FoundLog]{
		name:   "found " + who.Whose() + " " + f.key(),
		oneWay: f.Email != "",
	}
	l.ID = func(v *FoundLog) models.ID { return v.ID }
	n, at := q.Limit(p), placeOf(&q, p, l.name)
	if err := q.Err(); err != nil {
		return FoundPage{}, err
	}
	w, err := s.Waiting(ctx)
	if err != nil {
		return FoundPage{}, err
	}
	span := spanOf(f.From, f.To)
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps {
			if f.Email != "" {
				return walk.Addresses(ctx, s.Store, span, models.Fingerprint(f.Email))
			}
			return walk.Chunks(ctx, s.Store, span, f.mayMatch)
		})
	}
	l.Load = func(ctx context.Context, st walk.Step) ([]FoundLog, int, error) { return s.found(ctx, who, w, st, &f) }
	var out FoundPage
	if out.Logs, out.PageInfo, err = l.page(ctx, n, at); err != nil {
		return FoundPage{}, problem.FromStore("find logs", err)
	}
	last := out.First + len(out.Logs) - 1
	total, err := s.totalOf(ctx, users, span, walk.Counter{List: f.key(), Of: f.count}, last)
	if err == nil {
		err = l.count(ctx, s.counts, &out.PageInfo, last, total)
	}
	if err != nil {
		return FoundPage{}, problem.FromStore("count logs", err)
	}
	if out.Logs == nil {
		out.Logs = []FoundLog{}
	}
	return out, nil
}

// found returns the logs of a chunk that a filter selects, and what reading it costs.
func (s *Reader) found(
	ctx context.Context, who caller.Caller, w *Waits, st walk.Step, f *LogFilter,
) ([]FoundLog, int, error) {
	const missing = 20
	b, err := s.Store.Batch(ctx, st.At.Batch())
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		return nil, missing, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if f.Tag != "" && !slices.Contains(b.Groups, models.Group{Kind: models.ByTag, Name: f.Tag}) {
		return nil, missing, nil // it was found by its address
	}
	logs, err := s.matching(ctx, w, &b, st.At, f)
	if errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		logs, err = nil, nil // the check of sums reports it
	}
	if err != nil {
		return nil, 0, err
	}
	out := make([]FoundLog, len(logs))
	for i := range logs {
		out[i] = FoundLog{LogView: logs[i], BatchID: b.ID, CreatedAt: b.Created()}
		if b.User != who.User {
			out[i].User = b.User
		}
	}
	return out, chunkCost(&b, st.At), nil
}

// maxAge is how far back lists over all mail go, and clockSkew how far the clocks of processes may differ.
const (
	maxAge    = stats.MaxDays * 24 * time.Hour
	clockSkew = 48 * time.Hour
)

// spanOf returns the part of a user's mail that lists visit: what was accepted in [first, last). A time that is
// zero is as far as lists go.
func spanOf(first, last time.Time) walk.Span {
	if first.IsZero() {
		first = models.DayOf(time.Now().Add(-maxAge))
	}
	if last.IsZero() {
		last = time.Now().Add(clockSkew)
	}
	return walk.Span{First: first, Last: last}
}

// walks merges a walk over the same span of the mail of each user.
func walks(users []string, span walk.Span, walkOf func(walk.Span) walk.Steps) walk.Steps {
	all := make([]walk.Steps, len(users))
	for i, user := range users {
		span.User = user
		all[i] = walkOf(span)
	}
	return walk.Merge(all, span.Up)
}

// countedUsers is the number of users of a list up to which its entries are counted.
const countedUsers = 100

// totalOf returns how many entries a list of some users' mail in a span has, or nil if the sums do not say. count reads
// the number from a sum. seen is the number of entries that are known to be in the list: the sums may be a second
// older.
func (s *Reader) totalOf(
	ctx context.Context, users []string, span walk.Span, count walk.Counter, seen int,
) (*int64, error) {
	if _, known := count.Of(&models.Summary{}); !known || len(users) > countedUsers {
		return nil, nil
	}
	counts, known := make([]int64, len(users)), make([]bool, len(users))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(stats.UsersAtOnce)
	for i, user := range users {
		g.Go(func() (err error) {
			of := span
			of.User = user
			counts[i], known[i], err = s.countOf(ctx, of, count)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	if slices.Contains(known, false) || total < int64(seen) {
		return nil, nil
	}
	return &total, nil
}

// countOf counts the entries of a user's mail in a span. The sums of days whose batches are
// purged say what was there; while some of these batches are left, the number is not known.
func (s *Reader) countOf(ctx context.Context, span walk.Span, count walk.Counter) (n int64, known bool, err error) {
	purged, err := telemetry.LogsPurged(ctx, s.Store, span.User)
	if err != nil {
		return 0, false, err
	}
	if span.First.Before(purged) {
		left, err := s.Store.BatchIDs(ctx, span.User, models.MinID(models.EarlierOf(purged, span.Last)), 1)
		if err != nil || len(left) > 0 && !left[0].Time().Before(span.First) {
			return 0, false, err
		}
		span.First = purged
	}
	return s.counts.Count(ctx, s.Store, span, count)
}

// PutDues stores when mail of a batch is due, for lists in the order of time. It is called before the batch has these
// times: an entry without a batch that has its time says nothing.
func PutDues(ctx context.Context, store models.Store, b *models.Batch) error {
	dues := b.Dues(time.Now())
	if len(dues) == 0 {
		return nil
	}
	return store.PutDue(ctx, b.User, dues...)
}

// inOrderOfTime makes a list one of batches with mail whose time is to come, next first.
func (s *Reader) inOrderOfTime(ctx context.Context, users []string, l *listing[BatchView]) {
	span := walk.Span{First: time.Now()}
	l.up = true
	l.ID = func(v *BatchView) models.ID {
		d := models.Due{At: v.DueAt, Batch: v.ID}
		return d.ID()
	}
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps { return walk.Dues(ctx, s.Store, span) })
	}
}

// dueThen reports whether a batch is due at the time of an entry, and next, and the filter selects it.
func (s *Reader) dueThen(
	ctx context.Context, b *models.Batch, v *BatchView, d *models.Due, f *LogFilter,
) (bool, error) {
	at := b.Created()
	if v.DueAt.UnixMilli() != d.At.UnixMilli() || at.Before(f.From) || !f.To.IsZero() && !at.Before(f.To) ||
		f.Tag != "" && !slices.Contains(b.Groups, models.Group{Kind: models.ByTag, Name: f.Tag}) {
		return false, nil
	}
	if len(f.counts()) == 0 {
		return true, nil
	}
	for cs, err := range s.Store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil || f.mayMatch(&cs.Summary) {
			return err == nil, err
		}
	}
	return false, nil
}

// maxIntake is longer than it takes to store a batch.
const maxIntake = 24 * time.Hour

// removeDue removes an entry of a batch that never exists any more, or that is cancelled. If it fails, the next reader
// does it.
func (s *Reader) removeDue(ctx context.Context, user string, d *models.Due) {
	if d.Batch.IsZero() {
		return
	}
	if err := s.Store.RemoveDue(ctx, user, d.ID()); err != nil {
		s.Logger.Debug("time of a batch not removed", "batch_id", d.Batch.String(), "err", err)
	}
}
