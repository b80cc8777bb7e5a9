package events

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/tracing"
)

// Process turns entries of the inbox into facts: read, refuse what is a replay,
// parse, refuse what is not ours, store, mark, reroute. Doing it again does
// nothing new. It returns how many of ids, from the first, it worked off: at
// least one, and not all of them where they are large.
func (q *Processor) Process(ctx context.Context, ids []models.ID) (int, error) {
	entries, n, err := q.ReadInbox(ctx, ids)
	if err != nil || len(entries) == 0 {
		return n, err
	}
	return n, q.processEntries(ctx, entries, &eventGroup{byChunk: map[models.ID]*chunkEvents{}})
}

// Take works entries off that were read.
func (q *Processor) processEntries(ctx context.Context, entries []models.Inbox, work *eventGroup) error {
	if err := q.dropReplayed(ctx, entries); err != nil {
		return err
	}
	var parsing sync.WaitGroup
	for i := range entries {
		parsing.Go(func() { q.parse(&entries[i], work) })
	}
	parsing.Wait()
	if err := q.attribute(ctx, work); err != nil {
		return err
	}
	if len(work.facts) > 0 {
		if err := q.store.PutFacts(ctx, work.facts...); err != nil {
			return err
		}
	}
	work.facts = nil // stored: what follows needs the chunks alone
	// Before the posts are marked: once they are worked off, nobody looks at them.
	if err := q.reconcileAfter(ctx, work); err != nil {
		return err
	}
	if err := q.markSummaries(ctx, work); err != nil {
		return err
	}
	for _, id := range work.done {
		q.processed.Add(id, struct{}{})
	}
	return nil
}

// storeAtOnce is how many reads and writes of one piece of work run together.
const storeAtOnce = 16

// eventGroup is what a group of entries of the inbox comes to.
type eventGroup struct {
	mu            sync.Mutex
	done          []models.ID // entries that were parsed
	byChunk       map[models.ID]*chunkEvents
	facts         []models.ChunkFact
	parseRevision int64 // of events that are read again: see models.Event
}

func (w *eventGroup) fact(chunk models.ID, f models.Fact) {
	w.mu.Lock()
	w.facts = append(w.facts, models.ChunkFact{Chunk: chunk, Fact: f})
	w.mu.Unlock()
}

// chunkEvents are the events that name one chunk, by entry of the inbox.
type chunkEvents struct {
	user   string
	posts  []postEvents
	failed bool // some event may ask for another provider
	taken  bool // some event was admitted
}

// postEvents are the events of one entry that name one chunk.
type postEvents struct {
	post   models.ID
	events []models.Event
}

// of returns the events of an entry, with room for n more.
func (c *chunkEvents) of(post models.ID, n int) *[]models.Event {
	i := slices.IndexFunc(c.posts, func(p postEvents) bool { return p.post == post })
	if i < 0 {
		i = len(c.posts)
		c.posts = append(c.posts, postEvents{post: post})
	}
	list := &c.posts[i].events
	*list = slices.Grow(*list, n)
	return list
}

// parse parses the posts of an entry into the work.
func (q *Processor) parse(in *models.Inbox, work *eventGroup) {
	a := q.providers.Get(in.Provider)
	if a == nil {
		q.log.Error("posts of a provider that is not configured; they stay in the inbox", "provider", in.Provider)
		return
	}
	parsed := make([]models.Parsed, len(in.Posts))
	q.cfg.Priority.Compute(func() {
		for i := range in.Posts {
			parsed[i] = q.parsePost(a, in.ID, in.Posts[i].Body)
		}
	})
	in.Posts = nil
	work.mu.Lock()
	defer work.mu.Unlock()
	work.done = append(work.done, in.ID)
	for i := range parsed {
		for _, why := range parsed[i].Skipped {
			q.counts.eventsSkipped.Add(1)
			q.observer.EventRefused(in.Provider, "not_ours")
			q.log.Debug("part of a post skipped", "provider", in.Provider, "err", why)
		}
		work.add(in, parsed[i].Events)
	}
}

// parsePost parses a post. One that the parser dies of stays in the inbox, for a
// version that can read it to replay, and holds up no other.
func (q *Processor) parsePost(a *provider.Provider, id models.ID, body []byte) (out models.Parsed) {
	defer func() {
		if v := recover(); v != nil {
			q.log.Error(
				"a post cannot be parsed; it stays in the inbox, and can be replayed by a version that can",
				"provider",
				a.Name,
				"post",
				id.String(),
				"err",
				v,
			)
			out = models.Parsed{Skipped: []string{"the parser died of it"}}
		}
	}()
	return a.Adapter.Parse(body)
}

// add files the events of a post under the chunks that they name; those of one
// chunk mostly stand together.
func (w *eventGroup) add(in *models.Inbox, events []models.ParsedEvent) {
	for len(events) > 0 {
		id := events[0].Log.ChunkID()
		n := slices.IndexFunc(events, func(p models.ParsedEvent) bool { return p.Log.ChunkID() != id })
		if n < 0 {
			n = len(events)
		}
		c := w.byChunk[id]
		if c == nil {
			c = &chunkEvents{}
			w.byChunk[id] = c
		}
		list := c.of(in.ID, n)
		for i := range events[:n] {
			ev := events[i].Event
			ev.Recipient, ev.Provider, ev.Text, ev.ParseRevision = events[i].Log.Recipient(), in.Provider, models.Clip(
				ev.Text,
			), w.parseRevision
			*list = append(*list, ev)
		}
		events = events[n:]
	}
}

// attribute keeps the events that belong to an attempt of ours through the
// provider that reports them, and turns them into facts.
func (q *Processor) attribute(ctx context.Context, work *eventGroup) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range work.byChunk {
		g.Go(func() error {
			err := q.attributeChunk(ctx, work, id, c)
			if err != nil {
				_, err = q.dispatch.SkipCorrupt(id, err)
			}
			return err
		})
	}
	return g.Wait()
}

func (q *Processor) attributeChunk(ctx context.Context, work *eventGroup, id models.ID, c *chunkEvents) error {
	b, err := q.dispatch.Batch(ctx, id.Batch())
	if errors.Is(err, models.ErrNotFound) || err == nil && b.ChunkSize(id.ChunkNumber()) == 0 {
		q.refuseAll(c, id)
		return nil
	}
	if err != nil {
		return err
	}
	c.user = b.User
	entries, fresh, err := q.ledger(ctx, id, false)
	if err != nil {
		return err
	}
	var known map[models.Event]bool
	if work.parseRevision > 0 {
		if known, err = q.knownEvents(ctx, id); err != nil {
			return err
		}
	}
	// The events of all entries at hand about this chunk are one fact: Mailgun
	// posts them one by one.
	var posts []models.ID
	n := 0
	for _, p := range c.posts {
		n += len(p.events)
	}
	ours := make([]models.Event, 0, n)
	for _, p := range c.posts {
		before := len(ours)
		for i := range p.events {
			ev := &p.events[i]
			of := attemptOf(entries, ev)
			if of == nil && !fresh {
				if entries, fresh, err = q.ledger(ctx, id, true); err != nil {
					return err
				}
				of = attemptOf(entries, ev)
			}
			if of == nil {
				q.refuse(id, ev)
				continue
			}
			ev.At = PlausibleTime(ev.At, of.At, p.post.Time())
			if known[asRead(*ev)] {
				// It was read like this before, maybe by a replay that broke off after it:
				// what follows from it is done again.
				c.taken, c.failed = true, c.failed || ev.Kind.Failure()
				continue
			}
			q.counts.eventsTaken.Add(1)
			c.taken = true
			c.failed = c.failed || ev.Kind.Failure()
			if q.counted.add(hashOf(ev)) { // repeats are not
				q.CountEvent(ev, of, p.post.Time())
				q.observer.EventTaken(ev, of, id.Time())
			}
			ours = append(ours, *ev)
		}
		if len(ours) > before {
			posts = append(posts, p.post)
		}
	}
	if len(ours) > 0 {
		tracing.Start(
			id,
			"events",
			time.Time{},
			"chunk",
			id.String(),
			"provider",
			ours[0].Provider,
			"events",
			strconv.Itoa(len(ours)),
		).End(
			"",
		)
	}
	c.posts = nil // the fact holds what counts
	if len(ours) > 0 {
		key := models.EventsKey(posts...)
		if work.parseRevision > 0 {
			key = models.ParseRevisionKey(work.parseRevision, posts...)
		}
		work.fact(id, models.Fact{Key: key, Events: ours})
	}
	return nil
}

// MaxSkew is by how much the clocks of a provider and of workers may differ.
const MaxSkew = time.Hour

// PlausibleTime is when an event happened by the provider's clock, unless that was before
// its attempt or after its post came: waits begin then.
func PlausibleTime(at, attempt, posted time.Time) time.Time {
	if at.Before(attempt.Add(-MaxSkew)) || at.After(posted.Add(MaxSkew)) {
		return posted.UTC()
	}
	return at
}

// ledger reads the ledger of a chunk, through a cache unless fresh is asked for.
// Entries never change, so a cached ledger is right about what it holds.
func (q *Processor) ledger(ctx context.Context, id models.ID, fresh bool) ([]models.Entry, bool, error) {
	if !fresh {
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

// attemptOf finds the attempt that an event belongs to: its number, its provider,
// and a recipient of it; nil: there is none.
func attemptOf(entries []models.Entry, ev *models.Event) *models.Entry {
	for i := range entries {
		en := &entries[i]
		if en.Kind == models.Attempt && en.Number == ev.Attempt {
			if en.Provider == ev.Provider && en.Recipients.Has(ev.Recipient) {
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
			q.refuse(id, &p.events[i])
		}
	}
}

func (q *Processor) refuse(id models.ID, ev *models.Event) {
	q.counts.eventsForged.Add(1)
	q.observer.EventRefused(ev.Provider, "no_attempt")
	q.log.Warn(
		"event refused: it belongs to no attempt of ours",
		"provider",
		ev.Provider,
		"chunk",
		id.String(),
		"attempt_id",
		ev.Attempt,
	)
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

// CountEvent counts an event for its provider, which came at a time about an attempt.
func (q *Processor) CountEvent(ev *models.Event, of *models.Entry, came time.Time) {
	a := q.providers.Get(ev.Provider)
	switch {
	case ev.Kind == models.Delivered:
		a.Count(func(n *telemetry.Counters) { n.Delivered++ })
	case ev.Kind.Failure():
		a.Count(func(n *telemetry.Counters) { n.Failures++ })
	case ev.Kind != models.Deferred:
		return
	}
	if ev.Kind != models.Dropped && ev.Kind != models.Rejected { // which it does without trying to deliver
		q.flows.Report(ev.Provider, of.At, ev.At, came)
	}
}

// reconcileAfter looks at the chunks in which events may have opened something again: a
// provider has given up on somebody, or what was reported before is read
// otherwise. It ends what nobody can cure, and announces the rest to another
// provider's log retry consumer. What stays open is put on the agenda: by now the
// batch's own entry may be days away, or gone.
func (q *Processor) reconcileAfter(ctx context.Context, work *eventGroup) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range work.byChunk {
		if !c.failed && (work.parseRevision == 0 || !c.taken) {
			continue
		}
		g.Go(func() error {
			found, err := q.dispatch.Reconcile(ctx, id)
			if err != nil || found == (dispatch.Result{}) {
				return err
			}
			b, err := q.dispatch.Batch(ctx, id.Batch())
			if err != nil {
				return err
			}
			return q.requeuer.Requeue(
				ctx,
				models.AgendaEntry{Kind: models.LookAtChunk, ID: id, User: b.User, Lane: b.Lane},
				found,
			)
		})
	}
	return g.Wait()
}
