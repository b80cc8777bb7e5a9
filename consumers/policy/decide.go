// Package policy is the decision table: what is to be done next for each recipient of a
// chunk. It is pure: no clock, no I/O, no state.
package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Action is what is to be done next for some recipients.
type Action int

// The actions.
const (
	Nothing Action = iota
	Call           // hand them to a provider
	Wait           // look again at a time
	End            // append an ending
)

// Option is a provider that may be tried, and when at the earliest.
type Option struct {
	Provider  string
	NotBefore time.Time
}

// Step is the next step of a group of recipients that share a history.
type Step struct {
	Do           Action
	Who          models.Set
	SenderDomain string    // the sender's domain
	Options      []Option  // of call: in order of preference
	Until        time.Time // of wait
	Retry        int       // of call: the number of the retry
	Split        int       // of call: >0 while a bad recipient is looked for
	MayDouble    bool
	Doubt        models.Reason // of call: what is not known of earlier ones
	Released     bool          // of call: manually, so that the deadline does not count
	Reason       models.Reason // of end
	Detail       string
	Because      string          // of call: why another attempt is made
	FromEvent    bool            // of call: a provider's event, not an answer, asked for it
	Cancel       *models.Command // of end: it was ordered, and is a cancellation
	Fixed        bool            // of call: the order of options is the batch's wish
}

// Policy decides the next step of every recipient. It has no state: the same facts
// at the same time give the same steps in every worker.
type Policy struct {
	cfg       Config
	providers []string                 // all providers, in order of configuration
	windows   map[string]time.Duration // evidence windows by provider; 0: the general one
}

// New returns a policy for providers, named in order of configuration. windows has
// the evidence windows of those that have one of their own.
func New(cfg Config, providers []string, windows map[string]time.Duration) *Policy {
	return &Policy{cfg: cfg, providers: providers, windows: windows}
}

// EvidenceWindow is how long an unknown outcome at a provider waits for evidence after
// the call must have ended.
func (p *Policy) EvidenceWindow(provider string) time.Duration {
	if w := p.windows[provider]; w > 0 {
		return w
	}
	return p.cfg.EvidenceWindow
}

// maxSplits bounds the calls that are made per recipient to find a bad one
// among a thousand: halving 1,000 takes 10.
const maxSplits = 14

// Plan decides the next step of every recipient of a chunk, grouped.
func (p *Policy) Plan(v *models.View, b *models.Batch, o *Commands, now time.Time) []Step {
	var steps []Step
	byHistory := map[uint64]int{}
	var blocks []*models.Block
	for i := range v.Logs {
		s := &v.Logs[i]
		if s.State != models.Queued {
			continue
		}
		r := i + 1
		h := history(v, r)
		if len(o.Blocks) > 0 {
			if blocks = o.blocksOf(b, r); len(blocks) > 0 {
				h = mixed(h, blocks)
			}
		}
		k, ok := byHistory[h]
		if !ok {
			k = len(steps)
			byHistory[h] = k
			st := p.next(v, b, s, v.Tries(r), &o.Rule, now)
			st.SenderDomain = models.DomainOf(b.Content.From.Email)
			o.apply(p, &st, blocks, now)
			steps = append(steps, st)
		}
		steps[k].Who.Add(r)
	}
	return steps
}

// next is the decision table: (what is known) x (providers, retries, time left).
func (p *Policy) next(
	v *models.View,
	b *models.Batch,
	s *models.Status,
	tries []models.Try,
	rule *control.BatchRule,
	now time.Time,
) Step {
	last := &s.Last
	switch {
	case s.Unsettled():
		st := p.unsettled(v, b, s, tries, now)
		if st.Do == Call && rule.Cancel != nil {
			return Step{Do: End, Reason: models.OutcomeUnknown, Detail: CancelledMeanwhile}
		}
		if st.Do == Call && b.Redacted {
			return Step{Do: End, Reason: models.OutcomeUnknown, Detail: ContentRemoved}
		}
		if st.Do == Call && rule.Waits != "" {
			return p.hold(b, now)
		}
		return st
	case rule.Cancel != nil:
		return cancelled(s, tries, rule.Cancel)
	case b.Redacted: // released manually, and not handed over in all that time
		return ending(doubtOf(tries), Step{Reason: models.Expired, Detail: ContentRemoved})
	case !s.Released && Over(b, now):
		return ending(doubtOf(tries), Step{Reason: models.Expired, Detail: lastWords(last)})
	case rule.Waits != "":
		return p.hold(b, now)
	case s.Released:
		doubt := doubtOf(tries)
		return Step{
			Do:        Call,
			Options:   p.fresh(b),
			Fixed:     len(b.Providers) > 0,
			Retry:     s.Retries + 1,
			MayDouble: doubt != "",
			Doubt:     doubt,
			Released:  true,
			Because:   "released manually",
		}
	case s.Attempts == 0:
		return Step{Do: Call, Options: p.fresh(b), Fixed: len(b.Providers) > 0}
	case last.Class == models.Split && last.Verdict == models.VerdictRefused:
		return p.split(s)
	case !curable(last):
		return Step{Do: End, Reason: last.Reason}
	}
	return p.again(b, s, tries, false)
}

// CancelledMeanwhile is the detail of logs that end because their batch was cancelled.
const CancelledMeanwhile = "the batch was cancelled meanwhile"

// cancelled ends what is not to be sent any more. What was handed over before says
// what became of it, and not that it never was.
func cancelled(s *models.Status, tries []models.Try, order *models.Command) Step {
	doubt := doubtOf(tries)
	switch {
	case doubt != "":
		return Step{Do: End, Reason: doubt, Detail: CancelledMeanwhile}
	case s.Last.Verdict == models.VerdictFailed:
		return Step{Do: End, Reason: s.Last.Reason, Detail: CancelledMeanwhile}
	}
	return Step{Do: End, Cancel: order}
}

// ending ends what is not sent any more for a reason of ours. Where it may have been
// sent already it says that this is not known, so that it is not taken for unsent.
func ending(doubt models.Reason, st Step) Step {
	st.Do = End
	if doubt != "" {
		st.Reason, st.Detail = doubt, models.Clip(st.Reason.Words()+"; "+st.Detail)
	}
	return st
}

// ContentRemoved is why nothing more of an old batch can be sent.
const ContentRemoved = "its content and addresses were removed after their time"

// Over reports whether the deadline of a batch has passed.
func Over(b *models.Batch, now time.Time) bool {
	return !b.Deadline.IsZero() && !now.Before(b.Deadline)
}

// hold waits until an order is lifted: whoever lifts it announces the batch, and
// the agenda looks now and then.
func (p *Policy) hold(b *models.Batch, now time.Time) Step {
	until := now.Add(p.cfg.Recheck)
	if !b.Deadline.IsZero() && now.Before(b.Deadline) {
		until = models.EarlierOf(until, b.Deadline)
	}
	return Step{Do: Wait, Until: until}
}

// unsettled decides for recipients that a provider may have.
func (p *Policy) unsettled(v *models.View, b *models.Batch, s *models.Status, tries []models.Try, now time.Time) Step {
	last := &s.Last
	if last.Verdict != models.VerdictAccepted {
		until := v.Entry(last.Attempt).CallEnds.Add(p.EvidenceWindow(last.Provider))
		if now.Before(until) {
			return Step{Do: Wait, Until: until}
		}
	}
	if s.Accepted != nil { // Nothing more is sent, whatever became of the newest attempt
		until := s.Accepted.At.Add(p.cfg.FinalEventWait)
		if now.Before(until) {
			return Step{Do: Wait, Until: until}
		}
		return Step{Do: End, Reason: models.NoFinalEvent}
	}
	switch {
	case b.OnUnknown != models.Resend:
		return Step{Do: End, Reason: models.OutcomeUnknown}
	case Over(b, now):
		return Step{Do: End, Reason: models.OutcomeUnknown, Detail: "the deadline of the batch passed meanwhile"}
	}
	return p.again(b, s, tries, true)
}

// again sends to another provider, or to the same one later, or ends.
func (p *Policy) again(b *models.Batch, s *models.Status, tries []models.Try, mayDouble bool) Step {
	last := &s.Last
	st := Step{
		Do:        Call,
		Retry:     s.Retries + 1,
		MayDouble: mayDouble,
		Doubt:     doubtOf(tries),
		Because:   because(last),
		FromEvent: last.Verdict == models.VerdictFailed,
	}
	options := p.left(b, tries, s.Retries+1)
	switch {
	case len(options) == 0:
		return ending(st.Doubt, Step{Reason: models.NoProviderLeft, Detail: lastWords(last)})
	case s.Called && s.Retries >= p.cfg.MaxRetries && !p.allAway(b, s, tries, options):
		return ending(st.Doubt, Step{Reason: models.RetriesUsedUp, Detail: lastWords(last)})
	}
	st.Options, st.Fixed = options, len(b.Providers) > 0
	return st
}

// allAway reports whether every provider that mail may use has refused it for a
// reason that passes. It waits then until one is back, or its deadline ends it,
// however many retries that takes; unless none are wanted, or none of them has
// verified the sender, which an operator must learn of.
func (p *Policy) allAway(b *models.Batch, s *models.Status, tries []models.Try, options []Option) bool {
	if p.cfg.MaxRetries == 0 || s.Released || b.Deadline.IsZero() || len(options) < len(p.fresh(b)) {
		return false
	}
	return !slices.ContainsFunc(options, func(o Option) bool { return o.NotBefore.IsZero() }) &&
		slices.ContainsFunc(
			options,
			func(o Option) bool { return newestAt(tries, o.Provider).Reason != models.SenderNotVerified },
		)
}

// split sends the recipients of a call that was refused as a whole again, in
// halves, through the same provider. It is no retry.
func (p *Policy) split(s *models.Status) Step {
	if s.Splits >= maxSplits {
		return Step{Do: End, Reason: models.InvalidRequest, Detail: lastWords(&s.Last)}
	}
	return Step{
		Do:      Call,
		Options: []Option{{Provider: s.Last.Provider}},
		Fixed:   true,
		Retry:   s.Retries,
		Split:   s.Splits + 1,
		Because: "looking for the recipient that " + s.Last.Provider + " refuses",
	}
}

// fresh lists the providers of a first attempt.
func (p *Policy) fresh(b *models.Batch) []Option {
	names := p.providers
	if len(b.Providers) > 0 {
		names = b.Providers
	}
	out := make([]Option, 0, len(names))
	for _, n := range names {
		out = append(out, Option{Provider: n})
	}
	return out
}

// left lists the providers that may still be tried: those never tried first, at
// once; then those that failed for a passing reason, after a delay that grows
// with the number of the retry.
func (p *Policy) left(b *models.Batch, tries []models.Try, retry int) []Option {
	var fresh, later []Option
	suppressed := 0
	for i := range tries {
		if tries[i].Reason == models.SuppressedBounce && tries[i].Verdict.Settled() {
			suppressed++
		}
	}
	if suppressed > 1 {
		return nil // two providers know the address as bad: no third reputation is spent on it
	}
	for _, o := range p.fresh(b) {
		newest := newestAt(tries, o.Provider)
		switch {
		case newest == nil:
			fresh = append(fresh, o)
		case passing(newest):
			o.NotBefore = newest.At.Add(p.cfg.Delay(retry))
			if newest.RetryAt.After(o.NotBefore) || newest.Class == models.Throttled && !newest.RetryAt.IsZero() {
				o.NotBefore = newest.RetryAt
			}
			later = append(later, o)
		}
	}
	return append(fresh, later...)
}

func newestAt(tries []models.Try, provider string) *models.Try {
	for i := len(tries) - 1; i >= 0; i-- {
		if tries[i].Provider == provider {
			return &tries[i]
		}
	}
	return nil
}

// passing reports whether the same provider may take the same mail later.
func passing(t *models.Try) bool {
	if t.Verdict != models.VerdictRefused {
		return false
	}
	switch t.Class {
	case models.Throttled, models.Unavailable, models.AccountClass:
		return true
	}
	return false
}

// curable reports whether another provider could cure a failure that is not
// hard.
func curable(t *models.Try) bool {
	if t.Verdict == models.VerdictRefused {
		switch t.Class {
		case models.RejectedHereClass, models.AccountClass, models.Throttled, models.Unavailable:
			return true
		}
	}
	switch t.Reason {
	case models.SuppressedBounce,
		models.PolicyReputation,
		models.PolicyContent,
		models.ProviderAccount,
		models.DeliveryTimeout,
		models.DNSOrConnect,
		models.RateLimited,
		models.Greylisted,
		models.RejectedHere,
		models.ProviderUnavailable:
		return true
	}
	return false
}

func because(t *models.Try) string {
	switch {
	case t.Verdict == models.VerdictFailed:
		return t.Provider + " reported: " + t.Reason.Words()
	case t.Verdict == models.VerdictRefused && t.Status > 0:
		return fmt.Sprintf("%s answered %d: %s", t.Provider, t.Status, t.Reason.Words())
	case t.Verdict == models.VerdictRefused:
		return t.Provider + ": " + t.Reason.Words()
	}
	return "nothing proved within the evidence window that " + t.Provider + " took it"
}

func lastWords(t *models.Try) string {
	if t.Attempt == 0 {
		return ""
	}
	return because(t)
}

// Earliest is when the first provider of the step may be tried.
func (s *Step) Earliest() time.Time {
	var first time.Time
	for i, o := range s.Options {
		if i == 0 || o.NotBefore.Before(first) {
			first = o.NotBefore
		}
	}
	return first
}

// InDoubt reports whether a step is about mail that some provider may have, and
// ends it or sends it once more.
func (s Step) InDoubt() bool {
	switch s.Do {
	case End:
		return s.Reason == models.OutcomeUnknown || s.Reason == models.NoFinalEvent
	case Call:
		return s.Doubt != ""
	case Nothing, Wait:
	}
	return false
}

// Calls reports whether a step hands mail to a provider, of one of these
// recipients if any are named.
func (s *Step) Calls(only models.Set) bool {
	return s.Do == Call && (only.Empty() || !s.Who.And(only).Empty())
}
