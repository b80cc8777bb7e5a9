package events

import (
	"context"
	"errors"
	"hash/maphash"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/tracing"
)

// attribute turns the events of a group into facts. It refuses events that belong to no
// attempt through the provider that reports them.
func (q *Processor) attribute(ctx context.Context, group *eventGroup) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range group.byChunk {
		g.Go(func() error {
			err := q.attributeChunk(ctx, group, id, c)
			if errors.Is(err, models.ErrNewer) {
				group.leave(c) // a newer process knows what its events mean
			}
			if err != nil {
				_, err = q.chunks.SkipCorrupt(id, err)
			}
			return err
		})
	}
	return g.Wait()
}

// attributeChunk turns the events of one chunk into one fact, because Mailgun posts
// events one by one.
func (q *Processor) attributeChunk(ctx context.Context, group *eventGroup, id models.ID, c *chunkEvents) error {
	b, err := q.chunks.Batch(ctx, id.Batch())
	if errors.Is(err, models.ErrNotFound) || err == nil && b.ChunkSize(id.ChunkNumber()) == 0 {
		q.refuseAll(c, id)
		return nil
	}
	if err != nil {
		return err
	}
	c.user = b.User
	var known map[models.Event]bool
	if group.parseRevision > 0 || group.again {
		if known, err = q.knownEvents(ctx, id); err != nil {
			return err
		}
	}
	posts, events, err := q.ownEvents(ctx, id, c, known)
	if err != nil {
		return err
	}
	c.posts = nil // the fact holds the events
	if len(events) == 0 {
		return nil
	}
	tracing.Start(id, "events", time.Time{},
		"chunk", id.String(),
		"provider", events[0].Provider,
		"events", strconv.Itoa(len(events)),
	).End("")
	key := models.EventsKey(posts...)
	if group.parseRevision > 0 {
		key = models.ParseRevisionKey(group.parseRevision, posts...)
	}
	group.fact(id, models.Fact{Key: key, Events: events})
	return nil
}

// ownEvents returns the events of a chunk that belong to its attempts and are not known,
// and the posts that they came in. It refuses events that belong to no attempt.
func (q *Processor) ownEvents(
	ctx context.Context,
	id models.ID,
	c *chunkEvents,
	known map[models.Event]bool,
) (posts []models.ID, events []models.Event, err error) {
	var recipients []models.Recipient // read if only its address says which one an event is about
	entries, current, err := q.ledger(ctx, id, false)
	if err != nil {
		return nil, nil, err
	}
	events = make([]models.Event, 0, c.count())
	for _, p := range c.posts {
		before := len(events)
		for i := range p.events {
			ev := &p.events[i].Event
			of := attemptOf(entries, ev)
			if of == nil && !current {
				if entries, current, err = q.ledger(ctx, id, true); err != nil {
					return nil, nil, err
				}
				of = attemptOf(entries, ev)
			}
			if of != nil && of.ByAddress(ev.Recipient) && recipients == nil {
				if recipients, err = q.recipients(ctx, id); err != nil {
					return nil, nil, err
				}
			}
			if of != nil {
				ev.Recipient = of.RecipientOf(ev.Recipient, p.events[i].address, recipients)
			}
			if of == nil || ev.Recipient == 0 {
				q.refuse(id, ev)
				continue
			}
			ev.At = plausibleTime(ev.At, of.At, p.post.Time())
			c.taken, c.failed = true, c.failed || ev.Kind.Failure()
			// A replay that stopped early may have stored the event. What follows from the
			// event is done again, but the event is not counted again.
			if known[withoutRevision(*ev)] {
				continue
			}
			q.counts.taken.Add(1)
			if q.counted.add(hashOf(ev)) {
				q.countEvent(ev, of, p.post.Time())
				q.seen.note(ev, p.post.Time())
				q.observer.EventTaken(ev, of, id.Time())
			}
			events = append(events, *ev)
		}
		if len(events) > before {
			posts = append(posts, p.post)
		}
	}
	return posts, events, nil
}

// recipients returns the recipients of a chunk; none if their addresses were removed with the content.
func (q *Processor) recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error) {
	rs, err := q.store.Recipients(ctx, chunk)
	if errors.Is(err, models.ErrNotFound) {
		return []models.Recipient{}, nil
	}
	return rs, err
}

// maxSkew is how far the clocks of a provider and of workers may differ.
const maxSkew = time.Hour

// plausibleTime returns the time of an event by its provider's clock. If that is before
// the attempt or after the post, it returns the time of the post. Waits begin at the
// returned time.
func plausibleTime(at, attempt, posted time.Time) time.Time {
	if at.Before(attempt.Add(-maxSkew)) || at.After(posted.Add(maxSkew)) {
		return posted.UTC()
	}
	return at
}

// ledger returns the ledger of a chunk, and whether it was read from the store just now.
// It uses a cache unless current is set. Entries never change, so a cached ledger can
// only lack the newest ones.
func (q *Processor) ledger(ctx context.Context, id models.ID, current bool) ([]models.Entry, bool, error) {
	if !current {
		if entries, ok := q.ledgers.Get(id); ok {
			return entries, false, nil
		}
	}
	entries, err := q.store.Ledger(ctx, id)
	if err != nil {
		return nil, true, err
	}
	q.ledgers.Add(id, entries)
	return entries, true, nil
}

// attemptOf returns the attempt with the number, the provider and the recipient of an
// event, or nil. An event may name no recipient.
func attemptOf(entries []models.Entry, ev *models.Event) *models.Entry {
	for i := range entries {
		en := &entries[i]
		if en.Kind == models.Attempt && en.Number == ev.Attempt {
			if en.Provider == ev.Provider && (ev.Recipient == 0 || en.Recipients.Has(ev.Recipient)) {
				return en
			}
			return nil
		}
	}
	return nil
}

func (q *Processor) refuseAll(c *chunkEvents, id models.ID) {
	for _, p := range c.posts {
		for i := range p.events {
			q.refuse(id, &p.events[i].Event)
		}
	}
}

func (q *Processor) refuse(id models.ID, ev *models.Event) {
	q.counts.forged.Add(1)
	q.observer.EventRefused(ev.Provider, "no_attempt")
	q.log.Warn("event refused: it belongs to no attempt",
		"provider", ev.Provider, "chunk", id.String(), "attempt_id", ev.Attempt)
}

// eventKey identifies an event. Repeats of an event have the same key.
type eventKey struct {
	provider, id  string
	kind          models.EventKind
	recipient     int
	parseRevision int64
}

var eventSeed = maphash.MakeSeed()

// hashOf returns a hash of the event's key that is stable within this process.
func hashOf(ev *models.Event) uint64 {
	return maphash.Comparable(eventSeed, eventKey{ev.Provider, ev.ID, ev.Kind, ev.Recipient, ev.ParseRevision})
}

// countEvent counts an event of an attempt for its provider. received is when its post
// arrived.
func (q *Processor) countEvent(ev *models.Event, of *models.Entry, received time.Time) {
	a := q.providers.Get(ev.Provider)
	switch {
	case ev.Kind == models.Delivered:
		a.Count(func(n *telemetry.Counters) { n.Delivered++ })
	case ev.Kind.Failure():
		a.Count(func(n *telemetry.Counters) { n.Failures++ })
	case ev.Kind != models.Deferred:
		return
	}
	// A provider drops and rejects mail without trying to deliver it.
	if ev.Kind != models.Dropped && ev.Kind != models.Rejected {
		q.flows.Report(ev.Provider, of.At, ev.At, received)
	}
}
