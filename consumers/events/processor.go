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
	"github.com/safedelivr/safedelivr/models/suppression"
)

// The sizes and times of groups of posts.
const (
	groupSize  = 64                   // maximum number of posts in a group
	maxRunners = 2                    // maximum number of groups that are processed at once
	linger     = 5 * time.Millisecond // how long the first post of a group waits for more
	lateAge    = time.Minute          // age from which a post no longer yields to urgent mail
)

// Processor processes announced posts in groups, so that the events of many posts about
// one chunk cost one read and one write. It does not process a post again that it has
// processed recently. Its methods may be called concurrently.
type Processor struct {
	Seen *SeenKinds // which kinds of event came in

	Deps
	cfg Config
	log *slog.Logger

	inbox      *inboxReader
	matcher    *matcher
	attributor *attributor
	suppressor *suppressor
	finished   *donePosts
	counts     *counts
	processed  *lru.Cache[models.ID, struct{}] // recently processed posts
	in         chan post

	mu       sync.Mutex
	inflight map[models.ID]bool // posts that are being processed
}

// post is an announced post. Its disposition is sent to done.
type post struct {
	id   models.ID
	done chan models.Disposition
}

// Deps holds the dependencies of a Processor. All are required.
type Deps struct {
	Suppressions *suppression.Lists
	Store        Store
	Providers    *provider.Set
	Flows        *provider.Flows
	Chunks       *dispatch.Chunks
	Work         *dispatch.Work
	Dispatch     *dispatch.Dispatcher
	Requeuer     Requeuer
	Summaries    Summaries
	Observer     Observer
}

// New returns a Processor.
func New(cfg Config, deps Deps) *Processor {
	q := &Processor{
		Seen:      &SeenKinds{log: cfg.Logger, store: deps.Store},
		Deps:      deps,
		cfg:       cfg,
		log:       cfg.Logger,
		finished:  &donePosts{log: cfg.Logger, store: deps.Store, work: deps.Work},
		counts:    &counts{},
		processed: dispatch.NewMemo[models.ID, struct{}](100_000),
		in:        make(chan post),
		inflight:  map[models.ID]bool{},
	}
	q.inbox = &inboxReader{cfg.Logger, deps.Store, deps.Providers, deps.Observer, q.counts}
	q.suppressor = &suppressor{deps.Store, deps.Chunks, deps.Suppressions, cfg.SoftBounces}
	q.matcher = &matcher{cfg.Logger, deps.Store, deps.Chunks, deps.Providers, deps.Observer, q.counts,
		matchSchedule{}, unmatchedList{store: deps.Store, worker: cfg.Worker}}
	q.attributor = &attributor{cfg.Logger, deps.Store, deps.Chunks, deps.Providers, deps.Flows, deps.Observer, q.Seen,
		q.counts, dispatch.NewMemo[models.ID, []models.Entry](4096), newRecentSet(100_000)}
	return q
}

// Unmatched returns the number of events whose log was not found.
func (q *Processor) Unmatched() int64 { return q.counts.unmatched.Load() }

// Counts returns the number of events that were taken, of events that were refused because
// they belong to no attempt through their provider, of posts that were refused because
// their token was used for another body, and of posts and parts of posts that were
// skipped.
func (q *Processor) Counts() (taken, forged, replayed, skipped int64) {
	c := q.counts
	return c.taken.Load(), c.forged.Load(), c.replayed.Load(), c.skipped.Load()
}

// begin reports whether a post has to be processed: this process is not doing so, and has
// not done so recently. If it returns true, end must be called.
func (q *Processor) begin(id models.ID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, done := q.processed.Get(id); done || q.inflight[id] {
		return false
	}
	q.inflight[id] = true
	return true
}

func (q *Processor) end(id models.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inflight, id)
}

// runners returns how many groups are processed at once. With an embedded store that mostly computes, so it leaves one
// CPU to other work.
func runners(sole bool) int {
	if sole {
		return min(maxRunners, priority.Parallelism())
	}
	return maxRunners
}

// Runners returns how many calls of Run should run at once.
func (q *Processor) Runners() int { return runners(q.cfg.Sole) }

// Handle handles event.<ns>: it returns after the post was processed. If the post is
// being processed already, or was recently, Handle returns at once.
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
		timer := time.NewTimer(linger)
	collect:
		for len(posts) < groupSize {
			select {
			case p := <-q.in:
				posts = append(posts, p)
			case <-timer.C:
				break collect
			}
		}
		timer.Stop()
		began := time.Now()
		q.processPosts(ctx, posts)
		if began.Sub(posts[0].id.Time()) < lateAge {
			q.cfg.Priority.Backoff(ctx, time.Since(began))
		}
	}
}

// processPosts processes posts, as many at once as inboxBytes allows, and sends the
// disposition of each as soon as it is processed.
func (q *Processor) processPosts(ctx context.Context, posts []post) {
	for len(posts) > 0 {
		ids := make([]models.ID, len(posts))
		for i := range posts {
			ids[i] = posts[i].id
		}
		n, err := q.process(ctx, ids)
		verdict := models.Done()
		if err != nil {
			n = len(posts)
			q.log.Warn("cannot process events; will retry", "posts", n, "err", err)
			verdict = models.Later(2 * time.Second)
		}
		for i := range posts[:n] {
			posts[i].done <- verdict
		}
		posts = posts[n:]
	}
}

// Concurrency returns how many event messages this process handles at once.
func (q *Processor) Concurrency() int { return q.Runners() * groupSize }
