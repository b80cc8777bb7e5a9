package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/intake"
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
	// a cancellation withholds, a resumption sends, a retry or release sends again, or new times apply to.
	// It is 0 if nothing changed, and nil if they could not be counted.
	Recipients       *int   `json:"recipients"`
	Stopped          bool   `json:"stopped"`   // state after the command
	Cancelled        bool   `json:"cancelled"` // state after the command
	InFlight         *int   `json:"in_flight"` // recipients of calls in flight; nil if they could not be counted
	*models.Schedule        // of batch.reschedule: the times after the command
	Warning          string `json:"warning,omitempty"`
	Late             bool   `json:"-"` // the command may have to be repeated; Warning says so
	Waits            bool   `json:"-"` // the mail does not go out yet; Warning says why
}

// warn adds a warning.
func (o *BatchControlResult) warn(text string) { o.Warning = strings.TrimSpace(o.Warning + " " + text) }

// ControlBatch stops, resumes, cancels, tries, retries or releases a batch. Only an operator
// resumes a batch that an operator stopped.
func (s *Service) ControlBatch(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	batch, why string,
	r Repeat,
) (BatchControlResult, bool, error) {
	if err := checkWhy(why); err != nil {
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
	if err := checkWhy(why); err != nil {
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

// Reschedule names the times of a batch that are to be changed.
type Reschedule struct {
	Batch string       // ID
	Times intake.Times // those that are named
	Why   string
}

// RescheduleBatch changes the times of a batch that has not begun.
func (s *Service) RescheduleBatch(
	ctx context.Context, who Caller, in Reschedule, r Repeat,
) (BatchControlResult, bool, error) {
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, older bool) (BatchControlResult, error) {
		return s.reschedule(ctx, who, in, older, s.controlBatch)
	})
}

// DryRunReschedule returns what RescheduleBatch would do. It writes nothing.
func (s *Service) DryRunReschedule(ctx context.Context, who Caller, in Reschedule) (BatchControlResult, error) {
	return s.reschedule(ctx, who, in, false, s.dryRunBatch)
}

// reschedule has do give the command. older reports whether the request may be a repeat.
func (s *Service) reschedule(ctx context.Context, who Caller, in Reschedule, older bool,
	do func(context.Context, Caller, *models.Batch, *models.Command) (BatchControlResult, error),
) (out BatchControlResult, err error) {
	if err := checkWhy(in.Why); err != nil {
		return out, err
	}
	stored, err := s.controllableBatch(ctx, who, in.Batch)
	if err == nil && !older {
		err = s.takeCommand(who, stored.ID.String())
	}
	asked := s.NewIntake(ctx, who)
	defer asked.Close()
	for err == nil {
		if err := s.commandLog.Sync(ctx); err != nil {
			return out, storeError("read command log", err)
		}
		b := s.commandLog.Rules().Scheduled(stored)
		times, err := asked.Change(&in.Times, b, time.Now())
		if err != nil {
			return out, err
		}
		out, err = do(ctx, who, b, &models.Command{
			Kind:     models.RescheduleBatch,
			Batch:    b.ID,
			Why:      in.Why,
			Schedule: &times,
		})
		if !errors.Is(err, errOvertaken) {
			return out, err
		}
	}
	return out, err
}

// errOvertaken reports that another command has changed the times of a batch meanwhile.
var errOvertaken = errors.New("the times were changed meanwhile")

// beforeBegin is how long before a batch begins its times can be changed at the latest. No worker that knows the former
// times, or whose clock is a moment ahead, has begun by then.
const beforeBegin = 2 * time.Second

// judgeReschedule is judge for a command about the times of a batch, which was made for the times that b has.
func judgeReschedule(rules *control.Rules, b *models.Batch, c *models.Command) (wanted bool, refused error) {
	rule := rules.Batch(b)
	now, from := rule.Scheduled(b), b.Created()
	if rule.Reschedule != nil {
		from = rule.Reschedule.At
	}
	switch {
	case b.OwnFrom() == 0:
		return false, Fail(Conflict, "own_times",
			"All recipients of the batch have times of their own, which cannot be changed.")
	case now.Schedule().Equal(*c.Schedule):
		return false, nil
	case !now.Schedule().Equal(b.Schedule()):
		return false, errOvertaken
	case now.MayLeave(from, false).Before(time.Now().Add(beforeBegin)):
		return false, Fail(Conflict, "batch_begun",
			"The batch has begun, or begins within two seconds, so its times cannot be changed.")
	}
	return true, nil
}

// controllableBatch parses the ID of a batch and returns what controllable returns for it.
func (s *Service) controllableBatch(ctx context.Context, who Caller, batch string) (*models.Batch, error) {
	id, err := models.ParseBatchID(batch)
	if err != nil {
		return nil, notFound("batch")
	}
	return s.controllable(ctx, who, id)
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
		Schedule:   c.Schedule,
	}
	if needsRequeue(c) && !done.idle {
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
	out := BatchControlResult{
		BatchID:  b.ID,
		LogID:    c.Log,
		Command:  c.Kind,
		DryRun:   true,
		Changed:  verdict.wanted,
		Schedule: c.Schedule,
	}
	if counted(c.Kind) {
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
	case models.RescheduleBatch:
		if out.InFlight != nil && *out.InFlight > 0 {
			out.warn(inFlightWarning)
		}
	case models.TryBatch:
		if !out.Changed {
			out.warn(noneToTry)
		}
		warnOfSuspended(ctx, s, b, out)
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
		v.wanted = !cancelled && (by == "" || by == b.User && who.Name() != b.User)
	case c.Kind == models.ResumeBatch && !who.MayRelease(by, b.User):
		v.refused = StoppedByOperator()
	case c.Kind == models.ResumeBatch:
		v.wanted = stopped
	case c.Kind == models.CancelBatch:
		v.wanted = !cancelled
	case c.Kind == models.RescheduleBatch:
		v.wanted, v.refused = judgeReschedule(rules, b, c)
	case c.Kind == models.TryBatch:
		newest := rules.Batch(b).Try
		v.wanted = newest == nil || newest.Request != c.Request || c.Request.IsZero()
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
		if counted(c.Kind) {
			var err error
			if reached, err = s.releaseReach(ctx, rules, b, c); err != nil {
				return appended{}, storeError("count recipients", err)
			}
			if reached.recipients == 0 {
				return appended{recipients: new(int), idle: !reached.pending}, nil
			}
			if c.Chunks = nil; sendsAgain(c.Kind) && c.Log.IsZero() && len(reached.chunks) <= maxChunksNamed {
				c.Chunks = reached.chunks
			}
		}
		if err := s.scheduleCommand(ctx, b, c); err != nil {
			return appended{}, storeError("schedule", err)
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
		case !counted(c.Kind):
			return appended{changed: changed}, nil
		case changed || c.Kind == models.TryBatch:
			return appended{changed: true, recipients: &reached.recipients}, nil
		}
		// Another retry or release came first. It may leave nothing to do.
	}
}

// scheduleCommand puts the batch of a command on the agenda, if the command may let mail go out.
func (s *Service) scheduleCommand(ctx context.Context, b *models.Batch, c *models.Command) error {
	if c.Kind == models.StopBatch {
		return nil
	}
	err := s.store.Schedule(ctx, s.requeueEntries(b, c)...)
	if err == nil && c.Schedule != nil {
		err = s.putDues(ctx, b.Rescheduled(c.Schedule))
	}
	return err
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
func needsRequeue(c *models.Command) bool {
	later := c.Schedule != nil && c.Schedule.DeliverAt.After(time.Now().Add(requeueAfter)) // the agenda has it
	return c.Kind != models.StopBatch && !later
}
