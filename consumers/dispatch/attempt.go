package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/tracing"
)

// attempt makes one provider call for a job: append to the ledger, check the
// start-by, call, keep the outcome. Losing the race for the ledger number is
// not an error: the chunk is read again and decided anew.
func (d *Dispatcher) attempt(ctx context.Context, c *Chunk, j *Job) error {
	if j.release == nil {
		wait, err := d.Acquire(ctx, c, j)
		if err != nil {
			return err
		}
		if wait > 0 { // limited for longer than a worker may be kept
			m := models.Message{
				Kind:      models.ProviderMessage,
				Provider:  j.Provider.Name,
				Retry:     j.Step.Retry,
				NotBefore: time.Now().Add(wait),
			}
			d.announce(ctx, c, m)
			return errRequeued
		}
	}
	defer j.release()
	if err := d.LoadRecipients(ctx, c); err != nil {
		return err
	}
	if err := d.mayCall(ctx, c, j, rulesMaxAge); errors.Is(err, errHeldBack) {
		return nil // decided anew
	} else if err != nil {
		return err
	}
	settle, ok := j.Provider.Health.Begin(j.Step.SenderDomain, j.Who.Len())
	if !ok {
		return errBusy
	}
	defer settle(nil, 0)
	first := !c.View.Status(j.Who.First()).Called
	entry, began, err := d.appendAttempt(ctx, c, j)
	if err != nil {
		if Conflict(err) {
			return d.Reload(ctx, c)
		}
		return err
	}
	sent := time.Now()
	span := tracing.Start(
		c.Id,
		"provider call",
		sent,
		"provider",
		j.Provider.Name,
		"chunk",
		c.Id.String(),
		"attempt",
		strconv.Itoa(entry.Number),
		"recipients",
		strconv.Itoa(entry.Recipients.Len()),
		"because",
		entry.Because,
	)
	parts := d.call(c, j, entry, began)
	took := time.Since(sent)
	for i := range parts {
		span.Add("answer."+string(parts[i].Class), strconv.Itoa(parts[i].Recipients.Len()))
	}
	span.End(Refusal(parts))
	settle(parts, took)
	if !uncalled(parts) {
		j.Provider.RecordLatency(took)
		d.observer.Called(j.Provider, c, Call{Entry: &entry, First: first, Took: took, Parts: parts})
	}
	return d.saveOutcome(
		c,
		j.Provider,
		models.Outcome{Attempt: entry.Number, At: time.Now().UTC(), Took: time.Since(began), Parts: parts},
	)
}

// Refusal is the class of an answer that took nothing; empty: it took somebody.
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

// errRequeued ends the work on a message whose steps come back when the rates
// allow them.
var errRequeued = errors.New("passed on")

// errBusy: the provider takes nothing now, and another may.
var errBusy = errors.New("provider is busy")

// slotPatience is how long mail that another provider may take waits for a slot.
const slotPatience = 2 * time.Second

// Acquire waits for a slot and for the rates of the handler's own provider. What
// would have to wait longer than a second is passed on with a delay instead.
func (d *Dispatcher) Acquire(ctx context.Context, c *Chunk, j *Job) (time.Duration, error) {
	patience, cancel := ctx, context.CancelFunc(func() {})
	if len(j.Step.Options) > 1 {
		patience, cancel = context.WithTimeout(ctx, slotPatience)
	}
	defer cancel()
	if !j.Provider.AwaitReady(ctx) { // how many slots it has is not known before
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
		models.Pause(ctx, provider.ReadyPoll) // so that it takes little from those that have some
		return time.Millisecond, ctx.Err()
	case err != nil && ctx.Err() == nil:
		return 0, errBusy
	case err != nil:
		return 0, fmt.Errorf("%w: stopping", models.ErrUnavailable)
	}
	wait := j.Provider.Take(c.Lane, j.Who.Len())
	if wait > 0 && d.idleElsewhere(c, j) {
		release()
		return 0, errBusy
	}
	if wait > 0 {
		wait, err = j.Provider.Await(ctx, c.Lane, j.Who.Len())
	}
	if err != nil || wait > 0 {
		release()
		return wait, err
	}
	j.release = release
	return 0, nil
}

// idleElsewhere reports whether another provider could take a job at once.
func (d *Dispatcher) idleElsewhere(c *Chunk, j *Job) bool {
	return slices.ContainsFunc(
		d.due(j.Step, time.Now()),
		func(a *provider.Provider) bool { return a != j.Provider && a.Idle(c.Lane, j.Who.Len()) },
	)
}

// appendAttempt appends the attempt to the ledger. From the moment it returns nil, this
// worker owns the call, until began + StartBy on its own monotonic clock.
func (d *Dispatcher) appendAttempt(ctx context.Context, c *Chunk, j *Job) (models.Entry, time.Time, error) {
	began := time.Now()
	startBy := began.Add(d.cfg.StartBy)
	entry := models.Entry{
		Number: c.View.NextNumber(), Token: models.NewToken(), Kind: models.Attempt, At: began.UTC().Round(0), Recipients: j.Who,
		Provider: j.Provider.Name, Worker: d.cfg.Worker, StartBy: startBy.UTC().Round(0), CallEnds: startBy.Add(j.Provider.Timeout).UTC().Round(0),
		Retry: j.Step.Retry, Split: j.Step.Split, MayDouble: j.Step.MayDouble, Because: models.Clip(j.Step.Because),
	}
	within, cancel := context.WithTimeout(ctx, d.cfg.StartBy)
	defer cancel()
	if !c.wasCalled() {
		defer d.indexAddresses(c)() // before the first mail leaves
	}
	err := d.store.Append(within, c.Id, entry)
	switch {
	case err == nil:
		c.Entries = append(c.Entries, entry)
		return entry, began, nil
	case errors.Is(err, models.ErrOutcomeUnknown):
		d.resolveUnknownAppend(c, entry)
	}
	return entry, began, err
}

// resolveUnknownAppend settles an append whose outcome is unknown: no call was made for it,
// and if the entry stands, that is written down as a fact, so that nobody waits
// for evidence of a call that never was.
func (d *Dispatcher) resolveUnknownAppend(c *Chunk, entry models.Entry) {
	id, user, lane := c.Id, c.Batch.User, c.Lane
	d.Background.Go(func() {
		ctx, cancel := context.WithTimeout(d.hard, 10*time.Minute)
		defer cancel()
		for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
			err := d.store.Append(ctx, id, entry)
			if Conflict(err) {
				return
			}
			if err == nil {
				f := models.Fact{
					Key: models.OutcomeKey(entry.Number),
					Outcome: &models.Outcome{Attempt: entry.Number, At: time.Now().UTC(),
						Parts: []models.Part{NotCalled(entry.Recipients, "the ledger entry was not known to be stored in time")}},
				}
				if err = d.store.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}); err == nil {
					d.summaries.Mark(user, id)
					d.Publish(
						ctx,
						models.Message{Kind: models.BatchMessage, ID: id, Lane: lane},
					) // others may have taken it for a call that runs
					return
				}
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				d.log.Error("an append could not be settled; its window decides", "chunk", id.String(), "err", err)
				return
			}
		}
	})
}

func NotCalled(who models.Set, why string) models.Part {
	return models.Part{Class: models.Unavailable, Recipients: who, Reason: models.StartByPassed, Text: why}
}

// uncalled reports whether an outcome is that no call was made.
func uncalled(parts []models.Part) bool {
	return len(parts) == 1 && parts[0].Reason == models.StartByPassed
}

// call makes the call, unless its start-by has passed: then somebody else may
// already count the evidence window, and no call is made.
func (d *Dispatcher) call(c *Chunk, j *Job, entry models.Entry, began time.Time) []models.Part {
	call := &models.Call{
		Batch:      c.Batch.ID,
		Attempt:    entry.Number,
		Content:    &c.Batch.Content,
		StartBy:    began.Add(d.cfg.StartBy),
		Recipients: make([]models.CallRecipient, 0, j.Who.Len()),
	}
	for r := range j.Who.All() {
		call.Recipients = append(call.Recipients, models.CallRecipient{Log: c.Id.Log(r), Recipient: c.Recipients[r-1]})
	}
	c.Recipients = nil // the call has what it needs
	a := j.Provider
	if !a.Pass(d.hard, j.Who.Len(), call.StartBy) {
		return []models.Part{
			NotCalled(j.Who, "no call was made: the ledger was slow, and the provider's limit allowed no call any more"),
		}
	}
	ctx, cancel := context.WithTimeout(d.hard, a.Timeout)
	defer cancel()
	a.Count(func(n *telemetry.Counters) { n.Inflight++ })
	defer a.Count(func(n *telemetry.Counters) { n.Inflight-- })
	if err := d.mayCall(ctx, c, j, control.MaxRuleAge); err != nil {
		return []models.Part{NotCalled(j.Who, "no call was made: "+err.Error())}
	}
	if models.Passed(call.StartBy) { // the adapter asks again when the connection stands
		return []models.Part{NotCalled(j.Who, "the worker was held up between the ledger and the call")}
	}
	parts := a.Adapter.Send(ctx, call)
	return d.complete(a, j.Who, parts)
}

// complete makes sure that every recipient of the call is in exactly one part,
// whatever an adapter returned, and marks what a provider without events takes.
func (d *Dispatcher) complete(a *provider.Provider, who models.Set, parts []models.Part) []models.Part {
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

// saveOutcome stores the outcome as a fact. The call was made: while the store is away
// it is tried again for as long as this process lives; if it dies first, the
// attempt is one whose outcome is unknown.
func (d *Dispatcher) saveOutcome(c *Chunk, a *provider.Provider, o models.Outcome) error {
	f := models.Fact{Key: models.OutcomeKey(o.Attempt), Outcome: &o}
	c.facts = append(c.facts, f)
	d.resolve(c)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := d.store.PutFacts(d.hard, models.ChunkFact{Chunk: c.Id, Fact: f})
		if err == nil {
			return nil
		}
		d.log.Warn(
			"outcome could not be stored yet",
			"chunk",
			c.Id.String(),
			"provider",
			a.Name,
			"attempt_id",
			o.Attempt,
			"err",
			err,
		)
		select {
		case <-time.After(pause):
		case <-d.hard.Done():
			return fmt.Errorf("%w: outcome of attempt %d not stored: %w", models.ErrUnavailable, o.Attempt, err)
		}
	}
}

// jitter spreads what would otherwise come back in the same instant: up to a
// tenth of the wait, at most 30 s.
func jitter(wait time.Duration) time.Duration {
	if wait <= 0 {
		return 0
	}
	return rand.N(min(wait/10, 30*time.Second) + 1) //nolint:gosec // spreading load
}

// indexAddresses keeps the fingerprints of a chunk's addresses, by which mail to one of
// them is found. It costs nothing but that when it fails.
func (d *Dispatcher) indexAddresses(c *Chunk) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(d.hard, d.cfg.StartBy)
		defer cancel()
		if err := d.store.PutAddressIndex(ctx, c.Batch.User, models.NewAddressIndex(c.Id, c.Recipients)); err != nil {
			d.log.Warn("a chunk cannot be found by address", "chunk", c.Id.String(), "err", err)
		}
	}()
	return func() { <-done }
}
