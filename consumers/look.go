package consumers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// lookAt handles one agenda entry, and writes it again for later as long as
// something is unfinished. When it is written for is derived from the batch's
// own time, so that an entry handled twice is written again once.
func (e *Engine) lookAt(ctx context.Context, entry models.AgendaEntry) error {
	b, err := e.batch(ctx, entry.ID.Batch())
	if isNotFound(err) {
		return e.lookAtIntake(ctx, entry)
	}
	var found outlook
	switch {
	case err != nil:
		found, err = e.spared(entry.ID, err)
	case entry.Kind == models.LookAtChunk:
		entry.Lane = b.Lane
		found, err = e.advance(ctx, entry.ID)
	default:
		entry.Lane = b.Lane
		found, err = e.lookAtChunks(ctx, b, entry)
	}
	if err != nil {
		return err
	}
	return e.lookAgain(ctx, entry, found)
}

// lookAgain writes an entry for when what was found open is to be looked at again,
// if anything was.
func (e *Engine) lookAgain(ctx context.Context, entry models.AgendaEntry, found outlook) error {
	now := time.Now()
	rounds := 1
	if e.longQueues(entry.Lane, now) { // what waits in them is announced ever more rarely
		rounds = min(entry.Round+1, mostPatience)
	}
	next := found.next(e.checkAt(&entry, rounds, now))
	if next.IsZero() {
		return nil
	}
	entry.Round++
	entry.Due, entry.Missed = e.grid(entry.ID.Batch().Time(), next), found.missed
	return e.store.Schedule(ctx, entry)
}

// checkAt is when to look whether what was announced at the look at an entry has
// come to something: so many rechecks after that was due, or after now where that
// is long past.
func (e *Engine) checkAt(entry *models.AgendaEntry, rounds int, now time.Time) time.Time {
	from := now
	if late := now.Sub(entry.Due); late >= 0 && late < e.cfg.Recheck {
		from = entry.Due
	}
	created := entry.ID.Batch().Time()
	// The first entry of a batch is due a moment after the grid's time.
	at := e.grid(created, from.Add(time.Duration(rounds)*e.cfg.Recheck-e.cfg.Recheck/4))
	if !at.After(now) {
		at = e.grid(created, now.Add(e.cfg.Recheck))
	}
	return at
}

// longQueues reports whether messages of a lane may wait in some queue for longer
// than a recheck.
func (e *Engine) longQueues(lane models.Lane, now time.Time) bool {
	if lane == "" {
		lane = models.Bulk
	}
	long := func(q models.Queue) bool {
		waited, known := e.ages.waits(q, now)
		return !known || waited >= e.cfg.Recheck
	}
	return long(models.Queue{Kind: models.BatchMessage, Lane: lane}) || slices.ContainsFunc(e.providers.All(), func(a *provider.Provider) bool {
		return long(models.Queue{Kind: models.ProviderMessage, Provider: a.Name, Lane: lane}) ||
			long(models.Queue{Kind: models.LogMessage, Provider: a.Name, Lane: lane})
	})
}

// spared keeps what is wrong with one batch or chunk from holding up the others:
// it is looked at again later, in case that a later version can read it.
func (e *Engine) spared(id models.ID, err error) (outlook, error) {
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrInvalid) && !isNotFound(err) {
		return outlook{}, err
	}
	e.log.Error("what is stored cannot be worked on; everything else goes on", "id", id.String(), "err", err)
	return outlook{announced: true}, nil
}

// grid is the first time not before t that is whole multiples of Recheck away from
// created, which lies after t where it was set by a clock that is ahead.
func (e *Engine) grid(created, t time.Time) time.Time {
	if created.After(t) {
		return created.Add(-(created.Sub(t) / e.cfg.Recheck * e.cfg.Recheck))
	}
	steps := (t.Sub(created) + e.cfg.Recheck - 1) / e.cfg.Recheck
	return created.Add(steps * e.cfg.Recheck)
}

// lookAtIntake handles a batch that does not exist: it is being stored, or its
// client or our process went away in the middle.
func (e *Engine) lookAtIntake(ctx context.Context, entry models.AgendaEntry) error {
	created := entry.ID.Batch().Time()
	if time.Since(created) < e.cfg.IntakeGrace {
		entry.Due = e.grid(created, time.Now().Add(e.cfg.Recheck))
		return e.store.Schedule(ctx, entry)
	}
	gone, err := e.store.AbandonBatch(ctx, entry.ID.Batch(), entry.Chunks)
	if err != nil {
		return err
	}
	if gone {
		e.cleared.Add(1)
		e.log.Info("incomplete batch cleared away", "batch_id", entry.ID.Batch().String(), "chunks", entry.Chunks)
		return nil
	}
	return e.lookAt(ctx, entry)
}

// outlook is what is still open about a chunk or a batch.
type outlook struct {
	announced bool      // something is to be sent, and was announced
	missed    bool      // or could not be
	until     time.Time // the first wait that ends; zero: none
}

func (o outlook) or(p outlook) outlook {
	o.announced, o.missed = o.announced || p.announced, o.missed || p.missed
	if o.until.IsZero() || !p.until.IsZero() && p.until.Before(o.until) {
		o.until = p.until
	}
	return o
}

// next is when to look again, given when to check on an announcement; zero:
// never.
func (o outlook) next(check time.Time) time.Time {
	if o.announced && (o.until.IsZero() || check.Before(o.until)) {
		return check
	}
	return o.until
}

// lookAtChunks looks at every chunk of a batch that is not finished.
func (e *Engine) lookAtChunks(ctx context.Context, b *models.Batch, entry models.AgendaEntry) (outlook, error) {
	if err := e.journal.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return outlook{}, err // an order may let go what has ended
	}
	rule := e.journal.Rules().Batch(b)
	// Of what an order keeps back, that is looked at which was handed over: waits
	// for evidence end all the same.
	waits := rule.Waits != "" && rule.Cancel == nil && time.Now().Add(e.cfg.Recheck).Before(b.Deadline)
	finished := make([]bool, b.Chunks)
	var all outlook
	for s, err := range e.store.Summaries(ctx, b.User, b.ID, 0) {
		if err != nil {
			if _, err = e.spared(b.ID, err); err != nil {
				return outlook{}, err
			}
			break // the chunks tell for themselves
		}
		n := s.Chunk.ChunkNumber()
		if n >= len(finished) {
			continue
		}
		finished[n] = s.Summary.Queued == 0
		if waits && !finished[n] {
			finished[n] = s.Summary.Queued == s.Summary.Untried && !e.mayHaveCrashed()
			all.until = time.Now().Add(e.cfg.Recheck)
		}
	}
	switch {
	case len(rule.Releases) == 0:
	case waits: // what has ended may be let go again, when it goes on
		all.until = time.Now().Add(e.cfg.Recheck)
	default:
		clear(finished)
	}
	if finished[0] && e.mayHaveCrashed() {
		e.summaries.mark(b.User, b.ID) // the sums above may not have been renewed
	}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n, ok := range finished {
		if ok {
			continue
		}
		g.Go(func() error {
			o, err := e.advance(ctx, b.ID.Chunk(n))
			mu.Lock()
			all = all.or(o)
			mu.Unlock()
			return err
		})
	}
	return all, g.Wait()
}

// mayHaveCrashed reports whether a worker, this one or another, stopped so recently
// that sums of finished batches may be stale: no entry about one of these has been
// looked at since, however rarely that is done.
func (e *Engine) mayHaveCrashed() bool {
	return time.Since(e.crew.GoneSince()) < (mostPatience+2)*e.cfg.Recheck+time.Minute
}

// advance does for a chunk what needs no worker slot: it appends the endings
// that are due, announces what is to be sent, marks the summary, and says what
// is still open.
func (e *Engine) advance(ctx context.Context, id models.ID) (outlook, error) {
	for {
		c, err := e.look(ctx, id)
		if err != nil {
			return e.spared(id, err)
		}
		now := time.Now()
		steps, err := e.plan(ctx, c, now)
		if err != nil {
			return e.spared(id, err)
		}
		changed, err := e.close(ctx, c, steps)
		if err != nil {
			return outlook{}, err
		}
		if changed {
			continue // the endings may have changed what follows
		}
		e.summaries.looked(c)
		return e.announce(c, steps, now), nil
	}
}

// announce passes on every step of a chunk that is due before the agenda looks
// again.
func (e *Engine) announce(c *chunk, steps []policy.Step, now time.Time) outlook {
	var out outlook
	var told notices
	for i := range steps {
		st := &steps[i]
		switch st.Do {
		case policy.Wait:
			out = out.or(outlook{until: st.Until, announced: e.mayEndSoon(c, st, now)})
		case policy.Call:
			if end := c.batch.Deadline; end.After(now) {
				out = out.or(outlook{until: end})
			}
			if at := st.Earliest(); at.After(now.Add(e.cfg.Recheck)) {
				out = out.or(outlook{until: at})
				continue
			}
			if st.Retry == 0 && st.Split == 0 {
				told.add(models.Message{Kind: models.BatchMessage})
			} else {
				e.passOn(c, st, now, "", &told)
			}
			out.announced = true
		case policy.End: // not yet: evidence is being looked up
			out.announced = true
		case policy.Nothing:
		}
	}
	e.announceOf(e.hard, c, told...)
	out.missed = c.missed
	return out
}

func isNotFound(err error) bool { return errors.Is(err, models.ErrNotFound) }
