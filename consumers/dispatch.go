package consumers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/tracing"
)

// generic handles batch.<uuid>: a chunk through any account. It never waits for
// a busy, limited or broken one.
func (e *Engine) generic(ctx context.Context, m models.Message) models.Disposition {
	return e.dispatch(ctx, m, nil, models.Set{})
}

// exclusive handles <ns>.<uuid>: a chunk through this account, whose slots and
// rates it may wait for, because it delays nobody else.
func (e *Engine) exclusive(ctx context.Context, m models.Message) models.Disposition {
	a := e.byName[m.Account]
	if a == nil {
		return models.Park("no account " + m.Account + " is configured")
	}
	return e.dispatch(ctx, m, a, models.Set{})
}

// logRetry handles log.<ns>.<uuid>: one recipient, through this account. Others
// of its chunk that are due for the account go along in the same call.
func (e *Engine) logRetry(ctx context.Context, m models.Message) models.Disposition {
	a := e.byName[m.Account]
	if a == nil {
		return models.Park("no account " + m.Account + " is configured")
	}
	only := models.SetOf(m.ID.Recipient())
	m.ID = m.ID.ChunkID()
	return e.dispatch(ctx, m, a, only)
}

// maxRounds bounds how many calls one message makes before it is passed on, so
// that one message cannot keep a worker for ever.
const maxRounds = 64

// dispatch brings a chunk forward, unless another handler of this process does
// so: that one will look once more.
func (e *Engine) dispatch(ctx context.Context, m models.Message, mine *account, only models.Set) models.Disposition {
	models.OnItsWay(m.Lane)
	w := work{m.ID, m.Account}
	t := e.underway.begin(w)
	if t == nil {
		return models.Done()
	}
	defer e.underway.leave(w, t) // a handler may die
	for {
		said, more := e.advanceBy(ctx, m, mine, only)
		if said.IsDone() && !more && e.underway.again(w, t) {
			only = models.Set{} // whatever was asked for meanwhile
			continue
		}
		if asked := e.underway.leave(w, t); more || asked {
			next := models.Message{Kind: models.AccountMessage, Account: m.Account, ID: m.ID, Retry: m.Retry, Lane: m.Lane}
			if mine == nil {
				next.Kind = models.BatchMessage
			}
			if !e.wake(ctx, next) && said.IsDone() {
				return models.Later(time.Second)
			}
		}
		return said
	}
}

// advanceBy decides, calls, and passes on what is to be done elsewhere or later,
// for so many rounds. The message only woke it; what is done follows from the
// store. It reports whether there is more to do here and now.
func (e *Engine) advanceBy(ctx context.Context, m models.Message, mine *account, only models.Set) (said models.Disposition, more bool) {
	c, err := e.begin(ctx, m)
	if err != nil {
		return e.failed(err, "load", m), false
	}
	c.lane = m.Lane
	defer e.summaries.looked(c)
	span := tracing.Start(c.id, "dispatch", time.Time{}, "queue", string(m.Kind), "account", m.Account, "lane", string(m.Lane), "chunk", c.id.String())
	defer span.End("")
	for range maxRounds {
		if ctx.Err() != nil {
			return models.Later(0), false // stopping: another worker goes on
		}
		steps, err := e.plan(ctx, c, time.Now())
		if err != nil {
			return e.failed(err, "plan", m), false
		}
		if ended, err := e.close(ctx, c, steps); err != nil {
			return e.failed(err, "close", m), false
		} else if ended {
			continue
		}
		job, err := e.pick(ctx, c, steps, mine, only)
		if err != nil {
			return e.failed(err, "load", m), false
		}
		if job == nil {
			return c.passedOn(), false // everything left was, or waits for evidence
		}
		switch err := e.attempt(ctx, c, job); {
		case errors.Is(err, errBusy):
			e.passAllOn(c, steps, only, job.account.Name)
			return c.passedOn(), false
		case errors.Is(err, errPassedOn):
			return c.passedOn(), false
		case err != nil:
			return e.failed(err, "attempt", m), false
		}
	}
	return c.passedOn(), true
}

// passedOn ends a message whose work goes on elsewhere. If that could not be
// announced, the message itself is what brings the chunk back.
func (c *chunk) passedOn() models.Disposition {
	if c.missed {
		return models.Later(time.Second)
	}
	return models.Done()
}

// plan obeys what was ordered and decides the next steps of a chunk.
func (e *Engine) plan(ctx context.Context, c *chunk, now time.Time) ([]step, error) {
	if err := e.journal.Within(ctx, models.OrderAge); err != nil {
		return nil, err
	}
	// What announces a batch may be the order that lets it go on, which is newer than the rules.
	if e.journal.Rules().Batch(c.batch).Waits != "" {
		if err := e.journal.Sync(ctx); err != nil {
			return nil, err
		}
	}
	if err := e.obey(ctx, c); err != nil {
		return nil, err
	}
	o, err := e.ordersFor(ctx, c)
	if err != nil {
		return nil, err
	}
	return e.policy.plan(c.view, c.batch, &o, now), nil
}

// failed decides the fate of a message that could not be handled.
func (e *Engine) failed(err error, doing string, m models.Message) models.Disposition {
	if errors.Is(err, models.ErrNotFound) {
		// The announcement of a batch that does not exist (yet): the agenda
		// will announce it again if it does.
		return models.Done()
	}
	if errors.Is(err, models.ErrInvalid) {
		return models.Park(doing + ": " + err.Error())
	}
	e.log.Warn("consumer will try again", "doing", doing, "chunk", m.ID.String(), "queue", m.Key(), "err", err)
	return models.Later(2 * time.Second)
}

// chunk is a chunk being worked on.
type chunk struct {
	id         models.ID
	batch      *models.Batch
	lane       models.Lane
	size       int
	recipients []models.Recipient // only while they are needed: see addressed
	passed     models.Set         // recipients whose step was announced elsewhere
	missed     bool               // an announcement about it failed
	entries    []models.Entry
	facts      []models.Fact
	view       *models.View
}

func (c *chunk) resolve() {
	now := func() { c.view = models.Resolve(c.size, c.entries, c.facts) }
	if c.lane == models.Urgent {
		now()
	} else {
		models.InBackground(now)
	}
}

// message completes a message about the chunk.
func (c *chunk) message(m models.Message) models.Message {
	if m.ID.IsZero() {
		m.ID = c.id
	}
	m.Lane = c.lane
	if m.Lane == "" {
		m.Lane = c.batch.Lane
	}
	return m
}

// addressed reads the recipients of a chunk, if it does not have them. They are
// most of its memory, so they are let go of whenever the chunk waits.
func (e *Engine) addressed(ctx context.Context, c *chunk) error {
	if c.recipients != nil {
		return nil
	}
	rs, err := e.store.Recipients(ctx, c.id)
	if err != nil {
		return err
	}
	if len(rs) != c.size {
		return fmt.Errorf("%w: chunk of %d recipients holds %d", models.ErrInvalid, c.size, len(rs))
	}
	c.recipients = rs
	return nil
}

// look reads what is known of a chunk, without its recipients.
func (e *Engine) look(ctx context.Context, id models.ID) (*chunk, error) {
	b, err := e.batch(ctx, id.Batch())
	if err != nil {
		return nil, err
	}
	c := &chunk{id: id, batch: b, lane: b.Lane, size: b.ChunkSize(id.ChunkNumber())}
	if c.size == 0 {
		return nil, fmt.Errorf("%w: the batch has no chunk %d", models.ErrNotFound, id.ChunkNumber())
	}
	return c, e.reload(ctx, c)
}

func (e *Engine) reload(ctx context.Context, c *chunk) (err error) {
	if c.entries, c.facts, err = e.store.Record(ctx, c.id); err != nil {
		return err
	}
	c.resolve()
	return nil
}

// close appends the endings that are due. It reports whether it changed the
// ledger.
func (e *Engine) close(ctx context.Context, c *chunk, steps []step) (bool, error) {
	changed := false
	for i := range steps {
		st := &steps[i]
		if st.do != end || !e.proved(c, st, time.Now()) {
			continue
		}
		entry := models.Entry{Kind: models.Ending, At: time.Now().UTC(), Recipients: st.who, Reason: st.reason, Detail: clip(st.detail)}
		if o := st.cancel; o != nil {
			entry.Kind, entry.Reason, entry.Detail, entry.Order = models.Cancel, models.CancelledByRq, clip(o.Why), o.Number
		}
		err := e.append(ctx, c, entry)
		if conflict(err) {
			return true, e.reload(ctx, c)
		}
		if err != nil {
			return changed, err
		}
		changed = true
		e.metrics.ended(&entry)
		e.log.Debug("gave up", "chunk", c.id.String(), "recipients", st.who.Len(), "reason", string(st.reason))
	}
	return changed, nil
}

// append adds an entry to the ledger and to the chunk at hand.
func (e *Engine) append(ctx context.Context, c *chunk, entry models.Entry) error {
	entry.Number = c.view.NextNumber()
	entry.Token = models.NewToken()
	if err := e.store.Append(ctx, c.id, entry); err != nil {
		return err
	}
	c.entries = append(c.entries, entry)
	c.resolve()
	return nil
}

func conflict(err error) bool {
	var ce *models.ConflictError
	return errors.As(err, &ce)
}

// job is one provider call to be made.
type job struct {
	account *account
	who     models.Set
	step    *step
	release func() // gives the slot back; nil: not taken yet, the handler may wait for it
}

// pick finds the next call that this handler makes itself, if there is one, and
// passes every other due step on: to another account's exclusive consumer, or
// into a delay. What it can do itself it comes to in a later round.
func (e *Engine) pick(ctx context.Context, c *chunk, steps []step, mine *account, only models.Set) (chosen *job, err error) {
	now := time.Now()
	var told notices
	for i := range steps {
		st := &steps[i]
		if !st.calls(only) || chosen != nil && mine != nil && st.through(mine, now) {
			continue
		}
		if chosen == nil {
			if chosen, err = e.choose(ctx, c, st, now, mine); err != nil {
				return nil, err
			}
			if chosen != nil {
				continue
			}
		}
		e.passOn(c, st, now, "", &told)
	}
	e.announceOf(e.hard, c, told...)
	return chosen, nil
}

// passAllOn passes on every due step: the account is busy.
func (e *Engine) passAllOn(c *chunk, steps []step, only models.Set, busy string) {
	now := time.Now()
	var told notices
	for i := range steps {
		if steps[i].calls(only) {
			e.passOn(c, &steps[i], now, busy, &told)
		}
	}
	e.announceOf(e.hard, c, told...)
}

// calls reports whether a step hands mail to a provider, of one of these
// recipients if any are named.
func (s *step) calls(only models.Set) bool {
	return s.do == call && (only.Empty() || !s.who.And(only).Empty())
}

// through reports whether a step may be done through an account now.
func (s *step) through(a *account, now time.Time) bool {
	for _, o := range s.options {
		if o.account == a.Name && !o.notBefore.After(now) {
			ok, _ := a.health.usable(now)
			return ok
		}
	}
	return false
}

// choose finds an account for a step that can take it here and now; nil: there
// is none. Recipients are read only for one that is found.
func (e *Engine) choose(ctx context.Context, c *chunk, st *step, now time.Time, mine *account) (*job, error) {
	if mine != nil {
		if !st.through(mine, now) {
			return nil, nil
		}
		if err := e.addressed(ctx, c); err != nil {
			return nil, err
		}
		return &job{account: mine, who: e.cut(c, st, mine), step: st}, nil
	}
	if st.retry > 0 || st.split > 0 {
		return nil, nil // retries belong to the exclusive consumers
	}
	for _, a := range e.order(st, now) {
		release, ok := a.slots.try(c.lane)
		if !ok {
			continue
		}
		if err := e.addressed(ctx, c); err != nil {
			release()
			return nil, err
		}
		who := e.cut(c, st, a)
		if a.take(c.lane, who.Len()) > 0 {
			release()
			continue
		}
		return &job{account: a, who: who, step: st, release: release}, nil
	}
	return nil, nil
}

// order lists the usable accounts of a step that are due, best first: in the
// batch's own order if it has one; else by smooth weighted round robin, those
// that were never tried first.
func (e *Engine) order(st *step, now time.Time) []*account {
	var due []*account
	for _, o := range st.options {
		a := e.byName[o.account]
		if a == nil || o.notBefore.After(now) {
			continue
		}
		if ok, _ := a.health.usable(now); ok {
			due = append(due, a)
			if !o.notBefore.IsZero() {
				break // tried before: only if nothing fresher is due
			}
		}
	}
	if len(due) < 2 || st.fixed {
		return due
	}
	best := e.roundRobin(due)
	out := append(make([]*account, 0, len(due)), best)
	for _, a := range due {
		if a != best {
			out = append(out, a)
		}
	}
	return out
}

// roundRobin is nginx's smooth weighted round robin.
func (e *Engine) roundRobin(among []*account) *account {
	total := 0
	var best *account
	bestCredit := 0
	for _, a := range among {
		w := max(1, a.Weight)
		total += w
		a.mu.Lock()
		a.credit += w
		if best == nil || a.credit > bestCredit {
			best, bestCredit = a, a.credit
		}
		a.mu.Unlock()
	}
	best.mu.Lock()
	best.credit -= total
	best.mu.Unlock()
	return best
}

// cut takes from a step what goes into one call: not more than the account
// takes, half of it while a bad recipient is looked for, and no address twice.
func (e *Engine) cut(c *chunk, st *step, a *account) models.Set {
	who := st.who
	if st.split > 0 && who.Len() > 1 {
		who, _ = who.Halves()
	}
	var out models.Set
	n := 0
	most := a.callSize(time.Now())
	seen := make(map[string]bool, min(who.Len(), most))
	for r := range who.All() {
		if n == most {
			break
		}
		if address := strings.ToLower(c.recipients[r-1].Email); !seen[address] {
			seen[address] = true
			out.Add(r)
			n++
		}
	}
	return out
}

// notices are messages about one chunk, none of which asks for the same as
// another.
type notices []models.Message

// add adds a message, or lets the one that asks for the same come as early.
func (n *notices) add(m models.Message) {
	for i := range *n {
		if o := &(*n)[i]; o.Kind == m.Kind && o.Account == m.Account && o.ID == m.ID && o.Retry == m.Retry {
			o.NotBefore = minTime(o.NotBefore, m.NotBefore)
			return
		}
	}
	*n = append(*n, m)
}

// passOn notes who is to be told of a step that is not done here and now, if
// nobody was: the exclusive consumer of the account it should go through, or,
// while no account is usable, the generic one after a delay. The account busy is
// left alone for a second.
func (e *Engine) passOn(c *chunk, st *step, now time.Time, busy string, told *notices) {
	if st.who.Minus(c.passed).Empty() {
		return
	}
	c.passed = c.passed.Or(st.who)
	m := models.Message{Kind: models.BatchMessage, Retry: st.retry}
	var first time.Time
	for _, o := range st.options {
		a := e.byName[o.account]
		if a == nil {
			continue
		}
		at := o.notBefore
		if ok, until := a.health.usable(maxTime(now, at)); !ok {
			at = maxTime(at, until)
		}
		if o.account == busy {
			at = maxTime(at, now.Add(time.Second))
		}
		if m.Account == "" || at.Before(first) && first.After(now) {
			m.Account, first = a.Name, at
		}
	}
	switch {
	case m.Account == "": // none of the allowed accounts is configured here
		m.NotBefore = now.Add(time.Minute)
	case first.After(now):
		// Nothing is usable yet: the generic consumer chooses anew then.
		m.NotBefore, m.Account = first.Add(jitter(first.Sub(now))), ""
	default:
		m.Kind = models.AccountMessage
		if !st.fixed && busy == "" {
			m.Account = e.preferred(st, now, m.Account)
		}
	}
	if st.event && m.Kind == models.AccountMessage {
		m.Kind, m.ID = models.LogMessage, c.id.Log(st.who.First())
	}
	told.add(m)
}

// preferred chooses whose queue a step joins when several accounts may take it.
func (e *Engine) preferred(st *step, now time.Time, fallback string) string {
	if due := e.order(st, now); len(due) > 0 {
		return due[0].Name
	}
	return fallback
}

// announceOf announces something about a chunk, and notes if that failed.
func (e *Engine) announceOf(ctx context.Context, c *chunk, ms ...models.Message) {
	if len(ms) == 0 {
		return
	}
	for i := range ms {
		ms[i] = c.message(ms[i])
	}
	if !e.wake(ctx, ms...) {
		c.missed = true
	}
}

// wake publishes messages, and reports whether that worked. A message that cannot
// be published costs time only: the agenda finds its chunk.
func (e *Engine) wake(ctx context.Context, ms ...models.Message) bool {
	if !e.outage.begin(time.Now()) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := e.broker.Publish(ctx, ms...)
	e.outage.end(time.Now(), err)
	if err != nil {
		e.log.Warn("announcement failed; the agenda will repeat it", "chunk", ms[0].ID.String(), "queue", ms[0].Key(), "err", err)
	}
	return err == nil
}

func clip(s string) string {
	if len(s) <= models.MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:models.MaxText], "")
}
