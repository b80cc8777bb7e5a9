package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/tracing"
)

// caller makes the calls of providers: it appends the attempt, calls, and stores the outcome.
type caller struct {
	Deps
	cfg      Config
	commands *commands
	unwanted *unwanted
	router   *router
}

// attempt makes one provider call for a job: it appends to the ledger, checks the
// start-by, calls, and saves the outcome. Losing the race for the ledger number is
// not an error: attempt reloads the chunk, so that the caller decides again.
func (w *caller) attempt(ctx context.Context, c *Chunk, j *job) error {
	if j.release == nil {
		wait, err := w.acquire(ctx, c, j)
		if err != nil {
			return err
		}
		if wait > 0 { // rate limited for longer than a handler may block
			m := models.Message{
				Kind:      models.ProviderMessage,
				Provider:  j.Provider.Name,
				Retry:     j.Step.Retry,
				NotBefore: time.Now().Add(w.recheckAfter(c, j, wait)),
			}
			w.Outbox.announce(ctx, c, m)
			return errRequeued
		}
	}
	defer j.release()
	free, err := w.loadFiles(ctx, c, j)
	if err != nil {
		return err
	}
	defer free()
	if err := w.Chunks.LoadRecipients(ctx, c); err != nil {
		return err
	}
	if ended, err := w.unwanted.end(ctx, c, j); ended || err != nil {
		return err // the next round decides about the others
	}
	if err := w.commands.mayCall(ctx, c, j, rulesMaxAge); errors.Is(err, errHeldBack) {
		return nil // the next round decides again
	} else if err != nil {
		return err
	}
	done, ok := j.Provider.Health.Begin(j.Step.SenderDomain, j.size())
	if !ok {
		return errBusy
	}
	defer done(nil, 0)
	first := !c.View.Status(j.Who.First()).Called
	entry, began, err := w.appendAttempt(ctx, c, j)
	if err != nil {
		if conflict(err) {
			return w.Chunks.Reload(ctx, c)
		}
		return err
	}
	parts, took := w.tracedCall(c, j, entry, began)
	done(parts, took)
	if !uncalled(parts) {
		j.Provider.RecordLatency(took)
		w.Observer.Called(j.Provider, c, Call{Entry: &entry, First: first, Took: took, Parts: parts})
	}
	return w.saveOutcome(c, &entry, began, parts)
}

// tracedCall makes the call of an attempt within a span, and returns how long it took.
func (w *caller) tracedCall(
	c *Chunk, j *job, entry models.Entry, began time.Time,
) (parts []models.Part, took time.Duration) {
	sent := time.Now()
	span := tracing.Start(c.ID, "provider call", sent,
		"provider", j.Provider.Name,
		"chunk", c.ID.String(),
		"attempt", strconv.Itoa(entry.Number),
		"recipients", strconv.Itoa(entry.Recipients.Len()),
		"because", entry.Because,
	)
	parts = w.call(c, j, entry, began)
	took = time.Since(sent)
	for i := range parts {
		span.Add("answer."+string(parts[i].Class), strconv.Itoa(parts[i].Recipients.Len()))
	}
	span.End(Refusal(parts))
	return parts, took
}

// Refusal returns the class of an answer that accepted no recipient. It returns an
// empty string if any recipient was accepted.
func Refusal(parts []models.Part) string {
	for i := range parts {
		if parts[i].Class == models.Accepted {
			return ""
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return string(parts[0].Class)
}

// errRequeued ends the handling of a message whose steps were requeued until the
// rate limits allow them.
var errRequeued = errors.New("requeued")

// errBusy reports that the provider takes nothing now, although another may.
var errBusy = errors.New("provider is busy")

// slotPatience is how long mail that another provider may take waits for a slot.
const slotPatience = 2 * time.Second

// acquire waits for a slot and for the rates of the job's provider. If the rates need
// longer than a second, it takes nothing and returns how long to delay the job.
func (w *caller) acquire(ctx context.Context, c *Chunk, j *job) (time.Duration, error) {
	patience, cancel := ctx, context.CancelFunc(func() {})
	if len(j.Step.Options) > 1 {
		patience, cancel = context.WithTimeout(ctx, slotPatience)
	}
	defer cancel()
	if !j.Provider.AwaitReady(ctx) { // the number of slots is unknown until the share is
		return provider.ReadyPoll, ctx.Err()
	}
	release, ok := j.Provider.Slots.Try(c.Lane)
	var err error
	if !ok {
		c.Recipients = nil // many chunks may wait here
		release, err = j.Provider.Slots.Acquire(patience, c.Lane)
	}
	switch {
	case errors.Is(err, provider.ErrNoSlots):
		models.Pause(ctx, provider.ReadyPoll) // leave the messages to peers that have slots
		return time.Millisecond, ctx.Err()
	case err != nil && ctx.Err() == nil:
		return 0, errBusy
	case err != nil:
		return 0, fmt.Errorf("%w: stopping", models.ErrUnavailable)
	}
	wait := j.Provider.Take(c.Lane, j.load())
	if wait > 0 && w.router.idleElsewhere(c, j) {
		release()
		return 0, errBusy
	}
	if wait > 0 {
		wait, err = j.Provider.Await(ctx, c.Lane, j.load())
	}
	if err != nil || wait > 0 {
		release()
		return wait, err
	}
	j.release = release
	return 0, nil
}

// recheckAfter returns after what time a job is decided again that the rates of its provider delay by wait. If another
// provider may take it, that is an eighth of the time until the expiry at most, as for retries, so that it does not
// expire while another way opens.
func (w *caller) recheckAfter(c *Chunk, j *job, wait time.Duration) time.Duration {
	left := time.Until(w.commands.expiresAt(c))
	if len(j.Step.Options) < 2 || left <= 0 {
		return wait
	}
	return min(wait, max(left/8, time.Second))
}

// appendAttempt appends the attempt to the ledger. From the moment it returns nil, this
// worker owns the call, until began + StartBy on its own monotonic clock.
func (w *caller) appendAttempt(ctx context.Context, c *Chunk, j *job) (models.Entry, time.Time, error) {
	began := time.Now()
	startBy := began.Add(w.cfg.StartBy)
	entry := models.Entry{
		Number:     c.View.NextNumber(),
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         began.UTC().Round(0),
		Recipients: j.Who,
		Provider:   j.Provider.Name,
		Worker:     w.cfg.Worker,
		StartBy:    startBy.UTC().Round(0),
		CallEnds:   startBy.Add(j.Provider.Timeout).UTC().Round(0),
		Retry:      j.Step.Retry,
		Split:      j.Step.Split,
		MayDouble:  j.Step.MayDouble,
		Together:   j.Step.Together,
		Because:    models.Clip(j.Step.Because),
		Account:    j.Provider.Account(),
	}
	if j.Step.Repeats > 0 {
		entry.Kind, entry.Repeats = models.Repeat, j.Step.Repeats
	}
	within, cancel := context.WithTimeout(ctx, w.cfg.StartBy)
	defer cancel()
	if !c.wasCalled() {
		defer w.indexAddresses(c)() // before the first mail leaves
	}
	err := w.Store.Append(within, c.ID, entry)
	switch {
	case err == nil:
		c.entries = append(c.entries, entry)
		return entry, began, nil
	case errors.Is(err, models.ErrOutcomeUnknown) && entry.Repeats == 0: // a repeat changes nothing until it is answered
		w.resolveUnknownAppend(c, entry)
	}
	return entry, began, err
}

// resolveUnknownAppend finds out, in the background, whether an append of unknown
// outcome succeeded. No call was made for the entry. If the entry was stored, a fact
// records that, so that no evidence window is waited for.
func (w *caller) resolveUnknownAppend(c *Chunk, entry models.Entry) {
	id, user, lane := c.ID, c.Batch.User, c.Lane
	w.Work.Go(func() {
		ctx, cancel := context.WithTimeout(w.Work.Context(), 10*time.Minute)
		defer cancel()
		for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
			err := w.Store.Append(ctx, id, entry)
			if conflict(err) {
				return
			}
			if err == nil {
				f := models.Fact{
					Key: models.OutcomeKey(entry.Number),
					Outcome: &models.Outcome{Attempt: entry.Number, At: time.Now().UTC(),
						Parts: []models.Part{notCalled(entry.Recipients, "the ledger entry was not known to be stored in time")}},
				}
				if err = w.Store.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err == nil {
					w.Summaries.Mark(user, id)
					// Other workers may have taken the entry for a running call.
					w.Outbox.Publish(ctx, models.Message{Kind: models.BatchMessage, ID: id, Lane: lane})
					return
				}
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				w.cfg.Logger.Error("outcome of an append is still unknown; its evidence window decides",
					"chunk", id.String(), "err", err)
				return
			}
		}
	})
}

// notCalled returns the part of an outcome that says that no call was made for who.
func notCalled(who models.Set, why string) models.Part {
	return models.Part{Class: models.Unavailable, Recipients: who, Reason: models.StartByPassed, Text: why}
}

// uncalled reports whether the parts of an outcome say that no call was made.
func uncalled(parts []models.Part) bool {
	return len(parts) == 1 && parts[0].Reason.Uncalled()
}

// call makes the call, unless its start-by has passed: another worker may then already
// count the evidence window.
func (w *caller) call(c *Chunk, j *job, entry models.Entry, began time.Time) []models.Part {
	call := &models.Call{
		Batch:      c.Batch.ID,
		Attempt:    cmp.Or(entry.Repeats, entry.Number),
		Content:    &c.Batch.Content,
		Files:      j.files,
		StartBy:    began.Add(w.cfg.StartBy),
		Recipients: c.Batch.CallRecipients(c.ID, j.Who, c.Recipients, j.Step.Together),
	}
	if !j.Provider.Carries.MessageID {
		call.MoveMessageIDs()
	}
	c.Recipients = nil // the call has what it needs
	a := j.Provider
	if !a.Pass(w.Work.Context(), j.load(), call.StartBy) {
		return []models.Part{
			notCalled(j.Who, "no call was made: the ledger was slow, and the provider's limit allowed no call any more"),
		}
	}
	// The adapter's time-out begins when the request is ready: composing it says nothing about the provider.
	ctx, cancel := context.WithDeadline(w.Work.Context(), call.StartBy.Add(a.Timeout))
	defer cancel()
	a.Count(func(n *telemetry.Counters) { n.Inflight++ })
	defer a.Count(func(n *telemetry.Counters) { n.Inflight-- })
	err := errors.Join(w.commands.mayCall(ctx, c, j, control.MaxRuleAge), w.unwanted.stillNone(ctx, c, j, call))
	if err != nil {
		return []models.Part{notCalled(j.Who, "no call was made: "+err.Error())}
	}
	if models.Passed(call.StartBy) { // the adapter checks again once it is connected
		return []models.Part{notCalled(j.Who, "the worker was held up between the ledger and the call")}
	}
	parts := a.Adapter.Send(ctx, call)
	return complete(a, j.Who, parts)
}

// complete returns parts in which every recipient of the call appears exactly once,
// whatever the adapter returned. It marks acceptance by a provider without events as
// final.
func complete(a *provider.Provider, who models.Set, parts []models.Part) []models.Part {
	rest := who
	out := parts[:0:0]
	for _, p := range parts {
		p.Recipients = p.Recipients.And(rest)
		if p.Recipients.Empty() {
			continue
		}
		if !p.Class.Valid() {
			p.Class = models.Unknown
		}
		rest = rest.Minus(p.Recipients)
		p.Text = models.Clip(p.Text)
		p.Final = p.Class == models.Accepted && a.Events == models.EventsNone
		p.Fewer = fewer(&p, who.Len())
		out = append(out, p)
	}
	if !rest.Empty() {
		out = append(
			out,
			models.Part{Class: models.Unknown, Recipients: rest, Reason: models.OutcomeUnknown, Text: "the adapter did not say"},
		)
	}
	if uncalled(out) {
		return out
	}
	a.CountAnswer(out)
	return out
}

// fewer returns how many recipients the next call may have after a part of the answer to a call with n: the number that
// the provider named, or half of them.
func fewer(p *models.Part, n int) int {
	switch {
	case p.Fewer < 1 || p.Class != models.RejectedHereClass || n < 2:
		return 0
	case p.Fewer >= n-1:
		return n / 2
	}
	return p.Fewer
}

// saveOutcome stores the outcome of the call of an entry, which began at a time, as a fact. The call was made, so
// saveOutcome retries for as long as this process runs. If the process dies first, the outcome of the attempt is
// unknown.
func (w *caller) saveOutcome(c *Chunk, entry *models.Entry, began time.Time, parts []models.Part) error {
	now := time.Now() // of one reading, so that At less Took is when the call began
	o := models.Outcome{Attempt: entry.Number, At: now.UTC(), Took: now.Sub(began), Parts: parts}
	if entry.Repeats > 0 {
		o.Attempt, o.Parts = entry.Repeats, settled(parts)
	}
	f := models.Fact{Key: models.OutcomeKey(entry.Number), Outcome: &o}
	c.facts = append(c.facts, f)
	w.Chunks.resolve(c)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := w.Store.PutFacts(w.Work.Context(), models.ChunkFact{Chunk: c.ID, Fact: f})
		if err == nil {
			c.saved++
			return nil
		}
		w.cfg.Logger.Warn("cannot store the outcome of a call; will retry",
			"chunk", c.ID.String(), "provider", entry.Provider, "attempt_id", o.Attempt, "err", err)
		select {
		case <-time.After(pause):
		case <-w.Work.Context().Done():
			return fmt.Errorf("%w: outcome of attempt %d not stored: %w", models.ErrUnavailable, o.Attempt, err)
		}
	}
}

// indexAddresses stores the fingerprints of a chunk's addresses in the background and
// returns a function that waits for it. If it fails, the chunk cannot be found by
// address.
func (w *caller) indexAddresses(c *Chunk) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(w.Work.Context(), w.cfg.StartBy)
		defer cancel()
		if err := w.Store.PutAddressIndex(ctx, c.Batch.User, models.NewAddressIndex(c.ID, c.Recipients)); err != nil {
			w.cfg.Logger.Warn("address index not stored; the chunk cannot be found by address",
				"chunk", c.ID.String(), "err", err)
		}
	}()
	return func() { <-done }
}
