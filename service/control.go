package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// maxWhy is the longest reason of an order, in bytes.
const maxWhy = 500

// rulesAge is how old the rules may be that are shown.
const rulesAge = 300 * time.Millisecond

// Steered is what became of an order about a batch.
type Steered struct {
	BatchID   models.ID          `json:"batch_id"`
	LogID     models.ID          `json:"log_id,omitzero"` // of the release of one log
	Order     models.CommandKind `json:"order"`
	Changed   bool               `json:"changed"`   // false: it stood like that before
	Stopped   bool               `json:"stopped"`   // as it stands now
	Cancelled bool               `json:"cancelled"` // as it stands now
	InFlight  *int               `json:"in_flight"` // recipients of calls that have begun and are not answered; nil: see Warning
	Warning   string             `json:"warning,omitempty"`
	Late      bool               `json:"-"` // what it lets go may have to be ordered again; Warning says so
	Waits     bool               `json:"-"` // what it lets go does not go out yet; Warning says until when
}

// Warnings of orders.
const (
	mayDoubleWarning = "It is unknown whether the providers took this mail: it may arrive twice if it is sent again."
	inFlightWarning  = "Calls that had begun cannot be called back; no new one starts."
	uncountedWarning = "The calls that have begun could not be counted."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: repeat the command if nothing moves within a minute."
)

// warn adds to what the answer warns of.
func (o *Steered) warn(text string) { o.Warning = strings.TrimSpace(o.Warning + " " + text) }

// rules is what the journal says now, at most rulesAge ago.
func (s *Service) rules(ctx context.Context) (*control.Rules, error) {
	if err := s.journal.EnsureFresh(ctx, rulesAge); err != nil {
		return nil, storeError("read orders", err)
	}
	return s.journal.Rules(), nil
}

// order writes an order into the journal, unless what it asks for stands
// already; it tells whether it was written. When an order that withholds mail
// returns, no worker begins a call against it any more.
func (s *Service) order(
	ctx context.Context,
	who Caller,
	c *models.Command,
	wanted func(*control.Rules) bool,
) (bool, error) {
	if len(c.Why) > maxWhy || hasControls(c.Why) {
		var f Form
		f.Wrong("/why", "too_long", "why is one line of at most %d bytes.", maxWhy)
		return false, f.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SettleTime)
	defer cancel()
	c.By = who.by()
	for {
		done, err := s.journal.Append(ctx, c, wanted)
		switch {
		case err == nil:
			if done {
				s.log.Info(
					"ordered",
					"order",
					string(c.Kind),
					"by",
					c.By,
					"batch_id",
					c.Batch.String(),
					"user_id",
					c.User,
					"provider",
					c.Provider,
				)
			}
			if c.Kind.Withholds() {
				s.awaitPropagation(ctx)
			}
			return done, nil
		case errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil && wanted != nil:
			continue // if it stands, it is not wanted any more
		}
		return false, Fail(
			Unavailable,
			"store_unavailable",
			"The store cannot be reached, and it is not known whether the order stands; repeat it.",
		).After(
			5,
		).Because(
			err,
		)
	}
}

// awaitPropagation waits until every worker knows the orders that stand now. What stood
// already may have been ordered a moment ago.
func (s *Service) awaitPropagation(ctx context.Context) {
	if s.cfg.Sole {
		return
	}
	select {
	case <-time.After(control.MaxRuleAge):
	case <-ctx.Done():
	}
}

// Steer stops, resumes, cancels, retries or releases a batch. What an operator
// stopped, an operator resumes.
func (s *Service) Steer(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	batch, why string,
	r Repeat,
) (Steered, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (Steered, error) {
		id, err := models.ParseBatchID(batch)
		if err != nil {
			return Steered{}, notFound("batch")
		}
		b, err := s.steerable(ctx, who, id)
		if err != nil {
			return Steered{}, err
		}
		return s.steer(ctx, who, b, &models.Command{Kind: do, Batch: b.ID, Why: why, Request: claim.ID})
	})
}

// ReleaseLog lets one held or failed log go out again.
func (s *Service) ReleaseLog(ctx context.Context, who Caller, log, why string, r Repeat) (Steered, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (Steered, error) {
		id, err := models.ParseLogID(log)
		if err != nil {
			return Steered{}, notFound("log")
		}
		b, err := s.steerable(ctx, who, id.Batch())
		if err != nil {
			return Steered{}, err
		}
		if id.Recipient() > b.ChunkSize(id.ChunkNumber()) {
			return Steered{}, notFound("log")
		}
		entries, facts, err := s.store.Record(ctx, id.ChunkID())
		if err != nil {
			return Steered{}, storeError("read log", err)
		}
		rules, err := s.rules(ctx)
		if err != nil {
			return Steered{}, err
		}
		st := models.Resolve(b.ChunkSize(id.ChunkNumber()), entries, facts).Status(id.Recipient())
		if st.State == models.Queued || released(rules, b, id, entries) { // it is on its way, released before or not
			out := Steered{BatchID: b.ID, LogID: id, Order: models.ReleaseBatch}
			out.Stopped, out.Cancelled = rules.Stopped(b.ID)
			if st.State != models.Queued && !s.resume(ctx, goingOn(b)) { // whoever ordered it may have died then
				out.Late = true
				out.warn(lateWarning)
			}
			s.countInFlight(ctx, b, &out)
			s.warnOfWaiting(rules, b, &out)
			return out, nil
		}
		if st.State != models.Failed || st.Reason.Hard() {
			return Steered{}, Fail(
				Conflict,
				"not_releasable",
				"Only a log that failed can be released, and not where the recipient or the mail itself was refused for good.",
			)
		}
		return s.steer(
			ctx,
			who,
			b,
			&models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id, Why: why, Request: claim.ID},
		)
	})
}

// released reports whether the release of a log was ordered and is still to come
// into its chunk's ledger.
func released(rules *control.Rules, b *models.Batch, log models.ID, entries []models.Entry) bool {
	rule := rules.Batch(b)
	return !b.Redacted && rule.Cancel == nil && slices.ContainsFunc(rule.Releases, func(r models.Command) bool {
		return r.Log == log && !slices.ContainsFunc(entries, func(e models.Entry) bool { return e.Order == r.Number })
	})
}

// steer orders something about a batch. Once the order stands, nothing that fails
// after it is an error.
func (s *Service) steer(ctx context.Context, who Caller, b *models.Batch, c *models.Command) (Steered, error) {
	changed, err := s.place(ctx, who, b, c)
	if err != nil {
		return Steered{}, err
	}
	out := Steered{BatchID: b.ID, LogID: c.Log, Order: c.Kind, Changed: changed}
	if goesOn(c.Kind) {
		if !c.Kind.Withholds() { // else it was waited for
			s.awaitPropagation(context.WithoutCancel(ctx))
		}
		if !s.resume(ctx, goingOn(b)) {
			out.Late = true
			out.warn(lateWarning)
		}
	}
	rules := s.journal.Rules()
	out.Stopped, out.Cancelled = rules.Stopped(b.ID)
	s.countInFlight(ctx, b, &out)
	switch c.Kind { //nolint:exhaustive // of batches
	case models.StopBatch, models.CancelBatch:
		if out.InFlight == nil || *out.InFlight > 0 {
			out.warn(inFlightWarning)
		}
		return out, nil
	case models.ReleaseBatch:
		out.warn(mayDoubleWarning)
	}
	s.warnOfWaiting(rules, b, &out)
	return out, nil
}

// StoppedByOperator is the error of an owner who may not resume a batch.
func StoppedByOperator() *Error {
	return Fail(
		Forbidden,
		"stopped_by_operator",
		"An operator has stopped this batch, and only an operator can resume it.",
	)
}

// place writes an order about a batch into the journal. What lets mail go on is
// put on the agenda before, so that it goes on even if this process ends then.
func (s *Service) place(ctx context.Context, who Caller, b *models.Batch, c *models.Command) (changed bool, err error) {
	if b.Redacted && (c.Kind == models.RetryBatch || c.Kind == models.ReleaseBatch) {
		return false, Fail(
			Conflict,
			"content_removed",
			"The content and the addresses of this batch were removed after their time; it cannot go out again.",
		)
	}
	if goesOn(c.Kind) {
		late := goingOn(b) // the order stands by then, if ever
		late.Due = late.Due.Add(s.cfg.SettleTime)
		if err := s.store.Schedule(ctx, goingOn(b), late); err != nil {
			return false, storeError("schedule", err)
		}
	}
	over, stands, mine := false, false, true
	changed, err = s.order(ctx, who, c, func(rules *control.Rules) bool {
		stopped, cancelled := rules.Stopped(b.ID)
		over = cancelled && c.Kind != models.CancelBatch && c.Kind != models.StopBatch
		switch c.Kind { //nolint:exhaustive // of batches
		case models.StopBatch:
			by := rules.StoppedBy(b.ID)
			return !cancelled &&
				(by == "" || by == b.User && who.by() != b.User) // nobody takes back by himself what an operator confirms
		case models.ResumeBatch:
			mine = cancelled || who.mayRelease(rules.StoppedBy(b.ID), b.User)
			return stopped && !cancelled && mine
		}
		// To let the same mail go twice for one request would be once too often.
		stands = slices.ContainsFunc(
			rules.Batch(b).Releases,
			func(r models.Command) bool { return r.Request == c.Request && !c.Request.IsZero() },
		)
		return !cancelled && !stands
	})
	if err == nil && over {
		err = Fail(Conflict, "batch_cancelled", "The batch is cancelled for ever; nothing more of it goes out.")
	}
	if err == nil && !mine {
		err = StoppedByOperator()
	}
	return changed || stands, err
}

// goesOn reports whether there is something to do for a batch after an order.
func goesOn(do models.CommandKind) bool { return do != models.StopBatch }

// How the agenda looks at a batch that goes on.
const (
	goOnAfter  = 2 * time.Second // after the order
	goOnAtOnce = 100             // entries of one write
	goOnTime   = 5 * time.Second // for one write
)

// goingOn is the entry by which the agenda looks at a batch that goes on.
func goingOn(b *models.Batch) models.AgendaEntry {
	return models.AgendaEntry{
		Due:    time.Now().Add(goOnAfter),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Lane:   b.Lane,
	}
}

// resume announces batches that go on, and puts them on the agenda once more. Every
// worker knows the orders by now: who looks at a batch earlier may find nothing to
// do, and nobody looks again. It tells whether the agenda took all of them.
func (s *Service) resume(ctx context.Context, batches ...models.AgendaEntry) bool {
	ctx = context.WithoutCancel(ctx) // the client going away does not matter any more
	all := true
	for some := range slices.Chunk(batches, goOnAtOnce) {
		for i := range some {
			e := &some[i]
			e.Due = time.Now().Add(goOnAfter)
			s.announce[e.Lane].add(&models.Batch{ID: e.ID, Chunks: e.Chunks, Lane: e.Lane})
		}
		if err := s.scheduleInTime(ctx, some); err != nil {
			s.log.Warn(
				"ordered, and not on the agenda after it",
				"batch_id",
				some[0].ID.String(),
				"batches",
				len(some),
				"err",
				err,
			)
			all = false
		}
	}
	return all
}

func (s *Service) scheduleInTime(ctx context.Context, entries []models.AgendaEntry) error {
	ctx, cancel := context.WithTimeout(ctx, goOnTime)
	defer cancel()
	return s.store.Schedule(ctx, entries...)
}
