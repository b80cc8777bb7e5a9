package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
)

// planner decides the next steps of a chunk. It appends to the ledger what needs no call: releases and endings.
type planner struct {
	cfg      Config
	follower *control.Follower
	chunks   *Chunks
	commands *commands
	policy   *policy.Policy
	evidence Evidence
	observer Observer
}

// plan applies pending release commands and returns the next steps of a chunk. It
// reloads the chunk if it was read too long ago.
func (p *planner) plan(ctx context.Context, c *Chunk, now time.Time) ([]policy.Step, error) {
	if now.Sub(c.read) > maxStale {
		if err := p.chunks.Reload(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := p.follower.EnsureFresh(ctx, control.MaxRuleAge); err != nil {
		return nil, err
	}
	// The message may follow from a resume command that is newer than the rules.
	if p.follower.Rules().Batch(c.Batch).Waits != nil {
		if err := p.follower.Sync(ctx); err != nil {
			return nil, err
		}
	}
	if err := p.applyReleases(ctx, c); err != nil {
		return nil, err
	}
	steps, err := p.decide(ctx, c, now)
	if err != nil || !slices.ContainsFunc(steps, policy.Step.InDoubt) || now.Sub(c.read) < justRead {
		return steps, err
	}
	// An event that arrived meanwhile causes no conflict in the ledger, so read again.
	if err := p.chunks.Reload(ctx, c); err != nil {
		return nil, err
	}
	return p.decide(ctx, c, now)
}

// plan reads a chunk again if it was read more than maxStale ago. Before it decides
// about mail that a provider may have, the limit is justRead.
const (
	maxStale = time.Second
	justRead = 100 * time.Millisecond
)

// decide returns the next steps of a chunk as it was read.
func (p *planner) decide(ctx context.Context, c *Chunk, now time.Time) ([]policy.Step, error) {
	c.planned = p.commands.snapshot(c)
	o, err := p.commands.of(ctx, c)
	if err != nil {
		return nil, err
	}
	steps := p.policy.Plan(c.View, c.Batch, &o, now)
	for i := range steps {
		st := &steps[i]
		if st.Do == policy.Call && st.MayDouble && !st.Released && !p.evidence.Answered(c, st, now) {
			*st = policy.Step{Do: policy.Wait, Recipients: st.Recipients, Until: now.Add(p.cfg.LookUpPause)}
		}
	}
	return steps, nil
}

// applyReleases appends the retries and releases that are not in the chunk's ledger yet,
// as few entries as possible. It appends an entry even if the commands release no
// recipient, so that a command never affects recipients that end after it was applied.
func (p *planner) applyReleases(ctx context.Context, c *Chunk) error {
	for {
		rule := p.follower.Rules().Batch(c.Batch)
		pending := rule.Pending(c.ID, c.entries)
		if len(pending) == 0 {
			return nil
		}
		pending = pending[:control.OneEntry(pending)]
		newest := &pending[len(pending)-1]
		var who models.Set
		for i := range pending {
			who = who.Or(control.Released(c.View, &pending[i]))
		}
		if !who.Empty() && !c.Batch.Redacted && p.follower.Rules().Erasures() > 0 {
			err := p.chunks.LoadRecipients(ctx, c)
			if err != nil && !errors.Is(err, models.ErrNotFound) {
				return err
			}
			who = who.Minus(models.ErasedRecipients(c.Recipients))
		}
		// After a conflict this goes on with the ledger as it is then.
		if _, err := p.chunks.appendEntry(ctx, c, models.Entry{
			Kind:       models.Release,
			At:         time.Now().UTC(),
			Recipients: who,
			Command:    newest.Number,
			MayDouble:  newest.Kind == models.ReleaseBatch && !who.Empty(),
			Detail:     models.Clip(newest.Why),
		}); err != nil {
			return err
		}
	}
}

// appendEndings appends the endings that are due. It reports whether it changed the
// ledger.
func (p *planner) appendEndings(ctx context.Context, c *Chunk, steps []policy.Step) (bool, error) {
	changed := false
	for i := range steps {
		st := &steps[i]
		if st.Do != policy.End || !p.confirmed(c, st, time.Now()) {
			continue
		}
		entry := models.Entry{
			Kind:       models.Ending,
			At:         time.Now().UTC(),
			Recipients: st.Recipients,
			Reason:     st.Reason,
			Detail:     models.Clip(st.Detail),
		}
		if o := st.Cancel; o != nil {
			entry.Kind, entry.Reason, entry.Command = models.Cancel, models.CancelledByRq, o.Number
			entry.Detail = models.Clip(o.Why)
		}
		if appended, err := p.chunks.appendEntry(ctx, c, entry); !appended {
			return changed || err == nil, err
		}
		changed = true
		p.observer.Ended(&entry)
		p.cfg.Logger.Debug("recipients ended",
			"chunk", c.ID.String(), "recipients", st.Recipients.Len(), "reason", string(st.Reason))
	}
	return changed, nil
}

// confirmed reports whether an evidence window that has expired may end a log: not
// before every provider with look-ups has been queried late enough. It waits a day at
// most for their answers.
func (p *planner) confirmed(c *Chunk, st *policy.Step, now time.Time) bool {
	if st.Reason != models.OutcomeUnknown && st.Reason != models.NoFinalEvent ||
		!c.View.Status(st.Recipients.First()).Unsettled() {
		return true // the ending does not end an evidence window
	}
	return p.evidence.Answered(c, st, now)
}
