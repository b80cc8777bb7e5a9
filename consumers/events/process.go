package events

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// process turns entries of the inbox into facts: it reads them, refuses replays, parses
// them, refuses events of others, stores the rest, reconciles the chunks and marks their
// summaries. It is idempotent.
//
// It returns how many of ids, from the first, it has processed. That is at least one, and
// fewer than all if the entries are large.
func (q *Processor) process(ctx context.Context, ids []models.ID) (int, error) {
	entries, n, err := q.inbox.read(ctx, ids)
	if err != nil || len(entries) == 0 {
		return n, err
	}
	return n, q.processEntries(ctx, entries, newEventGroup(0))
}

// processEntries processes entries that were read, as a new group.
func (q *Processor) processEntries(ctx context.Context, entries []models.Inbox, group *eventGroup) error {
	if err := q.inbox.dropReplayed(ctx, entries); err != nil {
		return err
	}
	var parsing sync.WaitGroup
	for i := range entries {
		parsing.Go(func() { q.parse(&entries[i], group) })
	}
	parsing.Wait()
	if group.collect != nil {
		*group.collect, group.unnamed = append(*group.collect, group.unnamed...), nil
	}
	return q.storeGroup(ctx, group)
}

// storeGroup attributes the events of a group, stores them as facts, and does what follows
// from them.
func (q *Processor) storeGroup(ctx context.Context, group *eventGroup) error {
	if err := q.matcher.match(ctx, group); err != nil {
		return err
	}
	if err := q.attributor.attribute(ctx, group); err != nil {
		return err
	}
	if len(group.facts) > 0 {
		if err := q.Store.PutFacts(ctx, group.facts...); err != nil {
			return err
		}
	}
	if err := q.suppressor.suppress(ctx, group); err != nil {
		return err
	}
	group.facts = nil // stored, and not needed below
	// The posts are marked last, because a processed post is not processed again.
	if err := q.reconcileAfter(ctx, group); err != nil {
		return err
	}
	if err := q.markSummaries(ctx, group); err != nil {
		return err
	}
	for _, id := range group.done {
		q.processed.Add(id, struct{}{})
	}
	return nil
}

// storeAtOnce is how many reads and writes of one group run at once.
const storeAtOnce = 16

// eventGroup holds the events of entries of the inbox that are processed together.
type eventGroup struct {
	mu            sync.Mutex
	done          []models.ID // entries that were parsed
	byChunk       map[models.ID]*chunkEvents
	facts         []models.ChunkFact
	unnamed       []unnamedEvent
	collect       *[]unnamedEvent // not nil: unnamed events are added to it instead of being matched
	again         bool            // set by MatchAgain: only unnamed events are processed
	parseRevision int64           // set by Replay: see models.Event
}

func newEventGroup(parseRevision int64) *eventGroup {
	return &eventGroup{byChunk: map[models.ID]*chunkEvents{}, parseRevision: parseRevision}
}

// fact adds a fact to be stored.
func (g *eventGroup) fact(chunk models.ID, f models.Fact) {
	g.mu.Lock()
	g.facts = append(g.facts, models.ChunkFact{Chunk: chunk, Fact: f})
	g.mu.Unlock()
}

// leave leaves the entries with events of a chunk unprocessed.
func (g *eventGroup) leave(c *chunkEvents) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = slices.DeleteFunc(g.done, func(id models.ID) bool {
		return slices.ContainsFunc(c.posts, func(p postEvents) bool { return p.post == id })
	})
}

// chunkEvents holds the events that name one chunk, by entry of the inbox.
type chunkEvents struct {
	user   string
	posts  []postEvents
	failed bool // an event reports a failure
	taken  bool // an event was attributed
}

// postEvents holds the events of one entry that name one chunk.
type postEvents struct {
	post   models.ID
	events []addressed
}

// addressed is an event and the address that it is about, if the provider names it.
type addressed struct {
	models.Event
	address string
}

// count returns the number of events of a chunk.
func (c *chunkEvents) count() (n int) {
	for i := range c.posts {
		n += len(c.posts[i].events)
	}
	return n
}

// of returns the events of an entry, with capacity for n more.
func (c *chunkEvents) of(post models.ID, n int) *[]addressed {
	i := slices.IndexFunc(c.posts, func(p postEvents) bool { return p.post == post })
	if i < 0 {
		i = len(c.posts)
		c.posts = append(c.posts, postEvents{post: post})
	}
	list := &c.posts[i].events
	*list = slices.Grow(*list, n)
	return list
}

// parse parses the posts of an entry into the group.
func (q *Processor) parse(in *models.Inbox, group *eventGroup) {
	a := q.Providers.Get(in.Provider)
	if a == nil {
		q.log.Error("provider of a post is not configured; the post stays in the inbox", "provider", in.Provider)
		return
	}
	parsed := make([]models.Parsed, len(in.Posts))
	q.cfg.Priority.Compute(func() {
		for i := range in.Posts {
			parsed[i] = q.parsePost(a, in.ID, in.Posts[i].Body)
		}
	})
	in.Posts = nil
	group.mu.Lock()
	defer group.mu.Unlock()
	group.done = append(group.done, in.ID)
	for i := range parsed {
		for _, u := range parsed[i].Unnamed {
			own := models.Inbox{ID: in.ID, Provider: in.Provider}
			group.unnamed = append(group.unnamed, unnamedEvent{UnnamedEvent: u, in: own})
		}
		if group.again {
			continue
		}
		for _, why := range parsed[i].Skipped {
			q.counts.skipped.Add(1)
			q.Observer.EventRefused(in.Provider, "not_ours")
			q.log.Debug("part of a post skipped", "provider", in.Provider, "err", why)
		}
		group.add(in, parsed[i].Events)
	}
}

// parsePost parses a post. If the parser panics, the post is skipped; it stays in the
// inbox, so that a later version can replay it.
func (q *Processor) parsePost(a *provider.Provider, id models.ID, body []byte) (out models.Parsed) {
	defer func() {
		if v := recover(); v != nil {
			q.log.Error("post cannot be parsed; replay it with a version that can",
				"provider", a.Name, "post", id.String(), "err", v)
			out = models.Parsed{Skipped: []string{"the parser panicked"}}
		}
	}()
	return a.Adapter.Parse(body)
}

// add adds the events of a post to the chunks that they name. Events of one chunk are
// mostly adjacent.
func (g *eventGroup) add(in *models.Inbox, events []models.ParsedEvent) {
	for len(events) > 0 {
		id := events[0].Log.ChunkID()
		n := slices.IndexFunc(events, func(p models.ParsedEvent) bool { return p.Log.ChunkID() != id })
		if n < 0 {
			n = len(events)
		}
		c := g.byChunk[id]
		if c == nil {
			c = &chunkEvents{}
			g.byChunk[id] = c
		}
		list := c.of(in.ID, n)
		for i := range events[:n] {
			ev := events[i].Event
			ev.Recipient, ev.Provider = events[i].Log.Recipient(), in.Provider
			ev.Text, ev.ParseRevision = models.Clip(ev.Text), g.parseRevision
			*list = append(*list, addressed{ev, events[i].Address})
		}
		events = events[n:]
	}
}

// reconcileAfter reconciles the chunks with a reported failure, and in a replay all
// chunks with events. It requeues what is unfinished, because the agenda entry of the
// batch may be due in days, or gone.
func (q *Processor) reconcileAfter(ctx context.Context, group *eventGroup) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(storeAtOnce)
	for id, c := range group.byChunk {
		if !c.failed && (group.parseRevision == 0 || !c.taken) {
			continue
		}
		g.Go(func() error {
			found, err := q.Dispatch.Reconcile(ctx, id)
			if err != nil || found == (dispatch.Result{}) {
				return err
			}
			b, err := q.Chunks.Batch(ctx, id.Batch())
			if err != nil {
				return err
			}
			entry := models.AgendaEntry{Kind: models.LookAtChunk, ID: id, User: b.User, Lane: b.Lane}
			return q.Requeuer.Requeue(ctx, entry, found)
		})
	}
	return g.Wait()
}
