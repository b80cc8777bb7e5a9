package policy

import (
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A Recovery says that a provider takes mail again after its calls failed.
type Recovery struct {
	From time.Time // when its calls began to fail; not later than At
	At   time.Time // when the first call began that it answered
}

const (
	// recoveredPart bounds how much sooner mail is tried because its provider answered other mail. From the beginning of
	// the failures it waits for this part of its delay. Otherwise mail that a provider never takes would be tried as often
	// as the provider answers other mail.
	recoveredPart = 60

	// urgentDelay and bulkDelay are the longest delays of mail while no provider takes it. Such mail finds out when a
	// provider takes mail again, also if there is no other mail.
	urgentDelay = time.Minute
	bulkDelay   = 10 * time.Minute
)

// hasten lets a call be made sooner than after the delay of its retry. A delay ends when the provider has recovered, or
// when an operator or user asked for another attempt.
func (c *Commands) hasten(p *Policy, b *models.Batch, st *Step, tries []models.Try) {
	if st.Do != Call || st.MayDouble {
		return
	}
	for i := range st.Options {
		o := &st.Options[i]
		t := newestAt(tries, o.Provider)
		if o.NotBefore.IsZero() || t == nil || !temporary(t) {
			continue
		}
		asked := c.Rules.Asked(o.Provider)
		if try := c.Rule.Try; try != nil {
			asked = models.LaterOf(asked, try.At)
		}
		if asked.After(t.At) {
			o.NotBefore = models.EarlierOf(o.NotBefore, asked)
		}
		if c.Recovered == nil || t.Reason == models.SenderNotVerified { // other senders' mail proves nothing
			continue
		}
		part := models.EarlierOf(o.NotBefore, p.again(b, t, st.Retry)).Sub(t.At) / recoveredPart
		for _, r := range c.Recovered(o.Provider) {
			if r.At.After(t.At) {
				at := models.LaterOf(r.At, models.EarlierOf(r.From, t.At).Add(part))
				o.NotBefore = models.EarlierOf(o.NotBefore, at)
			}
		}
	}
}

// soonIfNoneTakes shortens the delays of mail that no provider takes. A time that a provider named stays.
func (p *Policy) soonIfNoneTakes(b *models.Batch, s *models.Status, tries []models.Try, options []Option) {
	if !p.allUnavailable(b, s, tries, options) {
		return
	}
	delay := bulkDelay
	if b.Lane == models.Urgent {
		delay = urgentDelay
	}
	for i := range options {
		t := newestAt(tries, options[i].Provider)
		at := models.LaterOf(t.At.Add(delay), t.RetryAt)
		options[i].NotBefore = models.EarlierOf(options[i].NotBefore, at)
	}
}
