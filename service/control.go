package service

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// BatchControlResult tells what a command about a batch did.
type BatchControlResult struct {
	BatchID   models.ID          `json:"batch_id"`
	LogID     models.ID          `json:"log_id,omitzero"` // if one log was released
	Command   models.CommandKind `json:"command"`
	Changed   bool               `json:"changed"`   // false if the command was already in effect
	Stopped   bool               `json:"stopped"`   // state after the command
	Cancelled bool               `json:"cancelled"` // state after the command
	InFlight  *int               `json:"in_flight"` // recipients of calls in flight; nil if they could not be counted
	Warning   string             `json:"warning,omitempty"`
	Late      bool               `json:"-"` // the command may have to be repeated; Warning says so
	Waits     bool               `json:"-"` // the mail does not go out yet; Warning says why
}

// warn adds a warning.
func (o *BatchControlResult) warn(text string) { o.Warning = strings.TrimSpace(o.Warning + " " + text) }

// ControlBatch stops, resumes, cancels, retries or releases a batch. Only an operator
// resumes a batch that an operator stopped.
func (s *Service) ControlBatch(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	batch, why string,
	r Repeat,
) (BatchControlResult, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (BatchControlResult, error) {
		id, err := models.ParseBatchID(batch)
		if err != nil {
			return BatchControlResult{}, notFound("batch")
		}
		b, err := s.controllable(ctx, who, id)
		if err != nil {
			return BatchControlResult{}, err
		}
		return s.controlBatch(ctx, who, b, &models.Command{Kind: do, Batch: b.ID, Why: why, Request: claim.ID})
	})
}

// ReleaseLog sends one held or failed log again.
func (s *Service) ReleaseLog(
	ctx context.Context,
	who Caller,
	log, why string,
	r Repeat,
) (BatchControlResult, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (BatchControlResult, error) {
		id, err := models.ParseLogID(log)
		if err != nil {
			return BatchControlResult{}, notFound("log")
		}
		b, err := s.controllable(ctx, who, id.Batch())
		if err != nil {
			return BatchControlResult{}, err
		}
		if id.Recipient() > b.ChunkSize(id.ChunkNumber()) {
			return BatchControlResult{}, notFound("log")
		}
		entries, facts, err := s.store.Record(ctx, id.ChunkID())
		if err != nil {
			return BatchControlResult{}, storeError("read log", err)
		}
		rules, err := s.rules(ctx)
		if err != nil {
			return BatchControlResult{}, err
		}
		st := models.Resolve(b.ChunkSize(id.ChunkNumber()), entries, facts).Status(id.Recipient())
		if st.State == models.Queued || releasePending(rules, b, id, entries) {
			return s.alreadyReleased(ctx, rules, b, id, st.State == models.Queued), nil
		}
		if st.State != models.Failed || st.Reason.Hard() {
			return BatchControlResult{}, Fail(Conflict, "not_releasable",
				"Only a failed log can be released, unless its recipient or its mail was refused permanently.")
		}
		return s.controlBatch(ctx, who, b,
			&models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id, Why: why, Request: claim.ID})
	})
}

// alreadyReleased returns the result for a log that is queued or whose release is
// pending. In the latter case it requeues the batch, because the process that gave the
// command may have crashed before it did.
func (s *Service) alreadyReleased(
	ctx context.Context,
	rules *control.Rules,
	b *models.Batch,
	log models.ID,
	queued bool,
) BatchControlResult {
	out := BatchControlResult{BatchID: b.ID, LogID: log, Command: models.ReleaseBatch}
	out.Stopped, out.Cancelled = rules.Stopped(b.ID)
	if !queued && !s.requeue(ctx, requeueEntry(b)) {
		out.Late = true
		out.warn(lateWarning)
	}
	s.countInFlight(ctx, b, &out)
	s.warnOfWaiting(rules, b, &out)
	return out
}

// releasePending reports whether a log was released by a command that its ledger does not
// contain yet.
func releasePending(rules *control.Rules, b *models.Batch, log models.ID, entries []models.Entry) bool {
	rule := rules.Batch(b)
	return !b.Redacted && rule.Cancel == nil && slices.ContainsFunc(rule.Releases, func(r models.Command) bool {
		return r.Log == log && !slices.ContainsFunc(entries, func(e models.Entry) bool { return e.Command == r.Number })
	})
}

// controlBatch gives a command about a batch. Once the command is in effect, later
// failures become warnings.
func (s *Service) controlBatch(
	ctx context.Context,
	who Caller,
	b *models.Batch,
	c *models.Command,
) (BatchControlResult, error) {
	changed, err := s.appendBatchCommand(ctx, who, b, c)
	if err != nil {
		return BatchControlResult{}, err
	}
	out := BatchControlResult{BatchID: b.ID, LogID: c.Log, Command: c.Kind, Changed: changed}
	if needsRequeue(c.Kind) {
		if !c.Kind.Withholds() { // otherwise appendCommand has waited
			s.awaitPropagation(context.WithoutCancel(ctx))
		}
		if !s.requeue(ctx, requeueEntry(b)) {
			out.Late = true
			out.warn(lateWarning)
		}
	}
	rules := s.commandLog.Rules()
	out.Stopped, out.Cancelled = rules.Stopped(b.ID)
	s.countInFlight(ctx, b, &out)
	switch c.Kind { //nolint:exhaustive // commands about batches only
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

// StoppedByOperator returns the error for an owner who may not resume a batch.
func StoppedByOperator() *Error {
	return Fail(Forbidden, "stopped_by_operator",
		"An operator has stopped this batch, and only an operator can resume it.")
}

// appendBatchCommand appends a command about a batch to the command log. If the command
// may let mail go out, it first puts the batch on the agenda, so that the mail goes out
// even if this process ends right after the command.
func (s *Service) appendBatchCommand(
	ctx context.Context,
	who Caller,
	b *models.Batch,
	c *models.Command,
) (changed bool, err error) {
	if b.Redacted && (c.Kind == models.RetryBatch || c.Kind == models.ReleaseBatch) {
		return false, Fail(Conflict, "content_removed",
			"This batch cannot be sent again: its retention time is over, and its content and addresses were removed.")
	}
	if needsRequeue(c.Kind) {
		late := requeueEntry(b) // by then the command is in effect, or never will be
		late.Due = late.Due.Add(s.cfg.RetryTime)
		if err := s.store.Schedule(ctx, requeueEntry(b), late); err != nil {
			return false, storeError("schedule", err)
		}
	}
	cancelled, inEffect, allowed := false, false, true
	changed, err = s.appendCommand(ctx, who, c, func(rules *control.Rules) bool {
		var stopped, over bool
		stopped, over = rules.Stopped(b.ID)
		cancelled = over && c.Kind != models.CancelBatch && c.Kind != models.StopBatch
		switch c.Kind { //nolint:exhaustive // commands about batches only
		case models.StopBatch:
			by := rules.StoppedBy(b.ID)
			// An operator confirms an owner's stop, so that the owner cannot end it.
			return !over && (by == "" || by == b.User && who.by() != b.User)
		case models.ResumeBatch:
			allowed = over || who.mayRelease(rules.StoppedBy(b.ID), b.User)
			return stopped && !over && allowed
		}
		// A repeat of a request must not release the mail a second time.
		inEffect = slices.ContainsFunc(rules.Batch(b).Releases, func(r models.Command) bool {
			return r.Request == c.Request && !c.Request.IsZero()
		})
		return !over && !inEffect
	})
	if err == nil && cancelled {
		err = Fail(Conflict, "batch_cancelled", "The batch is cancelled and will never be sent.")
	}
	if err == nil && !allowed {
		err = StoppedByOperator()
	}
	return changed || inEffect, err
}

// needsRequeue reports whether workers have something to do for a batch after a command.
func needsRequeue(do models.CommandKind) bool { return do != models.StopBatch }

const (
	requeueAfter   = 2 * time.Second // from the command until the agenda requeues the batch
	requeueAtOnce  = 100             // agenda entries of one write
	requeueTimeout = 5 * time.Second // of one write
)

// requeueEntry returns the agenda entry that requeues a batch soon.
func requeueEntry(b *models.Batch) models.AgendaEntry {
	return models.AgendaEntry{
		Due:    time.Now().Add(requeueAfter),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Lane:   b.Lane,
	}
}

// requeue announces batches and puts them on the agenda again. It must be called when all
// workers know the commands: a worker that does not know them finds nothing to do and
// drops the batch. It reports whether the agenda has all batches.
func (s *Service) requeue(ctx context.Context, batches ...models.AgendaEntry) bool {
	ctx = context.WithoutCancel(ctx) // even if the client goes away
	all := true
	for some := range slices.Chunk(batches, requeueAtOnce) {
		for i := range some {
			e := &some[i]
			e.Due = time.Now().Add(requeueAfter)
			s.announce[e.Lane].Add(e.ID, e.Chunks, e.Lane)
		}
		if err := s.schedule(ctx, some); err != nil {
			s.log.Warn("command in effect, but the batches could not be put on the agenda",
				"batch_id", some[0].ID.String(), "batches", len(some), "err", err)
			all = false
		}
	}
	return all
}

func (s *Service) schedule(ctx context.Context, entries []models.AgendaEntry) error {
	ctx, cancel := context.WithTimeout(ctx, requeueTimeout)
	defer cancel()
	return s.store.Schedule(ctx, entries...)
}
