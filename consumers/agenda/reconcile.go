package agenda

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// reconcile handles one agenda entry and writes it again for later as long as something
// is unfinished. Its next due time is derived from the batch's own time, so that an entry
// that is handled twice is written again once.
func (a *Agenda) reconcile(ctx context.Context, entry models.AgendaEntry) error {
	if a.ended.has(&entry) && !a.Follower.Rules().Commanded(entry.ID) {
		return nil // otherwise a command may send its mail again
	}
	b, err := a.Chunks.Batch(ctx, entry.ID.Batch())
	if errors.Is(err, models.ErrNotFound) {
		return a.reconcileIntake(ctx, entry)
	}
	var found dispatch.Result
	switch {
	case err != nil:
		found, err = a.Chunks.SkipCorrupt(entry.ID, err)
	case entry.Kind == models.LookAtChunk:
		entry.Lane = b.Lane
		found, err = a.Dispatch.Reconcile(ctx, entry.ID)
	default:
		entry.Lane = b.Lane
		found, err = a.reconcileChunks(ctx, b, entry)
	}
	if err != nil {
		return err
	}
	return a.Requeue(ctx, entry, found)
}

// Requeue writes an entry for the time at which unfinished mail is reconciled again. It writes none if nothing is
// unfinished.
func (a *Agenda) Requeue(ctx context.Context, entry models.AgendaEntry, found dispatch.Result) error {
	now := time.Now()
	rounds := 1
	if a.longQueues(entry.Lane, now) { // messages that wait in long queues are repeated ever more rarely
		rounds = min(entry.Round+1, maxRecheckFactor)
	}
	often := now.Add(maxRecheckFactor * a.cfg.Recheck)
	if found.Unsent && !found.Announced && often.Before(found.RequeueAt) {
		found.RequeueAt = often // a provider may take it sooner than it was asked to: see RunRecovered
	}
	due := wholeMilli(found.ScheduledAt) // it is the same whenever it is computed
	if next := found.RequeueAfter(a.recheckAt(&entry, rounds, now)); !next.IsZero() {
		next = a.align(entry.ID.Batch().Time(), next)
		if due.IsZero() || next.Before(due) {
			due = next
		}
	}
	if due.IsZero() {
		return nil
	}
	entry.Round++
	entry.Due, entry.Missed, entry.Unsent = due, found.PublishFailed, found.Unsent
	return a.Store.Schedule(ctx, entry)
}

// wholeMilli rounds a time up to the precision of the agenda, so that an entry is never handled before its time.
func wholeMilli(t time.Time) time.Time {
	whole := t.Truncate(time.Millisecond)
	if whole.Before(t) {
		whole = whole.Add(time.Millisecond)
	}
	return whole
}

// recheckAt returns when to check whether the messages published for an entry had an effect. It is so many rechecks
// after the entry was due, or after now if that is long past.
func (a *Agenda) recheckAt(entry *models.AgendaEntry, rounds int, now time.Time) time.Time {
	from := now
	if late := now.Sub(entry.Due); late >= 0 && late < a.cfg.Recheck {
		from = entry.Due
	}
	created := entry.ID.Batch().Time()
	// The first entry of a batch is due a moment after the aligned time.
	at := a.align(created, from.Add(time.Duration(rounds)*a.cfg.Recheck-a.cfg.Recheck/4))
	if !at.After(now) {
		at = a.align(created, now.Add(a.cfg.Recheck))
	}
	return at
}

// longQueues reports whether messages of a lane may wait in some queue for longer
// than a recheck.
func (a *Agenda) longQueues(lane models.Lane, now time.Time) bool {
	if lane == "" {
		lane = models.Bulk
	}
	long := func(q models.Queue) bool {
		waited, known := a.Ages.waits(q, now)
		return !known || waited >= a.cfg.Recheck
	}
	return long(models.Queue{Kind: models.BatchMessage, Lane: lane}) ||
		slices.ContainsFunc(a.Providers.All(), func(a *provider.Provider) bool {
			return long(models.Queue{Kind: models.ProviderMessage, Provider: a.Name, Lane: lane}) ||
				long(models.Queue{Kind: models.LogMessage, Provider: a.Name, Lane: lane})
		})
}

// align returns the first time, not before t, that is a whole number of rechecks away from
// created. If a fast clock set created, that may be before created.
func (a *Agenda) align(created, t time.Time) time.Time {
	if created.After(t) {
		return created.Add(-(created.Sub(t) / a.cfg.Recheck * a.cfg.Recheck))
	}
	steps := (t.Sub(created) + a.cfg.Recheck - 1) / a.cfg.Recheck
	return created.Add(steps * a.cfg.Recheck)
}

// intakePoll is how often a batch is looked for that is being stored and whose time comes sooner than a recheck.
const intakePoll = time.Second

// reconcileIntake handles a batch that does not exist: it is being stored, or its client
// or this process stopped in the middle.
func (a *Agenda) reconcileIntake(ctx context.Context, entry models.AgendaEntry) error {
	created := entry.ID.Batch().Time()
	if time.Since(created) < a.cfg.IntakeGrace {
		now := time.Now()
		next := a.align(created, now.Add(a.cfg.Recheck))
		if age := now.Sub(created); age >= 0 && age < a.cfg.Recheck { // a time of the batch comes sooner than a recheck
			next = models.EarlierOf(next, created.Add(age.Truncate(intakePoll)+intakePoll))
		}
		entry.Due = next
		return a.Store.Schedule(ctx, entry)
	}
	gone, err := a.Store.AbandonBatch(ctx, entry.ID.Batch(), entry.Chunks)
	if err != nil {
		return err
	}
	if gone {
		a.log.Info("incomplete batch removed", "batch_id", entry.ID.Batch().String(), "chunks", entry.Chunks)
		return nil
	}
	return a.reconcile(ctx, entry)
}

// reconcileChunks reconciles every chunk of a batch that is not finished.
func (a *Agenda) reconcileChunks(
	ctx context.Context,
	b *models.Batch,
	entry models.AgendaEntry,
) (dispatch.Result, error) {
	if err := a.Follower.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return dispatch.Result{}, err // a command may release what has ended
	}
	rule := a.Follower.Rules().Batch(b)
	b = rule.Scheduled(b)
	// A batch whose time has not come costs nothing after its first reconcile.
	early := entry.Round > 0 && rule.Cancel == nil && len(rule.Releases) == 0
	if at := b.Begins(); early && at.After(time.Now()) {
		return dispatch.Result{ScheduledAt: at}, nil
	}
	// A held batch still reconciles chunks that reached a provider: their evidence windows
	// expire regardless.
	held := rule.Waits != nil && rule.Cancel == nil
	soon := time.Now().Add(a.cfg.Recheck)
	finished := make([]bool, b.Chunks)
	var all dispatch.Result
	for s, err := range a.Store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			if _, err = a.Chunks.SkipCorrupt(b.ID, err); err != nil {
				return dispatch.Result{}, err
			}
			break // the chunks decide
		}
		n := s.Chunk.ChunkNumber()
		if n >= len(finished) {
			continue
		}
		finished[n] = s.Summary.Open() == 0
		if end := b.ScheduleOf(n).ExpiresAt; held && !finished[n] && soon.Before(end) {
			finished[n] = s.Summary.Open() == s.Summary.Untried && !a.recentCrash()
			all = all.Or(dispatch.Result{RequeueAt: soon, ScheduledAt: end})
		}
	}
	switch {
	case len(rule.Releases) == 0:
	case held && soon.Before(b.Ends()): // recipients that have ended may be released after a resume
		all.RequeueAt = soon
	default:
		clear(finished)
	}
	if finished[0] && a.recentCrash() {
		a.Summaries.Mark(b.User, b.ID) // the sums above it may be stale
	}
	for n := 0; early && len(b.Own) > 0 && n < len(finished); n++ {
		if at := b.ScheduleOf(n).DeliverAt; !finished[n] && at.After(time.Now()) {
			finished[n] = true // until its time
			all = all.Or(dispatch.Result{ScheduledAt: at})
		}
	}
	return a.reconcileUnfinished(ctx, b, finished, all)
}

// reconcileUnfinished reconciles the chunks of a batch that are not finished. all has the known results of the others.
func (a *Agenda) reconcileUnfinished(
	ctx context.Context,
	b *models.Batch,
	finished []bool,
	all dispatch.Result,
) (dispatch.Result, error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n, ok := range finished {
		if ok {
			continue
		}
		g.Go(func() error {
			o, err := a.Dispatch.Reconcile(ctx, b.ID.Chunk(n))
			mu.Lock()
			all = all.Or(o)
			mu.Unlock()
			return err
		})
	}
	return all, g.Wait()
}

// recentCrash reports whether any worker stopped so recently that sums of finished batches
// may be stale, because no entry about them has been reconciled since.
func (a *Agenda) recentCrash() bool {
	return time.Since(a.Members.GoneSince()) < (maxRecheckFactor+2)*a.cfg.Recheck+time.Minute
}
