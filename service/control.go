package service

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// BatchControlResult tells what a command about a batch did, or what a dry run of it would
// do.
type BatchControlResult struct {
	BatchID models.ID          `json:"batch_id"`
	LogID   models.ID          `json:"log_id,omitzero"` // if one log was released
	Command models.CommandKind `json:"command"`
	DryRun  bool               `json:"dry_run,omitempty"` // the command was not given
	Changed bool               `json:"changed"`           // false if the command has nothing to change
	// Recipients is the number of recipients that the command reaches: those that a stop or
	// a cancellation withholds, a resumption sends, or a retry or release sends again.
	// It is 0 if nothing changed, and nil if they could not be counted.
	Recipients *int   `json:"recipients"`
	Stopped    bool   `json:"stopped"`   // state after the command
	Cancelled  bool   `json:"cancelled"` // state after the command
	InFlight   *int   `json:"in_flight"` // recipients of calls in flight; nil if they could not be counted
	Warning    string `json:"warning,omitempty"`
	Late       bool   `json:"-"` // the command may have to be repeated; Warning says so
	Waits      bool   `json:"-"` // the mail does not go out yet; Warning says why
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
	if err := CheckWhy(why); err != nil {
		return BatchControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, older bool) (BatchControlResult, error) {
		b, err := s.controllableBatch(ctx, who, batch)
		if err != nil {
			return BatchControlResult{}, err
		}
		if !older && !do.Withholds() { // a repeat may only fetch its answer
			if err := s.takeCommand(who, b.ID.String()); err != nil {
				return BatchControlResult{}, err
			}
		}
		return s.controlBatch(ctx, who, b, &models.Command{Kind: do, Batch: b.ID, Why: why, Request: claim.ID})
	})
}

// DryRunBatch returns what ControlBatch would do. It writes nothing.
func (s *Service) DryRunBatch(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	batch, why string,
) (BatchControlResult, error) {
	if err := CheckWhy(why); err != nil {
		return BatchControlResult{}, err
	}
	b, err := s.controllableBatch(ctx, who, batch)
	if err != nil {
		return BatchControlResult{}, err
	}
	if err := s.takeCommand(who, b.ID.String()); err != nil {
		return BatchControlResult{}, err
	}
	return s.dryRunBatch(ctx, who, b, &models.Command{Kind: do, Batch: b.ID})
}

// controllableBatch parses the ID of a batch and returns what controllable returns for it.
func (s *Service) controllableBatch(ctx context.Context, who Caller, batch string) (*models.Batch, error) {
	id, err := models.ParseBatchID(batch)
	if err != nil {
		return nil, notFound("batch")
	}
	return s.controllable(ctx, who, id)
}

// ReleaseLog sends one held or failed log again.
func (s *Service) ReleaseLog(
	ctx context.Context,
	who Caller,
	log, why string,
	r Repeat,
) (BatchControlResult, bool, error) {
	if err := CheckWhy(why); err != nil {
		return BatchControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, claim models.Claim, _ bool) (BatchControlResult, error) {
		b, id, err := s.controllableLog(ctx, who, log)
		if err != nil {
			return BatchControlResult{}, err
		}
		c := models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id, Why: why, Request: claim.ID}
		if err := s.checkReleasable(ctx, who, b, &c); err != nil {
			return BatchControlResult{}, err
		}
		return s.controlBatch(ctx, who, b, &c)
	})
}

// DryRunLog returns what ReleaseLog would do. It writes nothing.
func (s *Service) DryRunLog(ctx context.Context, who Caller, log, why string) (BatchControlResult, error) {
	if err := CheckWhy(why); err != nil {
		return BatchControlResult{}, err
	}
	b, id, err := s.controllableLog(ctx, who, log)
	if err != nil {
		return BatchControlResult{}, err
	}
	c := models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id}
	if err := s.checkReleasable(ctx, who, b, &c); err != nil {
		return BatchControlResult{}, err
	}
	return s.dryRunBatch(ctx, who, b, &c)
}

// controllableLog parses the ID of a log and returns it with its batch, which the caller
// may control.
func (s *Service) controllableLog(ctx context.Context, who Caller, log string) (*models.Batch, models.ID, error) {
	id, err := models.ParseLogID(log)
	if err != nil {
		return nil, id, notFound("log")
	}
	b, err := s.controllable(ctx, who, id.Batch())
	if err == nil && id.Recipient() > b.ChunkSize(id.ChunkNumber()) {
		err = notFound("log")
	}
	return b, id, err
}

// checkReleasable returns an error if the log of a command to release cannot be released.
// A log that was released before can: the command then changes nothing.
func (s *Service) checkReleasable(ctx context.Context, who Caller, b *models.Batch, c *models.Command) error {
	if err := s.commandLog.Sync(ctx); err != nil {
		return storeError("read command log", err)
	}
	rules := s.commandLog.Rules()
	if v := judge(rules, who, b, c); v.refused != nil || v.repeated != nil {
		return v.refused
	}
	chunk, r := c.Log.ChunkID(), c.Log.Recipient()
	entries, facts, err := s.store.Record(ctx, chunk)
	if err != nil {
		return storeError("read log", err)
	}
	v := models.Resolve(b.ChunkSize(chunk.ChunkNumber()), entries, facts)
	st := v.Status(r)
	released := st.State == models.Queued && slices.ContainsFunc(entries, func(e models.Entry) bool {
		return e.Kind == models.Release && e.Recipients.Has(r)
	})
	if released || st.State == models.Failed && !st.Reason.Hard() {
		return nil
	}
	return Fail(Conflict, "not_releasable",
		"Only a failed log can be released, unless its recipient or its mail was refused permanently.")
}

// controlBatch gives a command about a batch. Once the command is in effect, later
// failures become warnings.
func (s *Service) controlBatch(
	ctx context.Context,
	who Caller,
	b *models.Batch,
	c *models.Command,
) (BatchControlResult, error) {
	done, err := s.appendBatchCommand(ctx, who, b, c)
	if err != nil {
		return BatchControlResult{}, err
	}
	out := BatchControlResult{
		BatchID:    b.ID,
		LogID:      c.Log,
		Command:    c.Kind,
		Changed:    done.changed,
		Recipients: done.recipients,
	}
	if needsRequeue(c.Kind) && !done.idle {
		if !c.Kind.Withholds() { // otherwise appendCommand has waited
			s.awaitPropagation(context.WithoutCancel(ctx))
		}
		if !s.requeue(ctx, requeueEntry(b)) {
			out.Late = true
			out.warn(lateWarning)
		}
	}
	s.complete(ctx, s.commandLog.Rules(), b, &out)
	return out, nil
}

// dryRunBatch returns what controlBatch would do.
func (s *Service) dryRunBatch(
	ctx context.Context,
	who Caller,
	b *models.Batch,
	c *models.Command,
) (BatchControlResult, error) {
	if err := s.commandLog.Sync(ctx); err != nil {
		return BatchControlResult{}, storeError("read command log", err)
	}
	rules := s.commandLog.Rules()
	verdict := judge(rules, who, b, c)
	if verdict.refused != nil {
		return BatchControlResult{}, verdict.refused
	}
	out := BatchControlResult{BatchID: b.ID, LogID: c.Log, Command: c.Kind, DryRun: true, Changed: verdict.wanted}
	if sendsAgain(c.Kind) {
		reached, err := s.releaseReach(ctx, rules, b, c)
		if err != nil {
			return BatchControlResult{}, storeError("count recipients", err)
		}
		out.Changed, out.Recipients = reached.recipients > 0, &reached.recipients
	}
	s.complete(ctx, rules, b, &out)
	return out, nil
}

// complete sets the state of the batch, the counts and the warnings of a result.
func (s *Service) complete(ctx context.Context, rules *control.Rules, b *models.Batch, out *BatchControlResult) {
	out.Stopped, out.Cancelled = rules.Stopped(b.ID)
	s.countInFlight(ctx, b, out)
	switch out.Command { //nolint:exhaustive // commands about batches only
	case models.StopBatch, models.CancelBatch:
		if out.InFlight == nil || *out.InFlight > 0 {
			out.warn(inFlightWarning)
		}
		return
	case models.RetryBatch:
		if !out.Changed {
			out.warn(noneFailed)
		}
	case models.ReleaseBatch:
		switch {
		case out.Changed:
			out.warn(mayDoubleWarning)
		case out.LogID.IsZero():
			out.warn(noneHeld)
		}
	}
	s.warnOfWaiting(rules, b, out)
}

// StoppedByOperator returns the error for an owner who may not resume a batch.
func StoppedByOperator() *Error {
	return Fail(Forbidden, "stopped_by_operator",
		"An operator has stopped this batch, and only an operator can resume it.")
}

// verdict is what the rules say about a command about a batch.
type verdict struct {
	wanted   bool            // the command would change the rules
	repeated *models.Command // the command that an earlier attempt of the request gave; nil: none
	refused  error           // why the command is not allowed
}

// judge returns what the rules say about a command about a batch.
func judge(rules *control.Rules, who Caller, b *models.Batch, c *models.Command) (v verdict) {
	stopped, cancelled := rules.Stopped(b.ID)
	by := rules.StoppedBy(b.ID)
	switch {
	case b.Redacted && sendsAgain(c.Kind):
		v.refused = Fail(Conflict, "content_removed",
			"This batch cannot be sent again: its retention time is over, and its content and addresses were removed.")
	case cancelled && c.Kind != models.CancelBatch && c.Kind != models.StopBatch:
		v.refused = Fail(Conflict, "batch_cancelled", "The batch is cancelled and will never be sent.")
	case c.Kind == models.StopBatch:
		// An operator confirms an owner's stop, so that the owner cannot end it.
		v.wanted = !cancelled && (by == "" || by == b.User && who.by() != b.User)
	case c.Kind == models.ResumeBatch && !who.mayRelease(by, b.User):
		v.refused = StoppedByOperator()
	case c.Kind == models.ResumeBatch:
		v.wanted = stopped
	case c.Kind == models.CancelBatch:
		v.wanted = !cancelled
	default:
		// A repeat of a request must not release the mail a second time.
		releases := rules.Batch(b).Releases
		i := slices.IndexFunc(releases, func(r models.Command) bool {
			return r.Request == c.Request && !c.Request.IsZero()
		})
		if v.wanted = i < 0; i >= 0 {
			v.repeated = &releases[i]
		}
	}
	return v
}

// sendsAgain reports whether a command sends mail again that has failed or is held.
func sendsAgain(do models.CommandKind) bool {
	return do == models.RetryBatch || do == models.ReleaseBatch
}

// appended tells what appendBatchCommand did.
type appended struct {
	changed    bool
	recipients *int // of a retry or release
	idle       bool // there is nothing that workers could do
}

// appendBatchCommand appends a command about a batch to the command log. If the command
// may let mail go out, it first puts the batch on the agenda, so that the mail goes out
// even if this process ends right after the command. A retry or release that reaches no
// recipient is not appended.
func (s *Service) appendBatchCommand(
	ctx context.Context,
	who Caller,
	b *models.Batch,
	c *models.Command,
) (appended, error) {
	for {
		if err := s.commandLog.Sync(ctx); err != nil {
			return appended{}, storeError("read command log", err)
		}
		rules := s.commandLog.Rules()
		verdict := judge(rules, who, b, c)
		if verdict.refused != nil {
			return appended{}, verdict.refused
		}
		if verdict.repeated != nil {
			return s.releasedBefore(ctx, rules, b, verdict.repeated)
		}
		if !verdict.wanted {
			if c.Kind.Withholds() {
				s.awaitPropagation(ctx) // the command in effect may be a moment old
			}
			return appended{}, nil
		}
		var reached reach
		if sendsAgain(c.Kind) {
			var err error
			if reached, err = s.releaseReach(ctx, rules, b, c); err != nil {
				return appended{}, storeError("count recipients", err)
			}
			if reached.recipients == 0 {
				return appended{recipients: new(int), idle: !reached.pending}, nil
			}
			if c.Chunks = nil; c.Log.IsZero() && len(reached.chunks) <= maxChunksNamed {
				c.Chunks = reached.chunks
			}
		}
		if needsRequeue(c.Kind) {
			late := requeueEntry(b) // by then the command is in effect, or never will be
			late.Due = late.Due.Add(s.cfg.RetryTime)
			if err := s.store.Schedule(ctx, requeueEntry(b), late); err != nil {
				return appended{}, storeError("schedule", err)
			}
		}
		changed, err := s.appendCommand(ctx, who, c, func(rules *control.Rules) bool {
			verdict = judge(rules, who, b, c)
			rule := rules.Batch(b)
			return verdict.wanted && (!sendsAgain(c.Kind) || newestRelease(&rule) == reached.newest)
		})
		switch {
		case err != nil:
			return appended{}, err
		case verdict.refused != nil && !changed:
			return appended{}, verdict.refused
		case !sendsAgain(c.Kind):
			return appended{changed: changed}, nil
		case changed:
			return appended{changed: true, recipients: &reached.recipients}, nil
		}
		// Another retry or release came first. It may leave nothing to do.
	}
}

// releasedBefore returns the result of a retry or release whose request was repeated.
func (s *Service) releasedBefore(
	ctx context.Context,
	rules *control.Rules,
	b *models.Batch,
	c *models.Command,
) (appended, error) {
	n, err := s.releasedBy(ctx, rules, b, c)
	if err != nil {
		return appended{}, storeError("count recipients", err)
	}
	return appended{changed: true, recipients: &n}, nil
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
