package commands

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/problem"
)

// maxReleaseRange is the longest time range of a Release.
const maxReleaseRange = 31 * 24 * time.Hour

// ReleaseRange releases all selected mail that is held because its outcome is unknown: of
// the caller's batches, or of all batches if the caller is an operator.
func (s *Commands) ReleaseRange(
	ctx context.Context, who caller.Caller, rel client.Release, r idempotency.Repeat,
) (client.ReleaseResult, bool, error) {
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, claim models.Claim, _ bool) (client.ReleaseResult, error) {
			return s.releaseRange(ctx, &releaseRun{Release: rel, svc: s, who: who, request: claim.ID})
		})
}

// DryRunRange returns what ReleaseRange would do. It writes nothing.
func (s *Commands) DryRunRange(
	ctx context.Context, who caller.Caller, rel client.Release,
) (client.ReleaseResult, error) {
	return s.releaseRange(ctx, &releaseRun{Release: rel, svc: s, who: who, dryRun: true})
}

func (s *Commands) releaseRange(ctx context.Context, run *releaseRun) (client.ReleaseResult, error) {
	if err := s.checkRelease(run.who, &run.Release); err != nil {
		return client.ReleaseResult{}, err
	}
	users := []models.User{{ID: run.who.User}}
	if run.who.May(models.ScopeOperate) {
		var err error
		if users, err = s.Store.Users(ctx); err != nil {
			return client.ReleaseResult{}, problem.FromStore("list users", err)
		}
	}
	_, err := s.Audit.Rules(ctx)
	for i := 0; i < len(users) && err == nil; i++ {
		err = run.user(ctx, users[i].ID)
	}
	return run.finish(ctx, err)
}

func (s *Commands) checkRelease(who caller.Caller, rel *client.Release) error {
	if !who.May(models.ScopeOperate) {
		if err := who.Need(models.ScopeSend); err != nil {
			return err
		}
	}
	var f problem.Form
	if rel.Provider != "" && !s.Known[rel.Provider] {
		f.Wrong("/provider", "unknown_provider", "No provider is called %s.%s", problem.Quote(rel.Provider),
			intake.MeantProvider(rel.Provider, s.Known))
	}
	if rel.From.IsZero() {
		f.Wrong("/from", "required", "from is missing: the start of the time range.")
	}
	if rel.To.IsZero() {
		f.Wrong("/to", "required", "to is missing: the end of the time range.")
	}
	if !rel.From.IsZero() && !rel.To.IsZero() && (rel.To.Before(rel.From) || rel.To.Sub(rel.From) > maxReleaseRange) {
		f.Wrong("/to", "invalid_value", "to must not be before from, and at most 31 days after it.")
	}
	audit.WrongWhy(&f, rel.Why)
	return f.Err()
}

// SendSelected sends logs and whole batches again that the caller may control. They have failed and cannot arrive twice
// (RetryBatch), or are held because their outcome is unknown (ReleaseBatch). Others of them stay as they are.
func (s *Commands) SendSelected(
	ctx context.Context, who caller.Caller, do models.CommandKind, ids []models.ID, why string, r idempotency.Repeat,
) (client.ReleaseResult, bool, error) {
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, claim models.Claim, _ bool) (client.ReleaseResult, error) {
			run := releaseRun{Release: client.Release{Why: why}, svc: s, who: who, do: do, request: claim.ID}
			return s.sendSelected(ctx, &run, ids)
		})
}

// DryRunSelected returns what SendSelected would do. It writes nothing.
func (s *Commands) DryRunSelected(
	ctx context.Context, who caller.Caller, do models.CommandKind, ids []models.ID,
) (client.ReleaseResult, error) {
	return s.sendSelected(ctx, &releaseRun{svc: s, who: who, do: do, dryRun: true}, ids)
}

func (s *Commands) sendSelected(ctx context.Context, run *releaseRun, ids []models.ID) (client.ReleaseResult, error) {
	if len(ids) > mail.MaxSelected {
		return client.ReleaseResult{}, problem.New(problem.Invalid, "invalid_request",
			"Select at most %d at a time.", mail.MaxSelected)
	}
	if err := s.Limits.TakeCommand(run.who, "selected"); err != nil {
		return client.ReleaseResult{}, err
	}
	if err := audit.CheckWhy(run.Why); err != nil {
		return client.ReleaseResult{}, err
	}
	commands := map[models.ID]*models.Command{} // by chunk, or by batch
	for _, id := range ids {
		part, c := id.ChunkID(), models.Command{Kind: run.do, Batch: id.Batch(), Why: run.Why}
		if r := id.Recipient(); r > 0 {
			c.Log = id
			if commands[part] != nil {
				c.Logs = commands[part].Logs
			}
			c.Logs.Add(r)
		}
		sum := sha256.Sum256(append(run.request[:], part[:]...)) // a repeat gives the same commands
		c.Request = run.request
		copy(c.Request[9:], sum[:]) // the first bytes make it a UUID
		commands[part] = &c
	}
	_, err := s.Audit.Rules(ctx)
	for _, part := range slices.SortedFunc(maps.Keys(commands), models.ID.Compare) {
		if err != nil {
			break
		}
		c := commands[part]
		var b *models.Batch
		if b, err = s.Mail.Controllable(ctx, run.who, c.Batch); err == nil && !c.Log.IsZero() &&
			c.Log.ChunkNumber() >= b.Chunks {
			err = problem.NotYours("log")
		}
		if err == nil && !b.Damaged {
			err = run.command(ctx, b, c)
		}
	}
	return run.finish(ctx, err)
}

// releaseRun is one run of ReleaseRange, SendSelected, or a dry run of them.
type releaseRun struct {
	client.Release
	do      models.CommandKind // of SendSelected; "" otherwise
	svc     *Commands
	who     caller.Caller
	request models.ID
	dryRun  bool

	result  client.ReleaseResult // without its warning
	requeue []models.AgendaEntry // of the batches that workers have to look at
	waiting int                  // released batches that something else withholds
}

// user releases the batches of a user. After an error, the result counts the batches that were released before it.
func (r *releaseRun) user(ctx context.Context, user string) error {
	const page = 100
	before, first := models.MaxID(r.To), models.MinID(r.From).Time()
	for {
		batches, err := r.svc.Store.Batches(ctx, user, before, page)
		if err != nil {
			return problem.FromStore("list batches", err)
		}
		for i := range batches {
			if batches[i].Created().Before(first) {
				return nil
			}
			if err := r.batch(ctx, &batches[i]); err != nil {
				return err
			}
		}
		if len(batches) < page {
			return nil
		}
		before = batches[len(batches)-1].ID
	}
}

// batch releases a batch if it has held mail. It skips damaged and cancelled batches.
func (r *releaseRun) batch(ctx context.Context, b *models.Batch) error {
	if b.Damaged {
		return nil
	}
	held, err := r.svc.hasHeld(ctx, b, r.Provider)
	if err != nil || !held {
		return err
	}
	return r.command(ctx, b, &models.Command{
		Kind:     models.ReleaseBatch,
		Batch:    b.ID,
		Provider: r.Provider,
		Why:      r.Why,
		Request:  r.request,
	})
}

// command gives a command about a batch and counts what it does. It skips a cancelled batch and one without content.
func (r *releaseRun) command(ctx context.Context, b *models.Batch, c *models.Command) error {
	recipients, err := r.release(ctx, b, c)
	var e *problem.Error
	if errors.As(err, &e) && e.Kind == problem.Conflict { // cancelled
		return nil
	}
	if err != nil || recipients == 0 {
		return err
	}
	r.result.Batches++
	r.result.Recipients += recipients
	if len(r.svc.waitsFor(r.svc.Audit.Known(), b)) > 0 {
		r.waiting++
	}
	return nil
}

// release releases a batch, unless the run is a dry run. It returns how many recipients that reaches.
func (r *releaseRun) release(ctx context.Context, b *models.Batch, c *models.Command) (int, error) {
	if r.dryRun {
		rules := r.svc.Audit.Known()
		if v := judge(rules, r.who, b, c); v.refused != nil {
			return 0, v.refused
		}
		reached, err := r.svc.releaseReach(ctx, rules, b, c)
		if err != nil {
			return 0, problem.FromStore("count recipients", err)
		}
		return reached.recipients, nil
	}
	done, err := r.svc.appendBatchCommand(ctx, r.who, b, c)
	if err != nil {
		return 0, err
	}
	if !done.idle {
		r.requeue = append(r.requeue, requeueEntry(b))
	}
	return *done.recipients, nil
}

// finish requeues the released batches and returns the result. err is the error that ended the run, if any.
func (r *releaseRun) finish(ctx context.Context, err error) (client.ReleaseResult, error) {
	out := r.result
	out.DryRun = r.dryRun
	late := false
	if len(r.requeue) > 0 {
		r.svc.Audit.Await(context.WithoutCancel(ctx))
		late = !r.svc.requeue(ctx, r.requeue...)
	}
	if out.Batches == 0 {
		return out, err
	}
	if r.do != models.RetryBatch {
		out.Warning = mayDoubleWarning
	}
	if late {
		out.Warning += " " + lateWarning
	}
	if r.waiting > 0 {
		out.Warning += fmt.Sprintf(" Of %d of the batches nothing goes out yet: "+
			"they are stopped, paused, held or blocked, or their providers are offline.", r.waiting)
	}
	var e *problem.Error
	if errors.As(err, &e) && e.Code == "store_unavailable" && !r.dryRun {
		e.Detail = fmt.Sprintf("%d batches were released before the store became unreachable. "+
			"Repeat the request to release the others.", out.Batches)
	}
	out.Warning = strings.TrimSpace(out.Warning)
	return out, err
}

// hasHeld reports whether a batch may have mail that is held at a provider.
func (s *Commands) hasHeld(ctx context.Context, b *models.Batch, provider string) (bool, error) {
	sum, _, err := s.Mail.Total(ctx, b)
	if err != nil {
		return false, problem.FromStore("sum batch", err)
	}
	tried := provider == "" || sum.Providers[provider].Tried > 0
	return tried && sum.Reasons[models.OutcomeUnknown]+sum.Reasons[models.NoFinalEvent] > 0, nil
}

// ReleaseLog sends one held or failed log again.
func (s *Commands) ReleaseLog(
	ctx context.Context, who caller.Caller, log, why string, r idempotency.Repeat,
) (Result, bool, error) {
	if err := audit.CheckWhy(why); err != nil {
		return Result{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, claim models.Claim, _ bool) (Result, error) {
			b, id, err := s.controllableLog(ctx, who, log)
			if err != nil {
				return Result{}, err
			}
			c := models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id, Why: why, Request: claim.ID}
			if err := s.checkReleasable(ctx, who, b, &c); err != nil {
				return Result{}, err
			}
			return s.controlBatch(ctx, who, b, &c)
		})
}

// DryRunLog returns what ReleaseLog would do. It writes nothing.
func (s *Commands) DryRunLog(ctx context.Context, who caller.Caller, log, why string) (Result, error) {
	if err := audit.CheckWhy(why); err != nil {
		return Result{}, err
	}
	b, id, err := s.controllableLog(ctx, who, log)
	if err != nil {
		return Result{}, err
	}
	c := models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: id}
	if err := s.checkReleasable(ctx, who, b, &c); err != nil {
		return Result{}, err
	}
	return s.dryRunBatch(ctx, who, b, &c)
}

// controllableLog parses the ID of a log and returns it with its batch, which the caller may control.
func (s *Commands) controllableLog(
	ctx context.Context, who caller.Caller, log string,
) (*models.Batch, models.ID, error) {
	id, err := models.ParseLogID(log)
	if err != nil {
		return nil, id, problem.NotYours("log")
	}
	b, err := s.Mail.Controllable(ctx, who, id.Batch())
	if err == nil && id.Recipient() > b.ChunkSize(id.ChunkNumber()) {
		err = problem.NotYours("log")
	}
	return b, id, err
}

// checkReleasable returns an error if the log of a command to release cannot be released.
// A log that was released before can: the command then changes nothing.
func (s *Commands) checkReleasable(ctx context.Context, who caller.Caller, b *models.Batch, c *models.Command) error {
	rules, err := s.Audit.Newest(ctx)
	if err != nil {
		return err
	}
	if v := judge(rules, who, b, c); v.refused != nil || v.repeated != nil {
		return v.refused
	}
	chunk, r := c.Log.ChunkID(), c.Log.Recipient()
	entries, facts, err := s.Store.Record(ctx, chunk)
	if err != nil {
		return problem.FromStore("read log", err)
	}
	v := models.Resolve(b.ChunkSize(chunk.ChunkNumber()), entries, facts)
	st := v.Status(r)
	released := st.State.Open() && slices.ContainsFunc(entries, func(e models.Entry) bool {
		return e.Kind == models.Release && e.Recipients.Has(r)
	})
	if released || st.State == models.Failed && !st.Reason.Hard() {
		return nil
	}
	return problem.New(problem.Conflict, "not_releasable",
		"Only a failed log can be released, unless its recipient or its mail was refused permanently.")
}
