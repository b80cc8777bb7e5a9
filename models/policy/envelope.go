package policy

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// envelope is what Plan must know of a batch that is one mail to all of its recipients. While no provider is known to
// have taken the mail, all that are queued have the same step, and are handed over together. Afterwards each recipient
// goes its own way.
type envelope struct {
	is, unsent bool
	to         models.Set      // the recipients in To
	shared     []*models.Block // that match any of the queued recipients; of unsent mail
}

// envelope returns what Plan must know of a batch. It is zero for other batches.
func (p *Policy) envelope(v *models.View, b *models.Batch, cmds *Commands) (e envelope) {
	if b.Envelope == nil {
		return e
	}
	e.is, e.unsent, e.to = true, !v.Taken(), b.Envelope.InTo()
	for i := range v.Logs {
		if len(cmds.Blocks) == 0 || !v.Logs[i].State.Open() {
			continue
		}
		own := cmds.blocksOf(b, i+1)
		if fails(own) {
			continue
		}
		for _, bl := range own {
			if !slices.Contains(e.shared, bl) {
				e.shared = append(e.shared, bl)
			}
		}
	}
	return e
}

// fails reports whether blocks end a recipient at every provider.
func fails(blocks []*models.Block) bool {
	return slices.ContainsFunc(blocks, func(bl *models.Block) bool { return bl.Fail && bl.Provider == "" })
}

// blocks returns the blocks that apply to a recipient with blocks of its own.
func (e *envelope) blocks(own []*models.Block) []*models.Block {
	if e.unsent && !fails(own) {
		return e.shared
	}
	return own
}

// together completes the calls among the steps of an envelope. A mail without a recipient in To is not sent, but to
// an address that was released while a provider may have the mail.
func (e *envelope) together(v *models.View, steps []Step) {
	if !e.is {
		return
	}
	left, doubt := e.to, false
	for n := range e.to.All() {
		if doubt = doubt || doubtOf(v.Tries(n)) != ""; !v.Status(n).State.Open() {
			left.Remove(n)
		}
	}
	for i := range steps {
		if steps[i].Do == End {
			left = left.Minus(steps[i].Recipients)
		}
	}
	for i := range steps {
		st := &steps[i]
		switch {
		case st.Do != Call:
		case e.unsent && !st.Recipients.And(left).Empty():
			if st.Together = true; st.Split > 0 {
				st.Because = st.Options[0].Provider + " refused another address of the message"
			}
		case e.unsent && left.Empty() && !(st.Released && doubt):
			*st = ending(st.Doubt, Step{Recipients: st.Recipients, Reason: models.ToFailed})
		case st.Because != "":
			st.Because += "; sent to this address alone"
		}
	}
}

// awaitOthers makes recipient r of an envelope wait for a final event instead of another call, if events about other
// recipients show that a provider has the mail. A call that may double was asked for manually or by the batch.
func (p *Policy) awaitOthers(v *models.View, b *models.Batch, r int, st *Step, now time.Time) {
	unknown := st.Do == End && st.Reason == models.OutcomeUnknown
	if b.Envelope == nil || !unknown && (st.Do != Call || st.MayDouble && st.Released) {
		return
	}
	if t := v.TakenTogether(r); t != nil {
		*st = p.accepted(t, now)
	}
}
