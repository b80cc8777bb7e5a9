package consumers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/tracing"
)

const (
	// inboxBytes is what the posts of the entries that are worked off together
	// come to at most, a single larger entry excepted: taken apart, they are
	// several times as large.
	inboxBytes = 1 << 20
	// inboxRead is how many entries are read together at most.
	inboxRead = 16
)

// workOff turns entries of the inbox into facts: read, refuse what is a replay,
// parse, refuse what is not ours, store, mark, reroute. Doing it again does
// nothing new. It returns how many of ids, from the first, it worked off: at
// least one, and not all of them where they are large.
func (e *Engine) workOff(ctx context.Context, ids []models.ID) (int, error) {
	entries, n, err := e.readInbox(ctx, ids)
	if err != nil || len(entries) == 0 {
		return n, err
	}
	return n, e.take(ctx, entries, &eventWork{byChunk: map[models.ID]*chunkEvents{}})
}

// take works entries off that were read.
func (e *Engine) take(ctx context.Context, entries []models.Inbox, work *eventWork) error {
	if err := e.dropReplayed(ctx, entries); err != nil {
		return err
	}
	var parsing sync.WaitGroup
	for i := range entries {
		parsing.Go(func() { e.parse(&entries[i], work) })
	}
	parsing.Wait()
	if err := e.admitEvents(ctx, work); err != nil {
		return err
	}
	if len(work.facts) > 0 {
		if err := e.store.PutFacts(ctx, work.facts...); err != nil {
			return err
		}
	}
	work.facts = nil // stored: what follows needs the chunks alone
	if err := e.markPosts(ctx, work); err != nil {
		return err
	}
	if err := e.rerouteFailures(ctx, work); err != nil {
		return err
	}
	for _, id := range work.done {
		e.worked.put(id, struct{}{})
	}
	return nil
}

// readInbox reads entries until their posts come to inboxBytes, and says how
// many of ids that were. How large an entry is shows when it is read: so a few
// are read together, the more the smaller they turn out to be, and what does not
// fit any more is left to the next group.
func (e *Engine) readInbox(ctx context.Context, ids []models.ID) (entries []models.Inbox, n int, err error) {
	size, largest := 0, 0
	for k := 1; n < len(ids) && largest <= inboxBytes-size; k = min(2*k, inboxRead, (inboxBytes-size)/max(largest, 1)) {
		part := ids[n:min(n+k, len(ids))]
		some, err := e.inbox(ctx, part)
		if err != nil {
			return nil, n, err
		}
		for i := range some {
			own := some[i].Size()
			if size+own > inboxBytes && len(entries) > 0 {
				return entries, n + slices.Index(part, some[i].ID), nil
			}
			size += own
			largest = max(largest, own)
			entries = append(entries, some[i])
		}
		n += len(part)
	}
	return entries, n, nil
}

// inbox reads entries. One that is damaged is left out: it stays in the inbox, for
// a later version to replay, and is not announced again.
func (e *Engine) inbox(ctx context.Context, ids []models.ID) ([]models.Inbox, error) {
	all, err := e.store.Inbox(ctx, ids...)
	if !errors.Is(err, models.ErrDamaged) {
		return all, err
	}
	all = all[:0]
	for _, id := range ids {
		one, err := e.store.Inbox(ctx, id)
		if errors.Is(err, models.ErrDamaged) {
			e.counts.eventsSkipped.Add(1)
			e.log.Error("a post cannot be read; it stays in the inbox, and can be replayed by a version that can", "post", id.String(), "err", err)
			one, err = nil, e.store.InboxDone(ctx, id)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// storeAtOnce is how many reads and writes of one piece of work run together.
const storeAtOnce = 16

// eventWork is what a group of entries of the inbox comes to.
type eventWork struct {
	mu      sync.Mutex
	done    []models.ID // entries that were parsed
	byChunk map[models.ID]*chunkEvents
	facts   []models.ChunkFact
	reading int64 // of events that are read again: see models.Event
}

func (w *eventWork) fact(chunk models.ID, f models.Fact) {
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

// dropReplayed leaves out posts whose token came before with another body: in an
// earlier entry, or earlier in the same.
func (e *Engine) dropReplayed(ctx context.Context, entries []models.Inbox) error {
	type token struct {
		entry  models.ID
		replay string
	}
	var (
		ws    []models.Witness
		asked []token
		first = map[token]string{} // the digest of what came first
	)
	for i := range entries {
		in := &entries[i]
		if e.byName[in.Account] == nil {
			continue
		}
		for k := range in.Posts {
			p := &in.Posts[k]
			of := token{in.ID, p.Replay}
			if _, ok := first[of]; ok || p.Replay == "" {
				continue
			}
			first[of] = digest(p.Body)
			group, _, _ := strings.Cut(p.Replay, ".")
			ws = append(ws, models.Witness{Group: in.Account + "/" + group, Key: in.Account + "/" + p.Replay, Digest: first[of], Entry: in.ID})
			asked = append(asked, of)
		}
	}
	if len(ws) == 0 {
		return nil
	}
	firsts, err := e.store.Witness(ctx, ws...)
	if err != nil {
		return err
	}
	for i, of := range asked {
		first[of] = firsts[i]
	}
	for i := range entries {
		in := &entries[i]
		in.Posts = slices.DeleteFunc(in.Posts, func(p models.Post) bool {
			was, ok := first[token{in.ID, p.Replay}]
			if !ok || was == digest(p.Body) {
				return false
			}
			e.counts.eventsReplayed.Add(1)
			e.metrics.refused.WithLabelValues(in.Account, "replayed").Inc()
			e.log.Warn("post refused: its token came before with another body", "provider", in.Account)
			return true
		})
	}
	return nil
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// parse parses the posts of an entry into the work.
func (e *Engine) parse(in *models.Inbox, work *eventWork) {
	a := e.byName[in.Account]
	if a == nil {
		e.log.Error("posts of an account that is not configured; they stay in the inbox", "provider", in.Account)
		return
	}
	parsed := make([]models.Parsed, len(in.Posts))
	models.InBackground(func() {
		for i := range in.Posts {
			parsed[i] = a.Provider.Parse(in.Posts[i].Body)
		}
	})
	in.Posts = nil
	work.mu.Lock()
	defer work.mu.Unlock()
	work.done = append(work.done, in.ID)
	for i := range parsed {
		for _, why := range parsed[i].Skipped {
			e.counts.eventsSkipped.Add(1)
			e.metrics.refused.WithLabelValues(in.Account, "not_ours").Inc()
			e.log.Debug("part of a post skipped", "provider", in.Account, "err", why)
		}
		work.add(in, parsed[i].Events)
	}
}

// add files the events of a post under the chunks that they name; those of one
// chunk mostly stand together.
func (w *eventWork) add(in *models.Inbox, events []models.ParsedEvent) {
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
			ev.Recipient, ev.Account, ev.Text, ev.Reading = events[i].Log.Recipient(), in.Account, clip(ev.Text), w.reading
			*list = append(*list, ev)
		}
		events = events[n:]
	}
}

// admitEvents keeps the events that belong to an attempt of ours through the
// account that reports them, and turns them into facts.
func (e *Engine) admitEvents(ctx context.Context, work *eventWork) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range work.byChunk {
		g.Go(func() error {
			err := e.admitChunk(ctx, work, id, c)
			if err != nil {
				_, err = e.spared(id, err)
			}
			return err
		})
	}
	return g.Wait()
}

func (e *Engine) admitChunk(ctx context.Context, work *eventWork, id models.ID, c *chunkEvents) error {
	b, err := e.batch(ctx, id.Batch())
	if isNotFound(err) || err == nil && b.ChunkSize(id.ChunkNumber()) == 0 {
		e.forged(c, id)
		return nil
	}
	if err != nil {
		return err
	}
	c.user = b.User
	entries, fresh, err := e.ledger(ctx, id, false)
	if err != nil {
		return err
	}
	var known map[models.Event]bool
	if work.reading > 0 {
		if known, err = e.knownEvents(ctx, id); err != nil {
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
				if entries, fresh, err = e.ledger(ctx, id, true); err != nil {
					return err
				}
				of = attemptOf(entries, ev)
			}
			if of == nil {
				e.refuse(id, ev)
				continue
			}
			if known[asRead(*ev)] {
				continue // it was read like this before
			}
			e.counts.eventsTaken.Add(1)
			c.taken = true
			c.failed = c.failed || ev.Kind.Failure()
			e.countEvent(ev, of)
			e.metrics.event(ev, id.Time())
			e.history.event(ev, of)
			ours = append(ours, *ev)
		}
		if len(ours) > before {
			posts = append(posts, p.post)
		}
	}
	if len(ours) > 0 {
		tracing.Start(id, "events", time.Time{}, "chunk", id.String(), "account", ours[0].Account, "events", strconv.Itoa(len(ours))).End("")
	}
	c.posts = nil // the fact holds what counts
	if len(ours) > 0 {
		key := models.EventsKey(posts...)
		if work.reading > 0 {
			key = models.ReadingKey(work.reading, posts...)
		}
		work.fact(id, models.Fact{Key: key, Events: ours})
	}
	return nil
}

// ledger reads the ledger of a chunk, through a cache unless fresh is asked for.
// Entries never change, so a cached ledger is right about what it holds.
func (e *Engine) ledger(ctx context.Context, id models.ID, fresh bool) ([]models.Entry, bool, error) {
	if !fresh {
		if entries, ok := e.ledgers.get(id); ok {
			return entries, false, nil
		}
	}
	entries, err := e.store.Ledger(ctx, id)
	if err != nil {
		return nil, true, err
	}
	e.ledgers.put(id, entries)
	return entries, true, nil
}

// attemptOf finds the attempt that an event belongs to: its number, its account,
// and a recipient of it; nil: there is none.
func attemptOf(entries []models.Entry, ev *models.Event) *models.Entry {
	for i := range entries {
		en := &entries[i]
		if en.Kind == models.Attempt && en.Number == ev.Attempt {
			if en.Account == ev.Account && en.Recipients.Has(ev.Recipient) {
				return en
			}
			return nil
		}
	}
	return nil
}

func (e *Engine) forged(c *chunkEvents, id models.ID) {
	for _, p := range c.posts {
		for i := range p.events {
			e.refuse(id, &p.events[i])
		}
	}
}

func (e *Engine) refuse(id models.ID, ev *models.Event) {
	e.counts.eventsForged.Add(1)
	e.metrics.refused.WithLabelValues(ev.Account, "no_attempt").Inc()
	e.log.Warn("event refused: it belongs to no attempt of ours", "provider", ev.Account, "chunk", id.String(), "attempt_id", ev.Attempt)
}

func (e *Engine) countEvent(ev *models.Event, of *models.Entry) {
	a := e.byName[ev.Account]
	switch {
	case ev.Kind == models.Delivered:
		a.count(func(n *models.Counters) { n.Delivered++ })
	case ev.Kind.Failure():
		a.count(func(n *models.Counters) { n.Failures++ })
	case ev.Kind != models.Deferred:
		return
	}
	e.flows.report(ev.Account, of.At)
}

// markPosts marks the chunks for a new summary; when those are stored, the posts
// are worked off.
func (e *Engine) markPosts(ctx context.Context, work *eventWork) error {
	left := 0
	for _, c := range work.byChunk {
		if c.taken {
			left++
		}
	}
	if left == 0 {
		return e.store.InboxDone(ctx, work.done...)
	}
	done := work.done // alone: the countdown outlives the work by seconds
	countdown := newCountdown(left, func() { e.finishPosts(done) })
	for id, c := range work.byChunk {
		if c.taken {
			e.summaries.mark(c.user, id, countdown)
		}
	}
	return nil
}

// finished are entries of the inbox that are to be marked as worked off. Those of
// many groups become so at the same time, when summaries were stored.
type finished struct {
	mu      sync.Mutex
	ids     []models.ID
	marking bool
}

func (f *finished) take() (ids []models.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, f.ids = f.ids, nil
	f.marking = len(ids) > 0
	return ids
}

// finishPosts marks entries as worked off, for as long as it takes: a crash
// before has them worked off once more.
func (e *Engine) finishPosts(ids []models.ID) {
	f := &e.finished
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, ids...)
	if f.marking {
		return
	}
	f.marking = true
	e.background.Go(func() {
		for ids := f.take(); len(ids) > 0; ids = f.take() {
			for {
				err := e.store.InboxDone(models.WithBackground(e.hard), ids...)
				if err == nil {
					break
				}
				e.log.Warn("posts not marked as worked off yet", "entries", len(ids), "err", err)
				select {
				case <-time.After(2 * time.Second):
				case <-e.hard.Done():
					return
				}
			}
		}
	})
}

// rerouteFailures looks at the chunks for which a provider has given up on
// somebody: ends what nobody can cure, and announces the rest to another
// account's log retry consumer.
func (e *Engine) rerouteFailures(ctx context.Context, work *eventWork) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range work.byChunk {
		if !c.failed {
			continue
		}
		g.Go(func() error {
			_, err := e.advance(ctx, id)
			return err
		})
	}
	return g.Wait()
}

// newCountdown returns a function that runs f at its n-th call.
func newCountdown(n int, f func()) func() {
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			f()
		}
	}
}
