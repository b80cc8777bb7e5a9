package policy

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Commands is what the rules say about one chunk.
type Commands struct {
	Rule       control.BatchRule
	Rules      *control.Rules
	Blocks     []models.Block     // those that meet the sender and the user
	Recipients []models.Recipient // only where a block asks for them
}

// BlocksMeeting lists the blocks that meet the sender and the user of a batch.
func BlocksMeeting(rules *control.Rules, batch *models.Batch) (out []models.Block) {
	for _, b := range rules.Blocks() {
		any := b
		any.Provider, any.Domain = "", ""
		if any.Meets(batch, "", "") {
			out = append(out, b)
		}
	}
	return out
}

// blocksOf lists the blocks that meet recipient r through some provider.
func (o *Commands) blocksOf(b *models.Batch, r int) []*models.Block {
	var out []*models.Block
	for i := range o.Blocks {
		bl := &o.Blocks[i]
		email := ""
		if r <= len(o.Recipients) {
			email = o.Recipients[r-1].Email
		}
		if bl.Meets(b, bl.Provider, email) {
			out = append(out, bl)
		}
	}
	return out
}

// apply changes a step as ordered: nothing is sent through a provider that is
// offline, or blocked; what no provider may take waits or fails.
func (o *Commands) apply(p *Policy, st *Step, blocks []*models.Block, now time.Time) {
	if st.Do != Call {
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
		*st = Step{Do: Wait, Until: now.Add(p.cfg.Recheck)}
		return
	}
	open := func(provider string) bool {
		return o.Rules.Provider(provider).Mode != models.ProviderOffline &&
			!slices.ContainsFunc(blocks, func(bl *models.Block) bool { return bl.Provider == provider })
	}
	left := slices.DeleteFunc(slices.Clone(st.Options), func(op Option) bool { return !open(op.Provider) })
	flowing := slices.DeleteFunc(
		slices.Clone(left),
		func(op Option) bool { return o.Rules.Provider(op.Provider).Mode == models.ProviderDrain },
	)
	switch {
	case len(flowing) > 0:
		st.Options = flowing
	case len(left) > 0:
		st.Options = left // a provider that is drained takes what no other may
	default:
		if why, ok := allFail(st.Options, blocks); ok {
			st.refuse(why)
			return
		}
		*st = Step{Do: Wait, Until: now.Add(p.cfg.Recheck)}
	}
}

// allFail reports whether a block that fails mail meets every one of the providers,
// and why there is one of them.
func allFail(options []Option, blocks []*models.Block) (why string, ok bool) {
	for _, op := range options {
		i := slices.IndexFunc(blocks, func(bl *models.Block) bool { return bl.Fail && bl.Provider == op.Provider })
		if i < 0 {
			return "", false
		}
		why = blocks[i].Why
	}
	return why, len(options) > 0
}

// refuse ends a step because of a block.
func (s *Step) refuse(why string) {
	*s = ending(s.Doubt, Step{Who: s.Who, Reason: models.BlockedByRule, Detail: why})
}

// Released lists the recipients that an order lets go.
func Released(v *models.View, order *models.Command) models.Set {
	return v.Where(func(r int, s *models.Status) bool {
		if s.State != models.Failed || !order.Log.IsZero() && order.Log.Recipient() != r ||
			order.Provider != "" && !heldAt(s, order.Provider) {
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
	if s.State != models.Failed || s.Reason.Hard() || s.Reason == models.OutcomeUnknown ||
		s.Reason == models.NoFinalEvent {
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
