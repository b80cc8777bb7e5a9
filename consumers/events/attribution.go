package events

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/tracing"
)

// attributor finds the attempts that events belong to, and counts the events.
type attributor struct {
	log       *slog.Logger
	store     Store
	chunks    *dispatch.Chunks
	providers *provider.Set
	flows     *provider.Flows
	observer  Observer
	seen      *SeenKinds
	counts    *counts
	ledgers   *lru.Cache[models.ID, []models.Entry]
	counted   *recentSet // hashes of recently counted events
}

// attribute turns the events of a group into facts. It refuses events that belong to no
// attempt through the provider that reports them.
func (a *attributor) attribute(ctx context.Context, group *eventGroup) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range group.byChunk {
		g.Go(func() error {
			err := a.attributeChunk(ctx, group, id, c)
			if errors.Is(err, models.ErrNewer) {
				group.leave(c) // a newer process knows what its events mean
			}
			if err != nil {
				_, err = a.chunks.SkipCorrupt(id, err)
			}
			return err
		})
	}
	return g.Wait()
}

// attributeChunk turns the events of one chunk into one fact, because Mailgun posts
// events one by one.
func (a *attributor) attributeChunk(ctx context.Context, group *eventGroup, id models.ID, c *chunkEvents) error {
	b, err := a.chunks.Batch(ctx, id.Batch())
	if errors.Is(err, models.ErrNotFound) || err == nil && b.ChunkSize(id.ChunkNumber()) == 0 {
		a.refuseAll(c, id)
		return nil
	}
	if err != nil {
		return err
	}
	c.user = b.User
	var known map[models.Event]bool
	if group.parseRevision > 0 || group.again {
		if known, err = a.knownEvents(ctx, id); err != nil {
			return err
		}
	}
	posts, events, err := a.ownEvents(ctx, id, c, known)
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
func (a *attributor) ownEvents(
	ctx context.Context,
	id models.ID,
	c *chunkEvents,
	known map[models.Event]bool,
) (posts []models.ID, events []models.Event, err error) {
	var recipients []models.Recipient // read if only its address says which one an event is about
	entries, current, err := a.ledger(ctx, id, false)
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
				if entries, current, err = a.ledger(ctx, id, true); err != nil {
					return nil, nil, err
				}
				of = attemptOf(entries, ev)
			}
			if of != nil && of.ByAddress(ev.Recipient) && recipients == nil {
				if recipients, err = recipientsOf(ctx, a.store, id); err != nil {
					return nil, nil, err
				}
			}
			if of != nil {
				ev.Recipient = of.RecipientOf(ev.Recipient, p.events[i].address, recipients)
			}
			if of == nil || ev.Recipient == 0 {
				a.refuse(id, ev)
				continue
			}
			ev.At = plausibleTime(ev.At, of.At, p.post.Time())
			c.taken, c.failed = true, c.failed || ev.Kind.Failure()
			// A replay that stopped early may have stored the event. What follows from the
			// event is done again, but the event is not counted again.
			if known[withoutRevision(*ev)] {
				continue
			}
			a.counts.taken.Add(1)
			if a.counted.add(hashOf(ev)) {
				a.countEvent(ev, of, p.post.Time())
				a.seen.note(ev, p.post.Time())
				a.observer.EventTaken(ev, of, id.Time())
			}
			events = append(events, *ev)
		}
		if len(events) > before {
			posts = append(posts, p.post)
		}
	}
	return posts, events, nil
}

// knownEvents returns the events of a chunk as they were parsed last.
func (a *attributor) knownEvents(ctx context.Context, id models.ID) (map[models.Event]bool, error) {
	_, facts, err := a.store.Record(ctx, id)
	if err != nil {
		return nil, err
	}
	out := map[models.Event]bool{}
	for _, ev := range models.Events(facts) {
		out[withoutRevision(*ev)] = true
	}
	return out, nil
}

// recipientsOf returns the recipients of a chunk; none if their addresses were removed with the content.
func recipientsOf(ctx context.Context, store Store, chunk models.ID) ([]models.Recipient, error) {
	rs, err := store.Recipients(ctx, chunk)
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
func (a *attributor) ledger(ctx context.Context, id models.ID, current bool) ([]models.Entry, bool, error) {
	if !current {
		if entries, ok := a.ledgers.Get(id); ok {
			return entries, false, nil
		}
	}
	entries, err := a.store.Ledger(ctx, id)
	if err != nil {
		return nil, true, err
	}
	a.ledgers.Add(id, entries)
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

func (a *attributor) refuseAll(c *chunkEvents, id models.ID) {
	for _, p := range c.posts {
		for i := range p.events {
			a.refuse(id, &p.events[i].Event)
		}
	}
}

func (a *attributor) refuse(id models.ID, ev *models.Event) {
	a.counts.forged.Add(1)
	a.observer.EventRefused(ev.Provider, "no_attempt")
	a.log.Warn("event refused: it belongs to no attempt",
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
func (a *attributor) countEvent(ev *models.Event, of *models.Entry, received time.Time) {
	p := a.providers.Get(ev.Provider)
	switch {
	case ev.Kind == models.Delivered:
		p.Count(func(n *telemetry.Counters) { n.Delivered++ })
	case ev.Kind.Failure():
		p.Count(func(n *telemetry.Counters) { n.Failures++ })
	case ev.Kind != models.Deferred:
		return
	}
	// A provider drops and rejects mail without trying to deliver it.
	if ev.Kind != models.Dropped && ev.Kind != models.Rejected {
		a.flows.Report(ev.Provider, of.At, ev.At, received)
	}
}
