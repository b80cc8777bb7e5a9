package consumers

import (
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// action is what is to be done next for some recipients.
type action int

const (
	nothing action = iota
	call           // hand them to a provider
	wait           // look again at a time
	end            // append an ending
)

// option is a provider that may be tried, and when at the earliest.
type option struct {
	provider  string
	notBefore time.Time
}

// step is the next step of a group of recipients that share a history.
type step struct {
	do        action
	who       models.Set
	from      string    // the sender's domain
	options   []option  // of call: in order of preference
	until     time.Time // of wait
	retry     int       // of call: the number of the retry
	split     int       // of call: >0 while a bad recipient is looked for
	mayDouble bool
	doubt     models.Reason // of call: what is not known of earlier ones
	released  bool          // of call: by hand, so that the deadline does not count
	reason    models.Reason // of end
	detail    string
	because   string          // of call: why another attempt is made
	event     bool            // of call: a provider's event, not an answer, asked for it
	cancel    *models.Command // of end: it was ordered, and is a cancellation
	fixed     bool            // of call: the order of options is the batch's wish
}

// policy is what the decision table needs to know besides the facts. It has no
// state: the same facts at the same time give the same steps in every worker.
type policy struct {
	cfg       *Config
	providers []string                 // all providers, in order of configuration
	windows   map[string]time.Duration // of evidence, by provider
}

// window is how long an unknown outcome at a provider waits for evidence after
// the call must have ended.
func (p *policy) window(provider string) time.Duration {
	if w := p.windows[provider]; w > 0 {
		return w
	}
	return p.cfg.EvidenceWindow
}

// maxSplits bounds the calls that are made per recipient to find a bad one
// among a thousand: halving 1,000 takes 10.
const maxSplits = 14

// plan decides the next step of every recipient of a chunk, grouped.
func (p *policy) plan(v *models.View, b *models.Batch, o *orders, now time.Time) []step {
	var steps []step
	byHistory := map[uint64]int{}
	var blocks []*models.Block
	for i := range v.Logs {
		s := &v.Logs[i]
		if s.State != models.Queued {
			continue
		}
		r := i + 1
		h := history(v, r)
		if len(o.blocks) > 0 {
			if blocks = o.blocksOf(b, r); len(blocks) > 0 {
				h = mixed(h, blocks)
			}
		}
		k, ok := byHistory[h]
		if !ok {
			k = len(steps)
			byHistory[h] = k
			st := p.next(v, b, s, v.Tries(r), &o.rule, now)
			st.from = models.DomainOf(b.Content.From.Email)
			o.apply(p, &st, blocks, now)
			steps = append(steps, st)
		}
		steps[k].who.Add(r)
	}
	return steps
}

// history is equal for recipients whose next step is the same. It is a hash, made
// by hand because a chunk asks for it a thousand times.
func history(v *models.View, r int) uint64 {
	h := mixer(14695981039346656037)
	if v.Status(r).Released {
		h.number(1)
	}
	if v.Status(r).Accepted != nil { // who was let go by hand may have the same tries, and none
		h.number(2)
	}
	v.EachTry(r, func(t *models.Try) {
		h.number(int64(t.Attempt))
		h.number(int64(t.Status))
		h.text(string(t.Verdict))
		h.text(string(t.Class))
		h.text(string(t.Reason))
		switch t.Verdict {
		case models.VerdictAccepted:
			h.number(t.At.Unix() / 60)
		case models.VerdictFailed, models.VerdictDelivered: // the time changes nothing about what follows
		case models.VerdictPending, models.VerdictUnknown, models.VerdictRefused:
			h.number(t.At.UnixMilli())
		}
	})
	return uint64(h)
}

// mixed tells apart recipients that different blocks meet.
func mixed(h uint64, blocks []*models.Block) uint64 {
	m := mixer(h)
	for _, b := range blocks {
		m.text(b.ID)
	}
	return uint64(m)
}

// mixer is FNV-1a.
type mixer uint64

func (m *mixer) byte(b byte) { *m = (*m ^ mixer(b)) * 1099511628211 }

func (m *mixer) number(n int64) {
	for range 8 {
		m.byte(byte(n)) //nolint:gosec // the lowest byte is meant
		n >>= 8
	}
}

func (m *mixer) text(s string) {
	for i := range len(s) {
		m.byte(s[i])
	}
	m.byte(0)
}

// next is the decision table: (what is known) x (providers, retries, time left).
func (p *policy) next(v *models.View, b *models.Batch, s *models.Status, tries []models.Try, rule *control.BatchRule, now time.Time) step {
	last := &s.Last
	switch {
	case s.Unsettled():
		st := p.unsettled(v, b, s, tries, now)
		if st.do == call && rule.Cancel != nil {
			return step{do: end, reason: models.OutcomeUnknown, detail: cancelledMeanwhile}
		}
		if st.do == call && b.Redacted {
			return step{do: end, reason: models.OutcomeUnknown, detail: contentGone}
		}
		if st.do == call && rule.Waits != "" {
			return p.held(b, now)
		}
		return st
	case rule.Cancel != nil:
		return cancelled(s, tries, rule.Cancel)
	case b.Redacted: // released by hand, and not handed over in all that time
		return ending(doubtOf(tries), step{reason: models.Expired, detail: contentGone})
	case !s.Released && over(b, now):
		return ending(doubtOf(tries), step{reason: models.Expired, detail: lastWords(last)})
	case rule.Waits != "":
		return p.held(b, now)
	case s.Released:
		doubt := doubtOf(tries)
		return step{do: call, options: p.fresh(b), fixed: len(b.Providers) > 0, retry: s.Retries + 1, mayDouble: doubt != "", doubt: doubt, released: true, because: "released by hand"}
	case s.Attempts == 0:
		return step{do: call, options: p.fresh(b), fixed: len(b.Providers) > 0}
	case last.Class == models.Split && last.Verdict == models.VerdictRefused:
		return p.split(s)
	case !curable(last):
		return step{do: end, reason: last.Reason}
	}
	return p.again(b, s, tries, false)
}

const cancelledMeanwhile = "the batch was cancelled meanwhile"

// cancelled ends what is not to be sent any more. What was handed over before says
// what became of it, and not that it never was.
func cancelled(s *models.Status, tries []models.Try, order *models.Command) step {
	doubt := doubtOf(tries)
	switch {
	case doubt != "":
		return step{do: end, reason: doubt, detail: cancelledMeanwhile}
	case s.Last.Verdict == models.VerdictFailed:
		return step{do: end, reason: s.Last.Reason, detail: cancelledMeanwhile}
	}
	return step{do: end, cancel: order}
}

// ending ends what is not sent any more for a reason of ours. Where it may have been
// sent already it says that this is not known, so that nobody takes it for not sent.
func ending(doubt models.Reason, st step) step {
	st.do = end
	if doubt != "" {
		st.reason, st.detail = doubt, clip(st.reason.Words()+"; "+st.detail)
	}
	return st
}

// contentGone is why nothing more of an old batch can be sent.
const contentGone = "its content and addresses were removed after their time"

// over reports whether the deadline of a batch has passed.
func over(b *models.Batch, now time.Time) bool {
	return !b.Deadline.IsZero() && !now.Before(b.Deadline)
}

// held waits until an order is lifted: whoever lifts it announces the batch, and
// the agenda looks now and then.
func (p *policy) held(b *models.Batch, now time.Time) step {
	until := now.Add(p.cfg.Recheck)
	if !b.Deadline.IsZero() && now.Before(b.Deadline) {
		until = minTime(until, b.Deadline)
	}
	return step{do: wait, until: until}
}

// unsettled decides for recipients that a provider may have.
func (p *policy) unsettled(v *models.View, b *models.Batch, s *models.Status, tries []models.Try, now time.Time) step {
	last := &s.Last
	if last.Verdict != models.VerdictAccepted {
		until := v.Entry(last.Attempt).CallEnds.Add(p.window(last.Provider))
		if now.Before(until) {
			return step{do: wait, until: until}
		}
	}
	if s.Accepted != nil { // nothing more is sent, whatever became of the newest attempt
		until := s.Accepted.At.Add(p.cfg.FinalEventWait)
		if now.Before(until) {
			return step{do: wait, until: until}
		}
		return step{do: end, reason: models.NoFinalEvent}
	}
	switch {
	case b.OnUnknown != models.Resend:
		return step{do: end, reason: models.OutcomeUnknown}
	case over(b, now):
		return step{do: end, reason: models.OutcomeUnknown, detail: "the deadline of the batch passed meanwhile"}
	}
	return p.again(b, s, tries, true)
}

// again sends to another provider, or to the same one later, or ends.
func (p *policy) again(b *models.Batch, s *models.Status, tries []models.Try, mayDouble bool) step {
	last := &s.Last
	st := step{do: call, retry: s.Retries + 1, mayDouble: mayDouble, doubt: doubtOf(tries), because: because(last), event: last.Verdict == models.VerdictFailed}
	options := p.left(b, tries, s.Retries+1)
	switch {
	case len(options) == 0:
		return ending(st.doubt, step{reason: models.NoProviderLeft, detail: lastWords(last)})
	case s.Called && s.Retries >= p.cfg.MaxRetries && !p.allAway(b, s, tries, options):
		return ending(st.doubt, step{reason: models.RetriesUsedUp, detail: lastWords(last)})
	}
	st.options, st.fixed = options, len(b.Providers) > 0
	return st
}

// allAway reports whether every provider that mail may use has refused it for a
// reason that passes. It waits then until one is back, or its deadline ends it,
// however many retries that takes; unless none are wanted, or none of them has
// verified the sender, of which somebody must hear.
func (p *policy) allAway(b *models.Batch, s *models.Status, tries []models.Try, options []option) bool {
	if p.cfg.MaxRetries == 0 || s.Released || b.Deadline.IsZero() || len(options) < len(p.fresh(b)) {
		return false
	}
	return !slices.ContainsFunc(options, func(o option) bool { return o.notBefore.IsZero() }) &&
		slices.ContainsFunc(options, func(o option) bool { return newestAt(tries, o.provider).Reason != models.SenderNotVerified })
}

// split sends the recipients of a call that was refused as a whole again, in
// halves, through the same provider. It is no retry.
func (p *policy) split(s *models.Status) step {
	if s.Splits >= maxSplits {
		return step{do: end, reason: models.InvalidRequest, detail: lastWords(&s.Last)}
	}
	return step{do: call, options: []option{{provider: s.Last.Provider}}, fixed: true, retry: s.Retries, split: s.Splits + 1,
		because: "looking for the recipient that " + s.Last.Provider + " refuses"}
}

// fresh lists the providers of a first attempt.
func (p *policy) fresh(b *models.Batch) []option {
	names := p.providers
	if len(b.Providers) > 0 {
		names = b.Providers
	}
	out := make([]option, 0, len(names))
	for _, n := range names {
		out = append(out, option{provider: n})
	}
	return out
}

// left lists the providers that may still be tried: those never tried first, at
// once; then those that failed for a passing reason, after a delay that grows
// with the number of the retry.
func (p *policy) left(b *models.Batch, tries []models.Try, retry int) []option {
	var fresh, later []option
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
		newest := newestAt(tries, o.provider)
		switch {
		case newest == nil:
			fresh = append(fresh, o)
		case passing(newest):
			o.notBefore = newest.At.Add(p.cfg.delay(retry))
			if newest.RetryAt.After(o.notBefore) || newest.Class == models.Throttled && !newest.RetryAt.IsZero() {
				o.notBefore = newest.RetryAt
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
	case models.SuppressedBounce, models.PolicyReputation, models.PolicyContent, models.ProviderAccount, models.DeliveryTimeout,
		models.DNSOrConnect, models.RateLimited, models.Greylisted, models.RejectedHere, models.ProviderUnavailable:
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

// earliest is when the first provider of the step may be tried.
func (s *step) earliest() time.Time {
	var first time.Time
	for i, o := range s.options {
		if i == 0 || o.notBefore.Before(first) {
			first = o.notBefore
		}
	}
	return first
}
