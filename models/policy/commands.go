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
	Blocks     []models.Block     // blocks that match the batch's sender and user
	Recipients []models.Recipient // set only if a block matches recipients

	Recovered func(provider string) []Recovery // the newest recoveries of a provider; nil: none are known
}

// BlocksMeeting returns the blocks that match the sender and the user of a batch.
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

// blocksOf returns the blocks that match recipient r through some provider.
func (c *Commands) blocksOf(b *models.Batch, r int) []*models.Block {
	var out []*models.Block
	for i := range c.Blocks {
		bl := &c.Blocks[i]
		email := ""
		if r <= len(c.Recipients) {
			email = c.Recipients[r-1].Email
		}
		if bl.Meets(b, bl.Provider, email) {
			out = append(out, bl)
		}
	}
	return out
}

// apply applies the commands to a step. It removes providers that are offline or blocked
// from the options of a call. If none is left, the step waits, or ends if the blocks say
// so.
func (c *Commands) apply(p *Policy, st *Step, blocks []*models.Block, now time.Time) {
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
		*st = Step{Do: Wait, Until: now.Add(p.cfg.Recheck), Waits: &models.Wait{
			Code:  models.WaitBlockRule,
			Text:  blockText(bl),
			Block: bl.ID,
		}}
		return
	}
	closed := func(op Option) bool {
		return c.Rules.Provider(op.Provider).Mode == models.ProviderOffline ||
			slices.ContainsFunc(blocks, func(bl *models.Block) bool { return bl.Provider == op.Provider })
	}
	draining := func(op Option) bool { return c.Rules.Provider(op.Provider).Mode == models.ProviderDrain }
	allowed := slices.DeleteFunc(slices.Clone(st.Options), closed)
	preferred := slices.DeleteFunc(slices.Clone(allowed), draining)
	switch {
	case len(preferred) > 0:
		st.Options = preferred
	case len(allowed) > 0:
		st.Options = allowed // a draining provider takes mail that no other provider may take
	default:
		if why, ok := allFail(st.Options, blocks); ok {
			st.refuse(why)
			return
		}
		*st = Step{Do: Wait, Until: now.Add(p.cfg.Recheck), Waits: c.closed(st.Options, blocks)}
	}
}

// allFail reports whether each provider has a block that fails mail. why is the reason
// of one of these blocks.
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
	*s = ending(s.Doubt, Step{Recipients: s.Recipients, Reason: models.BlockedByRule, Detail: why})
}

// doubtOf returns the reason with which a log ends if some attempt may have led to a
// copy. It is empty if no attempt did.
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
