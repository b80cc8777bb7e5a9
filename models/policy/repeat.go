package policy

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// repeatDelays are the pauses before the repeats of a call; the last one holds for all others.
var repeatDelays = []time.Duration{
	2 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute, time.Hour,
}

// clockMargin is how much earlier than its provider a key counts as expired.
const clockMargin = 2 * time.Minute

// repeat turns the wait for the outcome of a call into its repeat, or into a wait for it, if the provider has keys. A
// call is repeated for as long as its outcome would be waited for anyway. See ADR 34.
func (p *Policy) repeat(v *models.View, b *models.Batch, s *models.Status, cmds *Commands, st *Step, now time.Time) {
	if st.Do != Wait || st.Waits == nil || st.Waits.Code != models.WaitEvidence {
		return
	}
	last := &s.Last
	a := p.providers[last.Provider]
	if a == nil || a.KeyLifetime == 0 {
		return
	}
	e := v.Entry(last.Attempt)
	repeats, ok := v.Repeatable(last.Attempt)
	if !ok || !p.mayRepeat(b, &e, cmds, now) {
		return
	}
	at := v.CallEnded(last).Add(repeatDelays[min(repeats, len(repeatDelays)-1)])
	end := models.EarlierOf(e.At.Add(a.KeyLifetime-clockMargin), e.CallEnds.Add(p.EvidenceWindow(a.Name)))
	switch {
	case !at.Before(end) || !now.Before(end):
	case now.Before(at):
		st.Until, st.Repeats = models.EarlierOf(st.Until, at), e.Number
	default:
		*st = Step{
			Do:           Call,
			Recipients:   st.Recipients,
			SenderDomain: st.SenderDomain,
			Options:      []Option{{Provider: a.Name}},
			Fixed:        true,
			Retry:        e.Retry,
			Together:     e.Together,
			Repeats:      e.Number,
			Until:        end,
			Waits:        st.Waits,
		}
	}
}

// mayRepeat reports whether every recipient of an attempt may still get the mail now.
func (p *Policy) mayRepeat(b *models.Batch, e *models.Entry, cmds *Commands, now time.Time) bool {
	if cmds.Rule.Cancel != nil || cmds.Rule.Waits != nil || b.Redacted || PastExpiry(b, now) ||
		b.MayLeave(now, false).After(now) || cmds.Rules.Provider(e.Provider).Mode == models.ProviderOffline {
		return false
	}
	for r := range e.Recipients.All() {
		if len(cmds.Blocks) > 0 && slices.ContainsFunc(cmds.blocksOf(b, r), func(bl *models.Block) bool {
			return bl.Provider == "" || bl.Provider == e.Provider
		}) {
			return false
		}
	}
	return true
}
