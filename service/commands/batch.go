// Package commands stops, resumes, cancels, tries, retries and releases mail, and changes its times.
package commands

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Deps holds what Commands use.
type Deps struct {
	Store     models.Store
	Audit     *audit.Trail
	Guard     *idempotency.Guard
	Limits    *people.Limits
	Mail      *mail.Reader
	Providers []models.Provider
	Known     map[string]bool // names of the providers
	RetryTime time.Duration   // how long a write with an unknown outcome is retried
	// Intake returns the limits and defaults of a request of a caller.
	Intake func(ctx context.Context, who caller.Caller) intake.Config
	// Announce publishes the messages of a batch with so many chunks.
	Announce func(batch models.ID, chunks int, lane models.Lane)
	Log      *slog.Logger
}

// Commands are about batches and logs. Its methods may be called by many goroutines at once.
type Commands struct{ Deps }

// New returns the commands about the mail of a store.
func New(d Deps) *Commands { return &Commands{d} }

// Result says what a command about a batch did, or what a dry run of it would do.
type Result struct {
	BatchID models.ID          `json:"batch_id"`
	LogID   models.ID          `json:"log_id,omitzero"` // if one log was released
	Command models.CommandKind `json:"command"`
	DryRun  bool               `json:"dry_run,omitempty"` // the command was not given
	Changed bool               `json:"changed"`           // false if the command has nothing to change
	// Recipients is the number of recipients that the command reaches. A stop or a cancellation withholds their mail, a
	// resumption sends it, a retry or release sends it again, and new times apply to it. It is 0 if nothing changed, and
	// nil if they could not be counted.
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
func (o *Result) warn(text string) { o.Warning = strings.TrimSpace(o.Warning + " " + text) }

// Batch stops, resumes, cancels, tries, retries or releases a batch. Only an operator
// resumes a batch that an operator stopped.
func (s *Commands) Batch(
	ctx context.Context, who caller.Caller, do models.CommandKind, batch, why string, r idempotency.Repeat,
) (Result, bool, error) {
	if err := audit.CheckWhy(why); err != nil {
		return Result{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, claim models.Claim, older bool) (Result, error) {
			b, err := s.controllableBatch(ctx, who, batch)
			if err != nil {
				return Result{}, err
			}
			if !older && !do.Withholds() { // a repeat may only fetch its answer
				if err := s.Limits.TakeCommand(who, b.ID.String()); err != nil {
					return Result{}, err
				}
			}
			return s.controlBatch(ctx, who, b, &models.Command{Kind: do, Batch: b.ID, Why: why, Request: claim.ID})
		})
}

// DryRunBatch returns what Batch would do. It writes nothing.
func (s *Commands) DryRunBatch(
	ctx context.Context, who caller.Caller, do models.CommandKind, batch, why string,
) (Result, error) {
	if err := audit.CheckWhy(why); err != nil {
		return Result{}, err
	}
	b, err := s.controllableBatch(ctx, who, batch)
	if err != nil {
		return Result{}, err
	}
	if err := s.Limits.TakeCommand(who, b.ID.String()); err != nil {
		return Result{}, err
	}
	return s.dryRunBatch(ctx, who, b, &models.Command{Kind: do, Batch: b.ID})
}

// Reschedule has new times of a batch.
type Reschedule struct {
	Batch        string // ID
	intake.Times        // those that are named
	client.Reason
}

// Reschedule changes the times of a batch that has not begun.
func (s *Commands) Reschedule(
	ctx context.Context, who caller.Caller, in Reschedule, r idempotency.Repeat,
) (Result, bool, error) {
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, older bool) (Result, error) {
			return s.reschedule(ctx, who, in, older, s.controlBatch)
		})
}

// DryRunReschedule returns what Reschedule would do. It writes nothing.
func (s *Commands) DryRunReschedule(ctx context.Context, who caller.Caller, in Reschedule) (Result, error) {
	return s.reschedule(ctx, who, in, false, s.dryRunBatch)
}

// reschedule has do give the command. older reports whether the request may be a repeat.
func (s *Commands) reschedule(ctx context.Context, who caller.Caller, in Reschedule, older bool,
	do func(context.Context, caller.Caller, *models.Batch, *models.Command) (Result, error),
) (out Result, err error) {
	if err := audit.CheckWhy(in.Why); err != nil {
		return out, err
	}
	stored, err := s.controllableBatch(ctx, who, in.Batch)
	if err == nil && !older {
		err = s.Limits.TakeCommand(who, stored.ID.String())
	}
	c := s.Intake(ctx, who)
	for err == nil {
		rules, err := s.Audit.Newest(ctx)
		if err != nil {
			return out, err
		}
		b := rules.Scheduled(stored)
		times, err := c.Change(&in.Times, b, time.Now())
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
		return false, problem.New(problem.Conflict, "own_times",
			"All recipients of the batch have times of their own, which cannot be changed.")
	case now.Schedule().Equal(*c.Schedule):
		return false, nil
	case !now.Schedule().Equal(b.Schedule()):
		return false, errOvertaken
	case now.MayLeave(from, false).Before(time.Now().Add(beforeBegin)):
		return false, problem.New(problem.Conflict, "batch_begun",
			"The batch has begun, or begins within two seconds, so its times cannot be changed.")
	}
	return true, nil
}

// controllableBatch parses the ID of a batch and returns what controllable returns for it.
func (s *Commands) controllableBatch(ctx context.Context, who caller.Caller, batch string) (*models.Batch, error) {
	id, err := models.ParseBatchID(batch)
	if err != nil {
		return nil, problem.NotYours("batch")
	}
	return s.Mail.Controllable(ctx, who, id)
}

// controlBatch gives a command about a batch. Once the command is in effect, later failures become warnings.
func (s *Commands) controlBatch(
	ctx context.Context, who caller.Caller, b *models.Batch, c *models.Command,
) (Result, error) {
	done, err := s.appendBatchCommand(ctx, who, b, c)
	if err != nil {
		return Result{}, err
	}
	out := Result{
		BatchID:    b.ID,
		LogID:      c.Log,
		Command:    c.Kind,
		Changed:    done.changed,
		Recipients: done.recipients,
		Schedule:   c.Schedule,
	}
	if needsRequeue(c) && !done.idle {
		if !c.Kind.Withholds() { // otherwise Append has waited
			s.Audit.Await(context.WithoutCancel(ctx))
		}
		if !s.requeue(ctx, requeueEntry(b)) {
			out.Late = true
			out.warn(lateWarning)
		}
	}
	s.complete(ctx, s.Audit.Known(), b, &out)
	return out, nil
}

// dryRunBatch returns what controlBatch would do.
func (s *Commands) dryRunBatch(
	ctx context.Context, who caller.Caller, b *models.Batch, c *models.Command,
) (Result, error) {
	rules, err := s.Audit.Newest(ctx)
	if err != nil {
		return Result{}, err
	}
	verdict := judge(rules, who, b, c)
	if verdict.refused != nil {
		return Result{}, verdict.refused
	}
	out := Result{
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
			return Result{}, problem.FromStore("count recipients", err)
		}
		out.Changed, out.Recipients = reached.recipients > 0, &reached.recipients
	}
	s.complete(ctx, rules, b, &out)
	return out, nil
}

// complete sets the state of the batch, the counts and the warnings of a result.
func (s *Commands) complete(ctx context.Context, rules *control.Rules, b *models.Batch, out *Result) {
	out.Stopped, out.Cancelled = rules.Stopped(b.ID)
	s.countInFlight(ctx, b, out)
	switch out.Command { // commands about batches only
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
		s.warnOfSuspended(ctx, b, out)
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
func StoppedByOperator() *problem.Error {
	return problem.New(problem.Forbidden, "stopped_by_operator",
		"An operator has stopped this batch, and only an operator can resume it.")
}

// verdict is what the rules say about a command about a batch.
type verdict struct {
	wanted   bool            // the command would change the rules
	repeated *models.Command // the command that an earlier attempt of the request gave; nil: none
	refused  error           // why the command is not allowed
}

// judge returns what the rules say about a command about a batch.
func judge(rules *control.Rules, who caller.Caller, b *models.Batch, c *models.Command) (v verdict) {
	stopped, cancelled := rules.Stopped(b.ID)
	by := rules.StoppedBy(b.ID)
	switch {
	case b.Redacted && sendsAgain(c.Kind):
		v.refused = problem.New(problem.Conflict, "content_removed",
			"This batch cannot be sent again: its retention time is over, and its content and addresses were removed.")
	case cancelled && c.Kind != models.CancelBatch && c.Kind != models.StopBatch:
		v.refused = problem.New(problem.Conflict, "batch_cancelled", "The batch is cancelled and will never be sent.")
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

// appended says what appendBatchCommand did.
type appended struct {
	changed    bool
	recipients *int // of a retry or release
	idle       bool // there is nothing that workers could do
}

// appendBatchCommand appends a command about a batch to the command log. If the command may let mail go out, it first
// puts the batch on the agenda, so that the mail goes out even if this process ends right after the command. A retry or
// release that reaches no recipient is not appended.
func (s *Commands) appendBatchCommand(
	ctx context.Context, who caller.Caller, b *models.Batch, c *models.Command,
) (appended, error) {
	for {
		rules, err := s.Audit.Newest(ctx)
		if err != nil {
			return appended{}, err
		}
		verdict := judge(rules, who, b, c)
		if verdict.refused != nil {
			return appended{}, verdict.refused
		}
		if verdict.repeated != nil {
			return s.releasedBefore(ctx, rules, b, verdict.repeated)
		}
		if !verdict.wanted {
			if c.Kind.Withholds() {
				s.Audit.Await(ctx) // the command in effect may be a moment old
			}
			return appended{}, nil
		}
		var reached reach
		if counted(c.Kind) {
			var err error
			if reached, err = s.releaseReach(ctx, rules, b, c); err != nil {
				return appended{}, problem.FromStore("count recipients", err)
			}
			if reached.recipients == 0 {
				return appended{recipients: new(int), idle: !reached.pending}, nil
			}
			if c.Chunks = nil; sendsAgain(c.Kind) && c.Log.IsZero() && len(reached.chunks) <= maxChunksNamed {
				c.Chunks = reached.chunks
			}
		}
		if err := s.scheduleCommand(ctx, b, c); err != nil {
			return appended{}, problem.FromStore("schedule", err)
		}
		changed, err := s.Audit.Append(ctx, who, c, func(rules *control.Rules) bool {
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
func (s *Commands) scheduleCommand(ctx context.Context, b *models.Batch, c *models.Command) error {
	if c.Kind == models.StopBatch {
		return nil
	}
	err := s.Store.Schedule(ctx, s.requeueEntries(b, c)...)
	if err == nil && c.Schedule != nil {
		err = mail.PutDues(ctx, s.Store, b.Rescheduled(c.Schedule))
	}
	return err
}

// releasedBefore returns the result of a retry or release whose request was repeated.
func (s *Commands) releasedBefore(
	ctx context.Context, rules *control.Rules, b *models.Batch, c *models.Command,
) (appended, error) {
	n, err := s.releasedBy(ctx, rules, b, c)
	if err != nil {
		return appended{}, problem.FromStore("count recipients", err)
	}
	return appended{changed: true, recipients: &n}, nil
}

// needsRequeue reports whether workers have something to do for a batch after a command.
func needsRequeue(c *models.Command) bool {
	later := c.Schedule != nil && c.Schedule.DeliverAt.After(time.Now().Add(requeueAfter)) // the agenda has it
	return c.Kind != models.StopBatch && !later
}

// noneToTry is the warning of a batch.try that changes nothing.
const noneToTry = "No mail of this batch waits for another attempt."

// counted reports whether the recipients that a command reaches are counted before it is given. A command that reaches
// none is not given.
func counted(do models.CommandKind) bool { return sendsAgain(do) || do == models.TryBatch }

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

// requeueEntries returns entries that find a batch after a command, even if this process ends right after it. One is
// for soon, and one for when the command is in effect or never will be. If the batch gets another time, they are not
// due before.
func (s *Commands) requeueEntries(b *models.Batch, c *models.Command) []models.AgendaEntry {
	soon := requeueEntry(b)
	late := soon
	late.Due = late.Due.Add(s.RetryTime)
	if c.Schedule != nil {
		soon.Round, late.Round = 1, 1 // nothing is to be done for it until its time
		soon.Due = models.LaterOf(soon.Due, c.Schedule.DeliverAt)
		late.Due = models.LaterOf(late.Due, c.Schedule.DeliverAt)
	}
	return []models.AgendaEntry{soon, late}
}

// requeue announces batches and puts them on the agenda again. It must be called when all
// workers know the commands: a worker that does not know them finds nothing to do and
// drops the batch. It reports whether the agenda has all batches.
func (s *Commands) requeue(ctx context.Context, batches ...models.AgendaEntry) bool {
	ctx = context.WithoutCancel(ctx) // even if the client goes away
	all := true
	for some := range slices.Chunk(batches, requeueAtOnce) {
		for i := range some {
			e := &some[i]
			e.Due = time.Now().Add(requeueAfter)
			s.Announce(e.ID, e.Chunks, e.Lane)
		}
		if err := s.schedule(ctx, some); err != nil {
			s.Log.Warn("command in effect, but the batches could not be put on the agenda",
				"batch_id", some[0].ID.String(), "batches", len(some), "err", err)
			all = false
		}
	}
	return all
}

func (s *Commands) schedule(ctx context.Context, entries []models.AgendaEntry) error {
	ctx, cancel := context.WithTimeout(ctx, requeueTimeout)
	defer cancel()
	return s.Store.Schedule(ctx, entries...)
}

// warnOfSuspended adds a warning if every provider that a batch may use is suspended. A suspended provider is tried
// only when its suspension ends.
func (s *Commands) warnOfSuspended(ctx context.Context, b *models.Batch, out *Result) {
	w, err := s.Mail.Waiting(ctx)
	if err != nil || !out.Changed {
		return
	}
	if until := w.Suspended(b); len(until) > 0 {
		out.warn("Its providers are suspended, so it waits for the first of them: " + strings.Join(until, ", ") + ".")
	}
}

// Warnings in the results of commands.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The recipients could not be counted."
	noneFailed       = "No mail of this batch has failed that can be sent again without the risk of a second copy."
	noneHeld         = "No mail of this batch is held."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: " +
		"repeat the command if nothing moves within a minute."
)

// warnOfWaiting adds a warning if mail of a batch still waits for something after a command that should let it go out.
func (s *Commands) warnOfWaiting(rules *control.Rules, b *models.Batch, out *Result) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet. It will when " + strings.Join(waits, ", and ") + ".")
	}
}

// waitsFor returns what must happen before mail of a batch can go out. It ignores block
// rules for a provider or for a recipient's domain, which affect only some of the mail.
func (s *Commands) waitsFor(rules *control.Rules, b *models.Batch) []string {
	var out []string
	if rules.StoppedBy(b.ID) != "" {
		out = append(out, "the batch is resumed")
	}
	if rules.Paused(b.User) {
		out = append(out, "the user is resumed")
	}
	if slices.ContainsFunc(rules.Holds(), func(h models.Command) bool { return b.Created().Before(h.Before) }) {
		out = append(out, "an operator lifts the hold that followed a restore")
	}
	if slices.ContainsFunc(rules.Blocks(), func(bl models.Block) bool { return !bl.Fail && bl.Meets(b, "", "") }) {
		out = append(out, "the block rule for it is removed")
	}
	if s.allOffline(rules, b) {
		out = append(out, "a provider that it may use is online")
	}
	return out
}

// allOffline reports whether every provider that a batch may use is offline.
func (s *Commands) allOffline(rules *control.Rules, b *models.Batch) bool {
	for i := range s.Providers {
		name := s.Providers[i].Name
		if (len(b.Providers) == 0 || slices.Contains(b.Providers, name)) &&
			rules.Provider(name).Mode != models.ProviderOffline {
			return false
		}
	}
	return len(s.Providers) > 0
}
