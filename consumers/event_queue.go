package consumers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

const (
	eventsAtOnce = 64                   // posts worked off together, at most
	eventRunners = 2                    // groups of posts worked off at once, at most
	eventsWait   = 5 * time.Millisecond // how long the first waits for more
	eventsLate   = time.Minute          // how late a post is from which on urgent mail does not hold it up
)

// eventProcessor collects announced posts, so that the events of many posts about
// one chunk cost one read and one write. A post that is announced again is not
// worked off again: it would only be counted twice.
type eventProcessor struct {
	cfg       eventsConfig
	log       *slog.Logger
	store     eventsStore
	broker    depths
	providers *provider.Set
	flows     *provider.Flows
	dispatch  *dispatcher
	requeuer  requeuer
	summaries summaryRenewal
	observer  eventObserver

	ledgers   *lru.Cache[models.ID, []models.Entry]
	processed *lru.Cache[models.ID, struct{}] // posts processed lately
	counted   *recentSet                      // hashes of events counted lately
	finished  donePosts
	counts    counts
	in        chan post

	mu      sync.Mutex
	working map[models.ID]bool // posts that are being worked off
}

type post struct {
	id   models.ID
	done chan models.Disposition
}

// eventsDeps are what the processing of events needs. All are required.
type eventsDeps struct {
	Store     eventsStore
	Broker    depths
	Providers *provider.Set
	Flows     *provider.Flows
	Dispatch  *dispatcher
	Summaries summaryRenewal
	Observer  eventObserver
}

// newEventProcessor returns a queue that is not running. Connect must be called before it is
// used.
func newEventProcessor(cfg eventsConfig, deps eventsDeps) *eventProcessor {
	return &eventProcessor{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		broker:    deps.Broker,
		providers: deps.Providers,
		flows:     deps.Flows,
		dispatch:  deps.Dispatch,
		summaries: deps.Summaries,
		observer:  deps.Observer,
		ledgers:   newMemo[models.ID, []models.Entry](4096),
		processed: newMemo[models.ID, struct{}](100_000),
		counted:   newRecentSet(100_000),
		in:        make(chan post),
		working:   map[models.ID]bool{},
	}
}

// connect gives the queue the agenda, which is built upon it.
func (q *eventProcessor) connect(r requeuer) { q.requeuer = r }

// Counts returns how many events were taken, and how many were refused because they
// belong to no attempt through their provider, because they came under a token that was
// used for other content, or because they are no events of ours.
func (q *eventProcessor) Counts() (taken, forged, replayed, skipped int64) {
	return q.counts.eventsTaken.Load(), q.counts.eventsForged.Load(), q.counts.eventsReplayed.Load(), q.counts.eventsSkipped.Load()
}

// Begin reports whether a post is to be worked off: this process does not do so
// now, and has not done so lately. Who begins must end.
func (q *eventProcessor) begin(id models.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, done := q.processed.Get(id); done || q.working[id] {
		return false
	}
	q.working[id] = true
	return true
}

func (q *eventProcessor) end(id models.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.working, id)
}

// runners is how many groups are worked off at once. Where that is to compute and
// not to wait for the store, they leave a processor to others.
func (q *eventProcessor) runners() int {
	if q.cfg.Sole {
		return min(eventRunners, models.Background)
	}
	return eventRunners
}

// reconcileEntries is the consumer of event.<ns>.
func (q *eventProcessor) handle(ctx context.Context, m models.Message) models.Disposition {
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

func (q *eventProcessor) run(ctx context.Context) {
	for {
		var posts []post
		select {
		case p := <-q.in:
			posts = append(posts, p)
		case <-ctx.Done():
			return
		}
		linger := time.NewTimer(eventsWait)
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
		if began.Sub(posts[0].id.Time()) < eventsLate {
			models.Rest(ctx, time.Since(began))
		}
	}
}

// inflightKey works posts off, as many at a time as inboxBytes allows, and answers each
// as soon as it is done.
func (q *eventProcessor) work(ctx context.Context, posts []post) {
	for len(posts) > 0 {
		ids := make([]models.ID, len(posts))
		for i := range posts {
			ids[i] = posts[i].id
		}
		n, err := q.process(ctx, ids)
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

// concurrency returns how many event messages may be with this process at once.
func (q *eventProcessor) concurrency() int { return q.runners() * eventsAtOnce }
