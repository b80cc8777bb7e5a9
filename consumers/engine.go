// Package consumers changes state after acceptance: it dispatches chunks to
// providers, reroutes what was refused, works off the providers' events, keeps
// the sums and the agenda. Nothing else in the program does.
package consumers

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Engine runs the consumers of one process.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	store  models.Store
	broker models.Broker
	policy *policy.Policy

	journal   *control.Follower
	crew      *cluster.Cluster
	providers *provider.Set
	silence   *provider.SilenceDetector

	batches   *cache[models.ID, *models.Batch] // of ordinary size
	large     *cache[models.ID, *models.Batch]
	fresh     *fresh
	ledgers   *cache[models.ID, []models.Entry]
	worked    *cache[models.ID, struct{}] // posts worked off lately
	counted   *cache[uint64, struct{}]    // events that were counted lately, by hash
	summaries *summaries
	filed     *cache[filed, bool] // events that were looked up lately
	lookups   *lookups
	underway  *underway
	flows     *provider.Flows
	history   *providerHistory
	ages      *ages
	metrics   *metrics
	events    *eventQueue
	shards    []*shard
	changed   chan struct{} // wakes tell
	outage    outage

	urgentFirst barrier // suspended while urgent mail that was missed is being announced

	background sync.WaitGroup // settling of appends and outcomes
	finished   finished
	hard       context.Context // ends when waiting for running calls is over
	kill       context.CancelFunc
	counts     counts
	cleared    atomic.Int64 // incomplete batches cleared away
}

// counts of what the engine refused or put right, for tests and reports.
type counts struct {
	eventsTaken, eventsForged, eventsReplayed, eventsSkipped atomic.Int64
}

// New builds an engine. Every provider name must be valid and distinct.
func New(store models.Store, broker models.Broker, specs []provider.Spec, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	e := &Engine{changed: make(chan struct{}, 1), cfg: cfg, log: cfg.Logger, store: store, broker: broker,
		batches: newCache[models.ID, *models.Batch](512), large: newCache[models.ID, *models.Batch](8),
		fresh: newCache[models.ID, []models.Recipient](freshBatches), ledgers: newCache[models.ID, []models.Entry](4096), worked: newCache[models.ID, struct{}](100_000),
		counted: newCache[uint64, struct{}](200_000)}
	if e.journal = cfg.Journal; e.journal == nil {
		e.journal = control.NewFollower(store)
	}
	e.crew, e.flows = cluster.New(store, cfg.cluster()), provider.NewFlows()
	var err error
	if e.providers, err = provider.NewSet(specs, cfg.provider(), e.crew); err != nil {
		return nil, err
	}
	e.crew.Carry(e.providers, e.flows)
	e.providers.OnChange(func() {
		e.crew.Wake()
		e.healthChanged()
	})
	e.silence = provider.NewSilenceDetector(cfg.provider(), store, e.providers, e.flows, e.eventsWaiting)
	e.policy = newPolicyFor(specs, &cfg)
	e.history, e.ages = newProviderHistory(store, &e.cfg), newAges(store, broker, e.cfg.Worker)
	e.summaries = newSummaries(e)
	e.events = newEventQueue(e)
	e.lookups, e.filed, e.underway = newLookups(e), newCache[filed, bool](100_000), newUnderway()
	e.shards = make([]*shard, store.Shards())
	for i := range e.shards {
		e.shards[i] = &shard{n: i}
	}
	e.metrics = newMetrics(e, cfg.Metrics)
	e.hard, e.kill = context.WithCancel(context.Background())
	return e, nil
}

// Run works until ctx ends, then finishes softly: no new message is begun, calls
// in flight are waited for up to grace, and summaries are written.
func (e *Engine) Run(ctx context.Context, grace time.Duration) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	fail := make(chan error, 1)
	subscribe := func(q models.Queue, n int, h models.Handler) {
		wg.Go(func() {
			if err := e.broker.Subscribe(ctx, q, n, e.ages.watch(q, h)); err != nil && ctx.Err() == nil {
				select {
				case fail <- err:
				default:
				}
			}
		})
	}
	// What the others know is known before the first call.
	first, cancelFirst := context.WithTimeout(ctx, 3*time.Second)
	unread := e.journal.Sync(first)
	e.probeAsCommanded() // what was found out before them is not believed
	if err := errors.Join(unread, e.crew.Join(first), e.crew.Restore(first)); err != nil {
		e.log.Warn("orders, other workers and providers that were ill could not be read at the start", "err", err)
	}
	empty := e.idle(first)
	cancelFirst()
	// Generic workers never wait for a provider: as many as all providers can
	// keep busy, and some to spare.
	generic := 4
	for _, a := range e.providers.All() {
		generic += a.Concurrency
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		subscribe(models.Queue{Kind: models.BatchMessage, Lane: lane}, generic, e.generic)
		for _, a := range e.providers.All() {
			n := max(1, a.Concurrency)
			subscribe(models.Queue{Kind: models.ProviderMessage, Provider: a.Name, Lane: lane}, n, e.exclusive)
			subscribe(models.Queue{Kind: models.LogMessage, Provider: a.Name, Lane: lane}, n, e.logRetry)
		}
	}
	subscribe(models.Queue{Kind: models.EventMessage}, e.events.runners()*eventsAtOnce, e.events.handle)

	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	patient := models.WithBackground(inner)
	var helpers sync.WaitGroup
	helpers.Go(func() {
		e.journal.Follow(inner, orderPoll, func(err error) { e.log.Warn("orders could not be read", "err", err) })
	})
	helpers.Go(func() { e.keepProbes(inner) })
	helpers.Go(func() { e.crew.Run(inner) })
	helpers.Go(func() { e.tell(inner) })
	helpers.Go(func() { e.ages.run(patient, e.cfg.QueuePoll, e.log) })
	helpers.Go(func() { e.history.run(patient, e.cfg.HistoryPoll, e.log) })
	helpers.Go(func() { e.summaries.run(patient) })
	for range e.events.runners() {
		helpers.Go(func() { e.events.run(patient) })
	}
	wg.Go(func() { e.agenda(ctx) })
	wg.Go(func() { e.keepAhead(ctx) })
	wg.Go(func() { e.keepShards(ctx) })
	wg.Go(func() { e.catchUp(ctx, empty) })
	wg.Go(func() { e.lookups.run(models.WithBackground(ctx)) })
	wg.Go(func() { e.silence.Run(ctx) })
	wg.Go(func() { e.retain(models.WithBackground(ctx)) })
	wg.Go(func() { e.watchSums(models.WithBackground(ctx)) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-fail:
	}
	stop()
	soft := time.AfterFunc(grace, e.kill)
	wg.Wait()
	stopInner()
	helpers.Wait()
	e.history.finish(e.log)
	// What could not be settled by now is settled by the agenda of whoever
	// works next.
	last := time.AfterFunc(2*time.Second, e.kill)
	e.background.Wait()
	last.Stop()
	soft.Stop()
	e.kill()
	return err
}

// Flush renews every summary that is marked. It is for tests and for commands
// that want exact sums now.
func (e *Engine) Flush(ctx context.Context) error { return e.summaries.flush(ctx) }

// UserByName finds a user. Errors: models.ErrNotFound.
func (e *Engine) UserByName(ctx context.Context, name string) (models.User, error) {
	return e.store.UserByName(ctx, name)
}

// Pending is how many chunks are marked for a new summary.
func (e *Engine) Pending() int { return e.summaries.pending() }

// EventCounts says how many events were taken, and how many were refused
// because they belong to no attempt of ours through that provider, because they
// came under a token that was used for other content, or because they are no
// events of ours.
func (e *Engine) EventCounts() (taken, forged, replayed, skipped int64) {
	return e.counts.eventsTaken.Load(), e.counts.eventsForged.Load(), e.counts.eventsReplayed.Load(), e.counts.eventsSkipped.Load()
}

// batch reads a batch through a cache: it never changes until the time of its
// content is over.
func (e *Engine) batch(ctx context.Context, id models.ID) (*models.Batch, error) {
	old := time.Since(id.Time()) > e.cfg.KeepContent
	if b, ok := e.batches.get(id); ok && !old {
		return b, nil
	}
	if b, ok := e.large.get(id); ok && !old {
		return b, nil
	}
	b, err := e.store.Batch(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(b.Content.HTML)+len(b.Content.Text) > largeContent {
		e.large.put(id, &b)
	} else {
		e.batches.put(id, &b)
	}
	return &b, nil
}

// largeContent is the size of a body from which few batches are cached.
const largeContent = 64 << 10

// keepProbes obeys commands to probe providers, as they come, until ctx ends.
func (e *Engine) keepProbes(ctx context.Context) {
	for {
		changed := e.journal.Changed()
		e.probeAsCommanded()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// probeAsCommanded obeys the newest commands to probe providers.
func (e *Engine) probeAsCommanded() { e.providers.Probe(e.journal.Rules().Probe) }
