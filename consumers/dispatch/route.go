package dispatch

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// job is one provider call to be made.
type job struct {
	Provider *provider.Provider
	Who      models.Set
	Step     *policy.Step
	files    [][]byte          // the bytes of the attachments, while the call is made
	release  func()            // releases the slot; nil: not acquired yet, the handler may wait for it
	found    suppression.Found // what the suppression lists said of Who
}

// load returns what the call takes of the limits.
func (j *job) load() provider.Load {
	return provider.Load{Recipients: j.Who.Len(), Whole: j.whole()}
}

// whole reports whether the call is not divided: one mail to all, or a repeat, which has the recipients of its attempt.
func (j *job) whole() bool { return j.Step.Together || j.Step.Repeats > 0 }

// size returns how many recipients the call has for the health of the provider. One that is not divided
// counts as the largest call that the provider may get, if it has more.
func (j *job) size() int {
	if j.whole() {
		return min(j.Who.Len(), j.Provider.CallSize(time.Now()))
	}
	return j.Who.Len()
}

// router chooses the providers of calls. It requeues the steps that are not for this handler, or not for now.
type router struct {
	chunks    *Chunks
	outbox    *Outbox
	providers *provider.Set
	recheck   time.Duration // steps that are due later are left to the agenda
}

// selectCall returns the next call for this handler; nil: there is none. It requeues
// every other due step, for another provider's exclusive consumer or with a delay,
// except those that this handler can do in a later round.
func (r *router) selectCall(
	ctx context.Context, c *Chunk, steps []policy.Step, own *provider.Provider, only models.Set,
) (chosen *job, err error) {
	now := time.Now()
	var outgoing messages
	for i := range steps {
		st := &steps[i]
		if st.Do == policy.Wait && st.Repeats > 0 && st.Until.Before(now.Add(r.recheck)) {
			r.awaitRepeat(c, st, &outgoing)
		}
		if !st.Calls(only) || chosen != nil && own != nil && r.mayUse(st, own, now) {
			continue
		}
		if chosen == nil {
			if chosen, err = r.choose(ctx, c, st, now, own); err != nil {
				return nil, err
			}
			if chosen != nil {
				continue
			}
		}
		r.requeue(c, st, now, "", &outgoing)
	}
	r.outbox.announce(ctx, c, outgoing...)
	return chosen, nil
}

// awaitRepeat adds a message about the repeat of a call to out, for when it is due, unless one was added before. The agenda
// announces a repeat that is due later.
func (r *router) awaitRepeat(c *Chunk, st *policy.Step, out *messages) {
	if !st.Recipients.Minus(c.requeued).Empty() {
		c.requeued = c.requeued.Or(st.Recipients)
		out.add(models.Message{Kind: models.BatchMessage, NotBefore: st.Until})
	}
}

// requeueAll requeues every due step, because the provider busy takes none.
func (r *router) requeueAll(ctx context.Context, c *Chunk, steps []policy.Step, only models.Set, busy string) {
	now := time.Now()
	var outgoing messages
	for i := range steps {
		if steps[i].Calls(only) {
			r.requeue(c, &steps[i], now, busy, &outgoing)
		}
	}
	r.outbox.announce(ctx, c, outgoing...)
}

// mayUse reports whether the call of a step may go through a provider now.
func (r *router) mayUse(s *policy.Step, a *provider.Provider, now time.Time) bool {
	for _, o := range s.Options {
		if o.Provider == a.Name && !o.NotBefore.After(now) {
			ok, _ := r.usable(s, a, now)
			return ok
		}
	}
	return false
}

// usable reports whether a provider takes the mail of a step, and if not, when to try
// again. That is sooner if no other provider takes it now.
func (r *router) usable(s *policy.Step, a *provider.Provider, now time.Time) (bool, time.Time) {
	ok, until := a.Health.Usable(s.SenderDomain, now, false)
	tooMany := tooManyUntil(s, a, now)
	if ok && tooMany.IsZero() {
		return true, until
	}
	if slices.ContainsFunc(s.Options, func(o policy.Option) bool {
		b := r.providers.Get(o.Provider)
		if b == nil || b == a || o.NotBefore.After(now) || !tooManyUntil(s, b, now).IsZero() {
			return false
		}
		healthy, _ := b.Health.Usable(s.SenderDomain, now, false)
		return healthy
	}) {
		return ok && tooMany.IsZero(), models.LaterOf(until, tooMany)
	}
	return a.Health.Usable(s.SenderDomain, now, true)
}

// tooManyUntil returns until when a provider takes no mail to as many recipients as a step has, which is not divided;
// zero: it takes it, as far as this worker knows.
func tooManyUntil(s *policy.Step, a *provider.Provider, now time.Time) time.Time {
	if !s.Together {
		return time.Time{}
	}
	return a.Health.TooManyUntil(s.Recipients.Len(), now)
}

// choose returns a job for a step through a provider that can take it here and now;
// nil: there is none. It reads recipients only if it finds a provider.
func (r *router) choose(
	ctx context.Context, c *Chunk, st *policy.Step, now time.Time, own *provider.Provider,
) (*job, error) {
	if own != nil {
		if !r.mayUse(st, own, now) {
			return nil, nil
		}
		if err := r.chunks.LoadRecipients(ctx, c); err != nil {
			return nil, err
		}
		return &job{Provider: own, Who: cut(c, st, own), Step: st}, nil
	}
	if st.ByProvider() {
		return nil, nil
	}
	for _, a := range r.order(st, now) {
		if !a.Ready() {
			continue
		}
		release, ok := a.Slots.Try(c.Lane)
		if !ok {
			continue
		}
		if err := r.chunks.LoadRecipients(ctx, c); err != nil {
			release()
			return nil, err
		}
		j := &job{Provider: a, Who: cut(c, st, a), Step: st, release: release}
		if a.Take(c.Lane, j.load()) > 0 {
			release()
			continue
		}
		return j, nil
	}
	return nil, nil
}

// order returns the providers of a step that are due, best first: in the batch's own
// order if it has one, else by smooth weighted round robin.
func (r *router) order(st *policy.Step, now time.Time) []*provider.Provider {
	due := r.due(st, now)
	if len(due) < 2 || st.Fixed {
		return due
	}
	best := provider.RoundRobin(due)
	out := append(make([]*provider.Provider, 0, len(due)), best)
	for _, a := range due {
		if a != best {
			out = append(out, a)
		}
	}
	return out
}

// due returns the usable providers of a step that may be tried now: those that were not
// tried yet, or else the first that was.
func (r *router) due(st *policy.Step, now time.Time) (due []*provider.Provider) {
	for _, o := range st.Options { // tried ones are last
		tried := !o.NotBefore.IsZero()
		if tried && len(due) > 0 {
			break
		}
		a := r.providers.Get(o.Provider)
		if a == nil || o.NotBefore.After(now) {
			continue
		}
		if ok, _ := r.usable(st, a, now); ok {
			due = append(due, a)
		}
	}
	return due
}

// cut returns the recipients of a step that go into one call: no more than the provider
// takes, half of them during the search for a bad recipient, and no address twice. One mail
// to all is not divided.
func cut(c *Chunk, st *policy.Step, a *provider.Provider) models.Set {
	who := st.Recipients
	if st.Repeats > 0 {
		return c.View.Entry(st.Repeats).Recipients
	}
	if st.Together {
		return who
	}
	if st.Split > 0 && who.Len() > 1 {
		who, _ = who.Halves()
	}
	var out models.Set
	n := 0
	most := a.CallSize(time.Now())
	for _, o := range st.Options {
		if o.Provider == a.Name && o.Most > 0 {
			most = min(most, o.Most)
		}
	}
	seen := make(map[string]bool, min(who.Len(), most))
	for r := range who.All() {
		if n == most {
			break
		}
		if address := strings.ToLower(c.Recipients[r-1].Email); address == "" || !seen[address] { // or it was erased
			seen[address] = true
			out.Add(r)
			n++
		}
	}
	return out
}

// messages is a list of distinct messages about one chunk.
type messages []models.Message

// add adds a message. If the list has one that differs only in its time, the earlier
// time counts. The generic consumer gets one message, whatever the retries: it handles the whole
// chunk, and would answer each of two messages with two.
func (n *messages) add(m models.Message) {
	for i := range *n {
		o := &(*n)[i]
		if o.Kind == m.Kind && o.Provider == m.Provider && o.ID == m.ID &&
			(o.Retry == m.Retry || m.Kind == models.BatchMessage) {
			o.NotBefore = models.EarlierOf(o.NotBefore, m.NotBefore)
			return
		}
	}
	*n = append(*n, m)
}

// requeue adds a message about a step to out, unless one was added for all of its
// recipients before. The message is for the exclusive consumer of the provider that the
// step should use, or, while no provider is usable, for the generic consumer after a
// delay. The provider busy is skipped for a second.
func (r *router) requeue(c *Chunk, st *policy.Step, now time.Time, busy string, out *messages) {
	if st.Recipients.Minus(c.requeued).Empty() {
		return
	}
	c.requeued = c.requeued.Or(st.Recipients)
	m := models.Message{Kind: models.BatchMessage, Retry: st.Retry}
	var first time.Time
	for _, o := range st.Options {
		a := r.providers.Get(o.Provider)
		if a == nil {
			continue
		}
		at := o.NotBefore
		if ok, until := r.usable(st, a, models.LaterOf(now, at)); !ok {
			at = models.LaterOf(at, until)
		}
		if o.Provider == busy {
			at = models.LaterOf(at, now.Add(time.Second))
		}
		if m.Provider == "" || at.Before(first) && first.After(now) {
			m.Provider, first = a.Name, at
		}
	}
	switch {
	case m.Provider == "": // none of the allowed providers is configured here
		m.NotBefore = now.Add(time.Minute)
	case first.After(now):
		// No provider is usable yet: the generic consumer chooses again then.
		m.NotBefore, m.Provider = first.Add(jitter(first.Sub(now))), ""
	default:
		m.Kind = models.ProviderMessage
		r.chunks.queued(c)
		m.Provider = r.preferred(c, st, now, busy, m.Provider)
	}
	if st.FromEvent && m.Kind == models.ProviderMessage {
		m.Kind, m.ID = models.LogMessage, c.ID.Log(st.Recipients.First())
	}
	out.add(m)
}

// preferred returns the provider whose queue a step joins if several may take it: the
// first idle one, or else the first. It ignores the provider busy.
func (r *router) preferred(c *Chunk, st *policy.Step, now time.Time, busy, fallback string) string {
	due := slices.DeleteFunc(r.order(st, now), func(a *provider.Provider) bool { return a.Name == busy })
	if len(due) == 0 {
		return fallback
	}
	if i := slices.IndexFunc(due, func(a *provider.Provider) bool {
		return a.Idle(c.Lane, provider.Load{Recipients: st.Recipients.Len(), Whole: st.Together})
	}); i > 0 {
		return due[i].Name
	}
	return due[0].Name
}

// idleElsewhere reports whether another provider could take a job at once.
func (r *router) idleElsewhere(c *Chunk, j *job) bool {
	return slices.ContainsFunc(r.due(j.Step, time.Now()), func(a *provider.Provider) bool {
		return a != j.Provider && a.Idle(c.Lane, j.load())
	})
}

// jitter returns a random delay of up to a tenth of wait, at most 30 s. It spreads
// messages that would otherwise return at the same instant.
func jitter(wait time.Duration) time.Duration {
	if wait <= 0 {
		return 0
	}
	return rand.N(min(wait/10, 30*time.Second) + 1) //nolint:gosec // spreading load
}
