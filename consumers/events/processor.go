package events

import (
	"context"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// The sizes and times of groups of posts.
const (
	eventsAtOnce = 64                   // posts worked off together, at most
	EventRunners = 2                    // groups of posts worked off at once, at most
	EventsWait   = 5 * time.Millisecond // how long the first waits for more
	EventsLate   = time.Minute          // how late a post is from which on urgent mail does not hold it up
)

// Processor collects announced posts, so that the events of many posts about
// one chunk cost one read and one write. A post that is announced again is not
// worked off again: it would only be counted twice.
type Processor struct {
	cfg       Config
	log       *slog.Logger
	store     Store
	broker    Depths
	providers *provider.Set
	flows     *provider.Flows
	dispatch  *dispatch.Dispatcher
	requeuer  Requeuer
	summaries Summaries
	observer  Observer

	ledgers   *lru.Cache[models.ID, []models.Entry]
	processed *lru.Cache[models.ID, struct{}] // posts processed lately
	counted   *recentSet                      // hashes of events counted lately
	finished  donePosts
	counts    counts
	in        chan post

	mu      sync.Mutex
	Working map[models.ID]bool // posts that are being worked off
}

type post struct {
	id   models.ID
	done chan models.Disposition
}

// Deps are what the processing of events needs. All are required.
type Deps struct {
	Store     Store
	Broker    Depths
	Providers *provider.Set
	Flows     *provider.Flows
	Dispatch  *dispatch.Dispatcher
	Summaries Summaries
	Observer  Observer
}

// New returns a queue that is not running. Connect must be called before it is
// used.
func New(cfg Config, deps Deps) *Processor {
	return &Processor{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		broker:    deps.Broker,
		providers: deps.Providers,
		flows:     deps.Flows,
		dispatch:  deps.Dispatch,
		summaries: deps.Summaries,
		observer:  deps.Observer,
		ledgers:   dispatch.NewMemo[models.ID, []models.Entry](4096),
		processed: dispatch.NewMemo[models.ID, struct{}](100_000),
		counted:   newRecentSet(100_000),
		in:        make(chan post),
		Working:   map[models.ID]bool{},
	}
}

// Connect gives the queue the agenda, which is built upon it.
func (q *Processor) Connect(r Requeuer) { q.requeuer = r }

// Counts returns how many events were taken, and how many were refused because they
// belong to no attempt through their provider, because they came under a token that was
// used for other content, or because they are no events of ours.
func (q *Processor) Counts() (taken, forged, replayed, skipped int64) {
	return q.counts.eventsTaken.Load(), q.counts.eventsForged.Load(), q.counts.eventsReplayed.Load(), q.counts.eventsSkipped.Load()
}

// begin reports whether a post is to be worked off: this process does not do so
// now, and has not done so lately. Who begins must end.
func (q *Processor) begin(id models.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, done := q.processed.Get(id); done || q.Working[id] {
		return false
	}
	q.Working[id] = true
	return true
}

func (q *Processor) end(id models.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.Working, id)
}

// Runners is how many groups are worked off at once. Where that is to compute and
// not to wait for the store, they leave a processor to others.
func (q *Processor) Runners() int {
	if q.cfg.Sole {
		return min(EventRunners, priority.Parallelism())
	}
	return EventRunners
}

// Handle is the consumer of event.<ns>.
func (q *Processor) Handle(ctx context.Context, m models.Message) models.Disposition {
	if !q.begin(m.ID) {
		return models.Done()
	}
	defer q.end(m.ID)
	p := post{id: m.ID, done: make(chan models.Disposition, 1)}
	select {
	case q.in <- p:
	case <-ctx.Done():
		return models.Later(0)
	}
	return <-p.done
}

// Run processes groups of posts until ctx ends.
func (q *Processor) Run(ctx context.Context) {
	for {
		var posts []post
		select {
		case p := <-q.in:
			posts = append(posts, p)
		case <-ctx.Done():
			return
		}
		linger := time.NewTimer(EventsWait)
	collect:
		for len(posts) < eventsAtOnce {
			select {
			case p := <-q.in:
				posts = append(posts, p)
			case <-linger.C:
				break collect
			}
		}
		linger.Stop()
		began := time.Now()
		q.work(ctx, posts)
		if began.Sub(posts[0].id.Time()) < EventsLate {
			q.cfg.Priority.Backoff(ctx, time.Since(began))
		}
	}
}

// work works posts off, as many at a time as inboxBytes allows, and answers each
// as soon as it is done.
func (q *Processor) work(ctx context.Context, posts []post) {
	for len(posts) > 0 {
		ids := make([]models.ID, len(posts))
		for i := range posts {
			ids[i] = posts[i].id
		}
		n, err := q.Process(ctx, ids)
		verdict := models.Done()
		if err != nil {
			n = len(posts)
			q.log.Warn("events could not be worked off yet", "posts", n, "err", err)
			verdict = models.Later(2 * time.Second)
		}
		for i := range posts[:n] {
			posts[i].done <- verdict
		}
		posts = posts[n:]
	}
}

// Concurrency returns how many event messages may be with this process at once.
func (q *Processor) Concurrency() int { return q.Runners() * eventsAtOnce }
