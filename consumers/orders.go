package consumers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// What people order, beside the facts: stops, cancellations, releases, blocks
// and switched providers. Workers follow the journal of orders; a decision is
// made by rules that are at most control.MaxRuleAge old, and looked at again right before
// the call.

const orderPoll = 250 * time.Millisecond // how often the journal is read

// orders is what the rules say about one chunk.
type orders struct {
	rule       control.BatchRule
	rules      *control.Rules
	blocks     []models.Block     // those that meet the sender and the user
	recipients []models.Recipient // only where a block asks for them
}

// ordersFor gathers what the rules say about a chunk. Recipients are read only
// if a block depends on them.
func (e *Engine) ordersFor(ctx context.Context, c *chunk) (orders, error) {
	rules := e.journal.Rules()
	o := orders{rule: rules.Batch(c.batch), rules: rules, blocks: blocksMeeting(rules, c.batch)}
	byRecipient := slices.ContainsFunc(o.blocks, func(b models.Block) bool { return b.Domain != "" })
	if byRecipient && c.recipients == nil && !c.batch.Redacted {
		rs, err := e.store.Recipients(ctx, c.id)
		if err != nil {
			return o, err
		}
		c.recipients = rs
	}
	o.recipients = c.recipients
	return o, nil
}

// blocksMeeting lists the blocks that meet the sender and the user of a batch.
func blocksMeeting(rules *control.Rules, batch *models.Batch) (out []models.Block) {
	for _, b := range rules.Blocks() {
		any := b
		any.Provider, any.Domain = "", ""
		if any.Meets(batch, "", "") {
			out = append(out, b)
		}
	}
	return out
}

// planned is by which orders the steps of a chunk were decided: those that are not
// looked at again as they are right before a call.
type planned struct {
	upTo     int             // of the journal
	blocks   []string        // that met its sender and user
	draining map[string]bool // providers
}

func (e *Engine) planBy(c *chunk) planned {
	rules := e.journal.Rules()
	p := planned{upTo: rules.UpTo()}
	for _, b := range blocksMeeting(rules, c.batch) {
		p.blocks = append(p.blocks, b.ID)
	}
	for _, a := range e.providers {
		if rules.Provider(a.Name).Mode == models.ProviderDrain {
			if p.draining == nil {
				p.draining = map[string]bool{}
			}
			p.draining[a.Name] = true
		}
	}
	return p
}

// outdated reports whether an order that came since may forbid a call through an
// provider: it is decided anew then.
func (e *Engine) outdated(c *chunk, provider string) bool {
	now := e.journal.Rules()
	if now.UpTo() == c.planned.upTo {
		return false
	}
	if now.Provider(provider).Mode == models.ProviderDrain && !c.planned.draining[provider] {
		return true
	}
	return slices.ContainsFunc(blocksMeeting(now, c.batch), func(b models.Block) bool {
		return (b.Provider == "" || b.Provider == provider) && !slices.Contains(c.planned.blocks, b.ID)
	})
}

// blocksOf lists the blocks that meet recipient r through some provider.
func (o *orders) blocksOf(b *models.Batch, r int) []*models.Block {
	var out []*models.Block
	for i := range o.blocks {
		bl := &o.blocks[i]
		email := ""
		if r <= len(o.recipients) {
			email = o.recipients[r-1].Email
		}
		if bl.Meets(b, bl.Provider, email) {
			out = append(out, bl)
		}
	}
	return out
}

// apply changes a step as ordered: nothing is sent through a provider that is
// offline, or blocked; what no provider may take waits or fails.
func (o *orders) apply(p *policy, st *step, blocks []*models.Block, now time.Time) {
	if st.do != call {
		return
	}
	for _, bl := range blocks {
		if bl.Provider != "" {
			continue
		}
		if bl.Fail {
			st.refuse(bl.Why)
			return
		}
		*st = step{do: wait, until: now.Add(p.cfg.Recheck)}
		return
	}
	open := func(provider string) bool {
		return o.rules.Provider(provider).Mode != models.ProviderOffline &&
			!slices.ContainsFunc(blocks, func(bl *models.Block) bool { return bl.Provider == provider })
	}
	left := slices.DeleteFunc(slices.Clone(st.options), func(op option) bool { return !open(op.provider) })
	flowing := slices.DeleteFunc(slices.Clone(left), func(op option) bool { return o.rules.Provider(op.provider).Mode == models.ProviderDrain })
	switch {
	case len(flowing) > 0:
		st.options = flowing
	case len(left) > 0:
		st.options = left // a provider that is drained takes what no other may
	default:
		if why, ok := allFail(st.options, blocks); ok {
			st.refuse(why)
			return
		}
		*st = step{do: wait, until: now.Add(p.cfg.Recheck)}
	}
}

// allFail reports whether a block that fails mail meets every one of the providers,
// and why there is one of them.
func allFail(options []option, blocks []*models.Block) (why string, ok bool) {
	for _, op := range options {
		i := slices.IndexFunc(blocks, func(bl *models.Block) bool { return bl.Fail && bl.Provider == op.provider })
		if i < 0 {
			return "", false
		}
		why = blocks[i].Why
	}
	return why, len(options) > 0
}

// refuse ends a step because of a block.
func (s *step) refuse(why string) {
	*s = ending(s.doubt, step{who: s.who, reason: models.BlockedByRule, detail: why})
}

// obey writes the releases that were ordered and are not in the chunk's ledger
// yet: one entry each, also where it lets nobody go, so that an order never
// touches what ends after it was obeyed.
func (e *Engine) obey(ctx context.Context, c *chunk) error {
	for i := 0; ; i++ {
		releases := e.journal.Rules().Batch(c.batch).Releases
		if i >= len(releases) {
			return nil
		}
		order := releases[i]
		if !order.Log.IsZero() && order.Log.ChunkID() != c.id || slices.ContainsFunc(c.entries, func(en models.Entry) bool { return en.Order == order.Number }) {
			continue
		}
		who := released(c.view, &order)
		err := e.append(ctx, c, models.Entry{Kind: models.Release, At: time.Now().UTC(), Recipients: who, Order: order.Number,
			MayDouble: order.Kind == models.ReleaseBatch && !who.Empty(), Detail: clip(order.Why)})
		if conflict(err) {
			if err = e.reload(ctx, c); err == nil {
				i-- // again, by what stands there now
			}
		}
		if err != nil {
			return err
		}
	}
}

// released lists the recipients that an order lets go.
func released(v *models.View, order *models.Command) models.Set {
	return v.Where(func(r int, s *models.Status) bool {
		if s.State != models.Failed || !order.Log.IsZero() && order.Log.Recipient() != r || order.Provider != "" && !heldAt(s, order.Provider) {
			return false
		}
		if order.Kind == models.RetryBatch {
			return RetrySafe(v, r)
		}
		return s.Reason == models.OutcomeUnknown || s.Reason == models.NoFinalEvent || !order.Log.IsZero() && !s.Reason.Hard()
	})
}

// heldAt reports whether a provider may have the mail of a log that is held.
func heldAt(s *models.Status, provider string) bool {
	return s.Last.Provider == provider || s.Accepted != nil && s.Accepted.Provider == provider
}

// RetrySafe reports whether a failed recipient can be sent to again without any
// risk of a second copy, and with some hope: every attempt is settled, and
// nothing final was said about the recipient.
func RetrySafe(v *models.View, r int) bool {
	s := v.Status(r)
	if s.State != models.Failed || s.Reason.Hard() || s.Reason == models.OutcomeUnknown || s.Reason == models.NoFinalEvent {
		return false
	}
	safe := true
	v.EachTry(r, func(t *models.Try) { safe = safe && t.Verdict.Settled() })
	return safe
}

// doubtOf is the reason with which a log ends of which some attempt may have led to
// a copy; empty: none may have.
func doubtOf(tries []models.Try) (doubt models.Reason) {
	for i := range tries {
		switch tries[i].Verdict {
		case models.VerdictPending, models.VerdictUnknown:
			return models.OutcomeUnknown
		case models.VerdictAccepted:
			doubt = models.NoFinalEvent
		case models.VerdictRefused, models.VerdictFailed, models.VerdictDelivered:
		}
	}
	return doubt
}

// errHeldBack: the call may not be made, or not now.
var errHeldBack = errors.New("held back")

// permitted says whether a call may be made: before the deadline, and as ordered,
// by rules that are no older than age.
func (e *Engine) permitted(ctx context.Context, c *chunk, j *job, age time.Duration) error {
	if !j.step.released && over(c.batch, time.Now()) {
		return fmt.Errorf("%w after the deadline", errHeldBack)
	}
	if err := e.journal.EnsureFresh(ctx, age); err != nil {
		return err
	}
	rules := e.journal.Rules()
	if r := rules.Batch(c.batch); r.Waits != "" || r.Cancel != nil || rules.Provider(j.provider.Name).Mode == models.ProviderOffline {
		return fmt.Errorf("%w by an order", errHeldBack)
	}
	if e.outdated(c, j.provider.Name) {
		return fmt.Errorf("%w by an order that came meanwhile", errHeldBack)
	}
	return nil
}
