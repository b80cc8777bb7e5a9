// Package endpoints posts updates of users' mail to their endpoints.
package endpoints

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// The times and bounds of posts.
const (
	poll        = 2 * time.Second  // how often new endpoints are looked for
	leased      = 20 * time.Second // longer than a round with its last posts
	roundTime   = 3 * time.Second  // after which a round begins no further post
	lastPosts   = 2 * time.Second  // default of Config.LastPosts
	idleRound   = 5 * time.Second  // the longest pause between two rounds
	pageUpdates = 1000             // updates that are read at a time
	maxRetries  = 1000             // posts that wait for a retry; while there are so many, no new one is made
	maxFailures = 5                // failures in a row after which only retries are made
	maxAttempts = 100              // attempts that are kept for people
	maxFailing  = 5 * 24 * time.Hour
	pageRows    = 100

	collected = 50 // posts of everyone's mail that are collected before they are made
)

// Delays are the times before the retries of a post.
var Delays = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// Config configures a Poster.
type Config struct {
	Worker string
	Client *outbound.Client
	Mailer endpoint.Mailer // nil: posts of the format mail fail
	Delays []time.Duration // before the retries of a post; default Delays
	Poll   time.Duration   // how often feeds are read that no wake is about; default feed.TailPoll
	// LastPosts is how long posts without an answer wait for it when the worker stops; default two seconds.
	LastPosts time.Duration
	// Disabled reports whether a user is disabled: then nothing is posted. nil: no user is.
	Disabled func(user string) bool
	// Posted is called after each post; nil: nothing is.
	Posted func(Class)
	Logger *slog.Logger
}

// Store is the part of models.Store that a Poster needs.
type Store interface {
	models.FeedStore
	models.DocumentStore
	feed.DescribedStore
	Users(ctx context.Context) ([]models.User, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Broker is the part of models.Broker that a Poster needs.
type Broker interface {
	Wake(ctx context.Context, users ...string) error
	SubscribeWakes(ctx context.Context, h func(users []string)) error
}

// Poster posts updates to endpoints. Each endpoint has a cursor in the feed of its user, and a queue, retries and a
// breaker of its own. So a slow endpoint, or one that is down, delays no other. One worker at a time posts to an
// endpoint. Every update is posted at least once, unless its retries are used up.
type Poster struct {
	cfg    Config
	log    *slog.Logger
	store  Store
	broker Broker
	tails  *feed.Tails

	compose *endpoint.Composer

	mu       sync.Mutex
	running  map[string]bool    // by key of the endpoint
	backlogs map[string]backlog // of those that this process posts to
	owners   map[string]bool    // users that have endpoints
	grown    map[string]bool    // users for whom a wake is due
	send     chan struct{}      // holds a token while there are some
}

// New returns a Poster.
func New(cfg Config, store Store, broker Broker) *Poster {
	if cfg.Poll == 0 {
		cfg.Poll = feed.TailPoll
	}
	if cfg.LastPosts == 0 {
		cfg.LastPosts = lastPosts
	}
	if cfg.Delays == nil {
		cfg.Delays = Delays
	}
	if cfg.Disabled == nil {
		cfg.Disabled = func(string) bool { return false }
	}
	if cfg.Mailer == nil {
		cfg.Mailer = func(context.Context, *endpoint.Endpoint, string, []byte) (string, error) {
			return "", errors.New("this worker accepts no mail")
		}
	}
	if cfg.Posted == nil {
		cfg.Posted = func(Class) {}
	}
	return &Poster{
		cfg:      cfg,
		log:      cfg.Logger,
		store:    store,
		broker:   broker,
		tails:    feed.NewTails(store, cfg.Poll),
		compose:  endpoint.NewComposer(store),
		running:  map[string]bool{},
		backlogs: map[string]backlog{},
		owners:   map[string]bool{},
		grown:    map[string]bool{},
		send:     make(chan struct{}, 1),
	}
}

// Run posts until ctx ends.
func (p *Poster) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { p.sendWakes(ctx) })
	all.Go(func() {
		if err := p.broker.SubscribeWakes(ctx, p.woken); err != nil && ctx.Err() == nil {
			p.log.Warn("cannot be woken for updates; they are posted a moment later", "err", err)
		}
	})
	for {
		if err := p.startAll(ctx, &all); err != nil && ctx.Err() == nil {
			p.log.Warn("cannot list the endpoints; will retry", "err", err)
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return
		}
	}
}

// postsTo reports whether posts are made to an endpoint: neither it nor its owner is disabled.
func (p *Poster) postsTo(e *endpoint.Endpoint) bool { return e.Enabled() && !p.cfg.Disabled(e.Owner) }

// startAll starts the work on all endpoints that this process does not work on yet.
func (p *Poster) startAll(ctx context.Context, all *sync.WaitGroup) error {
	listed, owners := map[string]bool{}, map[string]bool{} // those that are posted to, and their users
	for after := ""; ; {
		page, err := endpoint.In(p.store).Page(ctx, "", after, pageRows)
		if err != nil {
			return err
		}
		for i := range page {
			e := &page[i]
			if after = e.Key(); !p.postsTo(e) {
				continue
			}
			owners[e.Owner] = true
			if listed[after] = true; p.begin(after, e.Owner) {
				all.Go(func() {
					defer p.end(e.Key())
					if err := p.work(ctx, e); err != nil && ctx.Err() == nil {
						p.log.Warn("cannot post to an endpoint; will retry", "endpoint", e.ID, "user_id", e.Owner, "err", err)
					}
				})
			}
		}
		if len(page) < pageRows {
			p.keepBacklogs(listed)
			p.setOwners(owners)
			return nil
		}
	}
}

func (p *Poster) begin(key, user string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owners[user] = true
	if p.running[key] {
		return false
	}
	p.running[key] = true
	return true
}

func (p *Poster) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, key)
}

// work posts to an endpoint until ctx ends, the endpoint is disabled or removed, or another worker
// posts to it.
func (p *Poster) work(ctx context.Context, e *endpoint.Endpoint) error {
	name := "endpoint/" + e.Key()
	held := false
	pace := rate.NewLimiter(rate.Inf, 1)
	var all *everyone // of an endpoint of everyone's mail
	defer func() {
		if held {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_, _ = p.store.Lease(ctx, name, p.cfg.Worker, 0) // it ends anyway
		}
	}()
	for ctx.Err() == nil {
		var err error
		if held, err = p.store.Lease(ctx, name, p.cfg.Worker, leased); err != nil || !held {
			if err == nil {
				p.dropBacklog(e.Key())
			}
			return err
		}
		now, err := endpoint.In(p.store).Get(ctx, e.Owner, e.ID)
		if errors.Is(err, models.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if !p.postsTo(&now) {
			return nil
		}
		if now.Everyone && all == nil {
			if all, err = p.newEveryone(ctx, &now); err != nil {
				return err
			}
		}
		r := round{p: p, e: &now, all: all, pace: pace}
		next, err := r.run(ctx)
		if err != nil {
			return err
		}
		p.rest(ctx, &r, next)
	}
	return nil
}

// limitOf returns how many posts per second an endpoint gets.
func limitOf(e *endpoint.Endpoint) rate.Limit {
	if e.Rate == 0 {
		return rate.Inf
	}
	return rate.Limit(e.Rate)
}

// rest waits until a time, or until the feed has grown if new posts may be made.
func (p *Poster) rest(ctx context.Context, r *round, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if r.free() <= 0 || r.all != nil {
		<-ctx.Done()
		return
	}
	_ = p.tails.Wait(ctx, r.e.Owner, r.state.Next.Entry) // it only ends the rest earlier
}
