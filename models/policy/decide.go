// Package policy decides the next step of each recipient of a chunk. It is pure: it has no clock, no I/O and no state.
package policy

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Policy decides the next step of every recipient. The same facts give the same steps at the same time in every worker.
type Policy struct {
	cfg       Config
	names     []string // of all providers, in order of configuration
	providers map[string]*models.Provider
}

// New returns a policy for providers, which are listed in order of configuration.
func New(cfg Config, providers []models.Provider) *Policy {
	p := &Policy{cfg: cfg, providers: map[string]*models.Provider{}}
	for i := range providers {
		p.names = append(p.names, providers[i].Name)
		p.providers[providers[i].Name] = &providers[i]
	}
	return p
}

// MaxRetries returns how often a recipient is retried at most.
func (p *Policy) MaxRetries() int { return p.cfg.MaxRetries }

// EvidenceWindow returns how long an unknown outcome at a provider waits for evidence after its call must have ended.
func (p *Policy) EvidenceWindow(provider string) time.Duration {
	if a := p.providers[provider]; a != nil && a.EvidenceWindow > 0 {
		return a.EvidenceWindow
	}
	return p.cfg.EvidenceWindow
}

// maxSplits is how many calls of one recipient may search for a bad recipient. Halving 1,000 recipients takes 10.
const maxSplits = 14

// Plan returns the next steps of all queued recipients of a chunk.
func (p *Policy) Plan(v *models.View, b *models.Batch, cmds *Commands, now time.Time) []Step {
	var steps []Step
	byHistory := map[uint64]int{}
	b = cmds.Rule.Scheduled(b)
	var blocks []*models.Block
	e := p.envelope(v, b, cmds)
	for i := range v.Logs {
		s := &v.Logs[i]
		if !s.State.Open() {
			continue
		}
		r := i + 1
		h := history(v, r)
		if len(cmds.Blocks) > 0 {
			if blocks = e.blocks(cmds.blocksOf(b, r)); len(blocks) > 0 {
				h = withBlocks(h, blocks)
			}
		}
		k, ok := byHistory[h]
		if !ok {
			k = len(steps)
			byHistory[h] = k
			st := p.next(v, b, s, v.Tries(r), &cmds.Rule, now)
			p.awaitOthers(v, b, r, &st, now)
			cmds.hasten(p, b, &st, v.Tries(r))
			keepTime(b, &st, now)
			st.SenderDomain = models.DomainOf(b.Content.From.Email)
			cmds.apply(p, &st, blocks, now)
			p.repeat(v, b, s, cmds, &st, now)
			steps = append(steps, st)
		}
		steps[k].Recipients.Add(r)
	}
	e.together(v, steps)
	return steps
}

// next is the decision table. It returns the next step of a recipient from its status and tries, the batch's rule and
// the time that is left.
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
			return Step{Do: End, Reason: models.OutcomeUnknown, Detail: cancelledMeanwhile}
		}
		if st.Do == Call && b.Redacted {
			return Step{Do: End, Reason: models.OutcomeUnknown, Detail: contentRemoved}
		}
		if st.Do == Call && rule.Waits != nil {
			return p.hold(b, rule.Waits, now)
		}
		return st
	case rule.Cancel != nil:
		return cancelled(s, tries, rule.Cancel)
	case b.Redacted: // it was released, and not handed over before its content was removed
		return ending(doubtOf(tries), Step{Reason: models.Expired, Detail: contentRemoved})
	case !s.Released && PastExpiry(b, now):
		return ending(doubtOf(tries), Step{Reason: models.Expired, Detail: describe(last)})
	case rule.Waits != nil:
		return p.hold(b, rule.Waits, now)
	case (s.Released || s.Attempts == 0) && len(p.allowed(b)) == 0 && len(p.named(b)) > 0:
		return ending(doubtOf(tries), Step{Reason: models.RejectedHere, Detail: p.refusals(b)})
	case s.Released:
		doubt := doubtOf(tries)
		return Step{
			Do:        Call,
			Options:   p.allowed(b),
			Fixed:     len(b.Providers) > 0,
			Retry:     s.Retries + 1,
			MayDouble: doubt != "",
			Doubt:     doubt,
			Released:  true,
			Because:   models.ReleasedManually,
		}
	case s.Attempts == 0:
		return Step{Do: Call, Options: p.allowed(b), Fixed: len(b.Providers) > 0}
	case last.Class == models.Split && last.Verdict == models.VerdictRefused:
		return p.split(s)
	case !reroutable(last):
		return Step{Do: End, Reason: last.Reason}
	}
	if st := p.inParts(v, b, s, tries); st != nil {
		return *st
	}
	return p.retry(b, s, tries, false)
}

// cancelledMeanwhile is the detail of logs that end because their batch was cancelled.
const cancelledMeanwhile = "the batch was cancelled meanwhile"

// cancelled returns the ending of a cancelled recipient. If a provider may have the mail, or gave it up, the ending
// says so.
func cancelled(s *models.Status, tries []models.Try, cmd *models.Command) Step {
	doubt := doubtOf(tries)
	switch {
	case doubt != "":
		return Step{Do: End, Reason: doubt, Detail: cancelledMeanwhile}
	case s.Last.Verdict == models.VerdictFailed:
		return Step{Do: End, Reason: s.Last.Reason, Detail: cancelledMeanwhile}
	}
	return Step{Do: End, Cancel: cmd}
}

// ending returns st as an ending. If there is doubt whether the mail was sent, the doubt becomes the reason, and the
// reason of st a detail.
func ending(doubt models.Reason, st Step) Step {
	st.Do = End
	if doubt != "" {
		st.Reason, st.Detail = doubt, models.Clip(st.Reason.Words()+"; "+st.Detail)
	}
	return st
}

// contentRemoved is the detail of logs that end because their batch's content is gone.
const contentRemoved = "its content and addresses were removed after their time"

// keepTime makes a call wait for the time of the batch and for its window.
func keepTime(b *models.Batch, st *Step, now time.Time) {
	if st.Do != Call {
		return
	}
	at := b.MayLeave(now, st.Released)
	if !at.After(now) {
		return
	}
	text := "scheduled by the sender"
	if now.After(b.DeliverAt) {
		text = "outside of the hours in which it is sent: " + b.Window.String()
	}
	*st = Step{Do: Wait, Until: at, Waits: &models.Wait{Code: models.WaitSchedule, Text: text, Until: at}}
	if b.ExpiresAt.After(now) {
		st.Until = models.EarlierOf(at, b.ExpiresAt)
	}
}

// PastExpiry reports whether a batch has expired.
func PastExpiry(b *models.Batch, now time.Time) bool {
	return !b.ExpiresAt.IsZero() && !now.Before(b.ExpiresAt)
}

// unsettled returns the next step of a recipient whose mail a provider may have.
func (p *Policy) unsettled(v *models.View, b *models.Batch, s *models.Status, tries []models.Try, now time.Time) Step {
	last := &s.Last
	if last.Verdict != models.VerdictAccepted {
		until := v.CallEnded(last).Add(p.EvidenceWindow(last.Provider))
		if now.Before(until) {
			return awaiting(models.WaitEvidence, last.Provider, "the outcome at "+last.Provider+" is not known yet", until)
		}
	}
	if s.Accepted != nil { // no further attempt is made, with any outcome of the newest
		return p.accepted(s.Accepted, now)
	}
	switch {
	case b.OnUnknown != models.Resend:
		return Step{Do: End, Reason: models.OutcomeUnknown}
	case PastExpiry(b, now):
		return Step{Do: End, Reason: models.OutcomeUnknown, Detail: "the batch expired meanwhile"}
	}
	return p.retry(b, s, tries, true)
}

// accepted returns the next step of a recipient whose mail a provider has accepted.
func (p *Policy) accepted(t *models.Try, now time.Time) Step {
	until := t.At.Add(p.cfg.FinalEventWait)
	switch {
	case !now.Before(until):
		return Step{Do: End, Reason: models.NoFinalEvent}
	case t.Deferred:
		text := "accepted by " + t.Provider + ", which is still trying to deliver"
		return awaiting(models.WaitFinalEvent, t.Provider, text, until)
	}
	return awaiting(models.WaitFinalEvent, t.Provider, "accepted by "+t.Provider+"; no final event yet", until)
}

// retry returns a call through another provider, or through the same one later, or an ending if none may be tried. Mail
// that may arrive twice is sent through the same provider only if the batch can use no other.
func (p *Policy) retry(b *models.Batch, s *models.Status, tries []models.Try, mayDouble bool) Step {
	last := &s.Last
	st := Step{
		Do:        Call,
		Retry:     s.Retries + 1,
		MayDouble: mayDouble,
		Doubt:     doubtOf(tries),
		Because:   because(last),
		FromEvent: last.Verdict == models.VerdictFailed,
	}
	options := p.remaining(b, tries, s.Retries+1)
	if only := p.allowed(b); mayDouble && len(options) == 0 && len(only) == 1 {
		only[0].NotBefore = p.again(b, last, s.Retries+1)
		options = only // the batch wants the mail to be sent again, and names no other way
	}
	switch {
	case len(options) == 0:
		return ending(st.Doubt, Step{Reason: models.NoProviderLeft, Detail: describe(last)})
	case s.Called && s.Retries >= p.cfg.MaxRetries && (mayDouble || !p.allUnavailable(b, s, tries, options)):
		return ending(st.Doubt, Step{Reason: models.RetriesUsedUp, Detail: describe(last)})
	}
	if !mayDouble {
		p.soonIfNoneTakes(b, s, tries, options)
	}
	st.Options, st.Fixed = options, len(b.Providers) > 0
	return st
}

// allUnavailable reports whether every provider that a mail may use has refused it for a temporary reason. If so,
// MaxRetries does not apply: the mail is retried until its deadline.
//
// It returns false if retries are off, or if no provider has verified the sender, because an operator must learn of
// that.
func (p *Policy) allUnavailable(b *models.Batch, s *models.Status, tries []models.Try, options []Option) bool {
	if p.cfg.MaxRetries == 0 || s.Released || b.ExpiresAt.IsZero() || len(options) < len(p.allowed(b)) {
		return false
	}
	untried := func(o Option) bool { return o.NotBefore.IsZero() }
	verified := func(o Option) bool { return newestAt(tries, o.Provider).Reason != models.SenderNotVerified }
	return !slices.ContainsFunc(options, untried) && slices.ContainsFunc(options, verified)
}

// split returns the next call of the search for a bad recipient, after a provider refused a whole call. The recipients
// are sent again through the same provider, in halves. These calls do not count as retries.
func (p *Policy) split(s *models.Status) Step {
	if s.Splits >= maxSplits {
		return Step{Do: End, Reason: models.InvalidRequest, Detail: describe(&s.Last)}
	}
	return Step{
		Do:      Call,
		Options: []Option{{Provider: s.Last.Provider}},
		Fixed:   true,
		Retry:   s.Retries,
		Split:   s.Splits + 1,
		Because: "sent in smaller calls to find the address that " + s.Last.Provider + " rejected",
	}
}

// inParts returns the next call of a recipient whose call had more recipients than the provider takes. It returns nil
// if that is not so, or if one mail to all cannot be divided. Smaller calls go to the same provider and are no retries.
// They come to an end, because each has fewer recipients. Another provider gets the mail if this one cannot.
func (p *Policy) inParts(v *models.View, b *models.Batch, s *models.Status, tries []models.Try) *Step {
	last := &s.Last
	if !last.WantsFewer() || v.Entry(last.Attempt).Together {
		return nil
	}
	here := slices.IndexFunc(p.allowed(b), func(o Option) bool { return o.Provider == last.Provider })
	if here < 0 {
		return nil
	}
	options := []Option{{Provider: last.Provider, Most: last.Fewer}}
	for _, o := range p.remaining(b, tries, s.Retries+1) {
		if o.Provider != last.Provider {
			options = append(options, o)
		}
	}
	return &Step{
		Do:      Call,
		Options: options,
		Fixed:   true,
		Retry:   s.Retries,
		Doubt:   doubtOf(tries),
		Because: "sent in smaller calls, because " + describe(last),
	}
}

// named returns the providers that a batch names, or all.
func (p *Policy) named(b *models.Batch) []string {
	if len(b.Providers) > 0 {
		return b.Providers
	}
	return p.names
}

// refuses says why a provider cannot carry the message of a batch, or "". Nothing is known of a provider that is not
// configured here.
func (p *Policy) refuses(name string, b *models.Batch) string {
	if a := p.providers[name]; a != nil {
		return a.Refuses(b)
	}
	return ""
}

// refusals says why no provider can carry the message of a batch.
func (p *Policy) refusals(b *models.Batch) string {
	var out []string
	for _, n := range p.named(b) {
		out = append(out, n+": "+p.refuses(n, b))
	}
	return strings.Join(out, "; ")
}

// allowed returns the providers that a batch may use and that can carry its message, as options of a first attempt.
func (p *Policy) allowed(b *models.Batch) []Option {
	names := p.named(b)
	out := make([]Option, 0, len(names))
	for _, n := range names {
		if p.refuses(n, b) == "" {
			out = append(out, Option{Provider: n})
		}
	}
	return out
}

// remaining returns the providers that may still be tried: first those that were never
// tried, or only with too many recipients, at once. Then come those that refused for a temporary
// reason, after the delay of the retry.
func (p *Policy) remaining(b *models.Batch, tries []models.Try, retry int) []Option {
	var untried, later []Option
	suppressed := 0
	for i := range tries {
		if tries[i].Reason == models.SuppressedBounce && tries[i].Verdict.Settled() {
			suppressed++
		}
	}
	if suppressed > 1 {
		return nil // two providers know the address as bad: a third would only lose reputation
	}
	for _, o := range p.allowed(b) {
		newest := newestAt(tries, o.Provider)
		switch {
		case newest == nil:
			untried = append(untried, o)
		case newest.WantsFewer() && b.Envelope == nil:
			o.Most = newest.Fewer
			untried = append(untried, o)
		case temporary(newest):
			o.NotBefore = p.again(b, newest, retry)
			if newest.RetryAt.After(o.NotBefore) || newest.Class == models.Throttled && !newest.RetryAt.IsZero() {
				o.NotBefore = newest.RetryAt
			}
			later = append(later, o)
		}
	}
	return append(untried, later...)
}

// again returns when the mail of a try may be tried through the same provider again, as a retry with a number.
func (p *Policy) again(b *models.Batch, t *models.Try, retry int) time.Time {
	left := b.ExpiresAt.Sub(t.At)
	if left <= 0 { // it was released after its expiry
		left = math.MaxInt64
	}
	return t.At.Add(p.cfg.delay(retry, left))
}

// newestAt returns the newest try through a provider, or nil.
func newestAt(tries []models.Try, provider string) *models.Try {
	for i := len(tries) - 1; i >= 0; i-- {
		if tries[i].Provider == provider {
			return &tries[i]
		}
	}
	return nil
}

// temporary reports whether the same provider may take the same mail later.
func temporary(t *models.Try) bool {
	if t.Verdict != models.VerdictRefused {
		return false
	}
	switch t.Class {
	case models.Throttled, models.Unavailable, models.AccountClass:
		return true
	}
	return false
}

// reroutable reports whether another provider may deliver the mail of a failed try. Nothing is sent again because of a
// guess.
func reroutable(t *models.Try) bool {
	if t.Guess {
		return false
	}
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

// because returns the reason for an attempt that follows t.
func because(t *models.Try) string {
	switch {
	case t.Verdict == models.VerdictFailed:
		return t.Provider + " reported: " + t.Reason.Words()
	case t.Verdict == models.VerdictRefused && t.Status > 0:
		words := t.Reason.Words()
		if text := http.StatusText(t.Status); t.Reason == models.ProviderUnavailable && text != "" {
			words = strings.ToLower(text)
		}
		return fmt.Sprintf("%s returned %d (%s)", t.Provider, t.Status, words)
	case t.Verdict == models.VerdictRefused:
		return t.Provider + ": " + t.Reason.Words()
	}
	return "nothing proved within the evidence window that " + t.Provider + " took it"
}

// describe returns the outcome of a recipient's last try; it is empty if there is none.
func describe(t *models.Try) string {
	if t.Attempt == 0 {
		return ""
	}
	return because(t)
}
