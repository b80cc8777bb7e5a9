// Package consumers builds, starts and stops the rooms that change state after acceptance. They dispatch chunks to
// providers, reroute refused mail, process the providers' events, and keep sums and agenda. Nothing else in the program
// does.
package consumers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/consumers/agenda"
	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/endpoints"
	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/evidence"
	"github.com/safedelivr/safedelivr/consumers/guard"
	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/consumers/lists"
	"github.com/safedelivr/safedelivr/consumers/notices"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/reports"
	"github.com/safedelivr/safedelivr/consumers/retention"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Provider is a configured provider with its adapter.
type Provider = provider.Spec

// Engine runs the consumers of one process.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	store  models.Store
	broker models.Broker

	follower     *control.Follower
	suppressions *suppression.Lists
	cluster      *cluster.Cluster
	providers    *provider.Set
	flows        *provider.Flows
	silence      *provider.SilenceDetector
	reporter     *cluster.Reporter
	chunks       *dispatch.Chunks
	outbox       *dispatch.Outbox
	work         *dispatch.Work
	dispatch     *dispatch.Dispatcher
	rollup       *rollup.Rollup
	events       *events.Processor
	soft         *events.SoftDecider
	evidence     *evidence.Lookups
	agenda       *agenda.Agenda
	retention    *retention.Retention
	history      *retention.History
	endpoints    *endpoints.Poster
	lists        *lists.Reader
	ages         *agenda.QueueAges
	metrics      *metrics
}

// New returns an engine that is not running. It returns an error if a provider name is invalid or not unique.
func New(store models.Store, broker models.Broker, specs []Provider, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	e := &Engine{cfg: cfg, log: cfg.Logger, store: store, broker: broker, follower: cfg.Follower}
	if e.follower == nil {
		e.follower = control.NewFollower(store)
	}
	if e.suppressions = cfg.Suppressions; e.suppressions == nil {
		e.suppressions = suppression.New(store, suppression.DefaultMemory)
	}
	e.cluster, e.flows = cluster.New(store, cluster.Config{
		Worker:    cfg.Worker,
		Life:      cfg.life,
		Started:   cfg.started,
		Heartbeat: cfg.Heartbeat,
		Sole:      cfg.Sole,
		Logger:    cfg.Logger,
	}), provider.NewFlows()
	var err error
	if e.providers, err = provider.NewSet(specs, cfg.provider(), e.cluster); err != nil {
		return nil, err
	}
	e.cluster.Carry(e.providers, e.flows)
	e.history = retention.NewHistory(store, cfg.Worker+"/"+cfg.life)
	e.ages = agenda.NewQueueAges(store, broker, cfg.Worker)
	e.metrics = newMetrics(e.providers)
	decisions := PolicyFor(specs, &cfg)
	e.buildRooms(decisions)
	e.reporter = cluster.NewReporter(cluster.ReporterDeps{
		Store:     store,
		Cluster:   e.cluster,
		Follower:  e.follower,
		Providers: e.providers,
		Flows:     e.flows,
		Worker:    cfg.Worker,
		Life:      cfg.life,
		Started:   cfg.started,
		Logger:    cfg.Logger,
	})
	e.providers.OnChange(func() {
		e.cluster.Wake()
		e.reporter.Wake()
	})
	if cfg.Metrics != nil {
		e.metrics.register(cfg.Metrics, &scrape{e: e})
	}
	return e, nil
}

// buildRooms builds the rooms that handle chunks, in the order of their imports.
func (e *Engine) buildRooms(decisions *policy.Policy) {
	cfg, seen := &e.cfg, &observer{metrics: e.metrics, history: e.history, flows: e.flows}
	room := dispatch.Config{Worker: cfg.Worker, Times: cfg.Times, Limits: cfg.Limits, Pace: cfg.Pace, Sole: cfg.Sole,
		Priority: cfg.Priority, Logger: cfg.Logger}
	e.chunks = dispatch.NewChunks(room, e.store, e.follower)
	e.outbox, e.work = dispatch.NewOutbox(e.broker, cfg.Standby, cfg.Logger), dispatch.NewWork()
	e.rollup = rollup.New(room, e.store, e.chunks, e.metrics.watched)
	guards := guard.New(guard.Config{Bounces: cfg.Bounces, Keep: cfg.KeepLogs, Logger: cfg.Logger}, e.store, e.follower)
	e.rollup.OnCounted(func(ctx context.Context, sums []models.ChunkSummary) {
		guards.Counted(ctx, sums)
		e.agenda.Counted(sums)
	})
	e.evidence = evidence.New(room, evidence.Deps{
		Store:     e.store,
		Policy:    decisions,
		Providers: e.providers,
		Chunks:    e.chunks,
		Outbox:    e.outbox,
	})
	e.dispatch = dispatch.New(room, dispatch.Deps{
		Store:        e.store,
		Chunks:       e.chunks,
		Outbox:       e.outbox,
		Work:         e.work,
		Follower:     e.follower,
		Suppressions: e.suppressions,
		Policy:       decisions,
		Providers:    e.providers,
		Observer:     seen,
		Evidence:     e.evidence,
		Summaries:    e.rollup,
	})
	sweeper := events.NewSweeper(room, e.store, e.broker, e.outbox, e.providers)
	e.agenda = agenda.New(room, agenda.Deps{
		Store:     e.store,
		Broker:    e.broker,
		Follower:  e.follower,
		Providers: e.providers,
		Members:   e.cluster,
		Chunks:    e.chunks,
		Outbox:    e.outbox,
		Dispatch:  e.dispatch,
		Inbox:     sweeper,
		Summaries: e.rollup,
		Ages:      e.ages,
	})
	e.events = events.New(room, events.Deps{
		Suppressions: e.suppressions,
		Store:        e.store,
		Providers:    e.providers,
		Flows:        e.flows,
		Chunks:       e.chunks,
		Work:         e.work,
		Dispatch:     e.dispatch,
		Requeuer:     e.agenda,
		Summaries:    e.rollup,
		Observer:     seen,
	})
	e.soft = events.NewSoftDecider(room, e.store, e.chunks, e.suppressions)
	e.silence = provider.NewSilenceDetector(cfg.provider(), e.store, e.providers, e.flows, sweeper.EventsWaiting)
	e.retention = retention.New(retention.Config{Worker: cfg.Worker, Times: cfg.Times, Logger: cfg.Logger},
		e.store, e.follower)
	e.lists = lists.New(lists.Config{Worker: cfg.Worker, Every: cfg.ProviderLists, Logger: cfg.Logger}, lists.Deps{
		Store:        e.store,
		Suppressions: e.suppressions,
		Providers:    e.providers,
		Observer:     e.metrics,
	})
	e.endpoints = endpoints.New(endpoints.Config{
		Worker:   cfg.Worker + "/" + cfg.life,
		Client:   cfg.EndpointClient,
		Mailer:   cfg.EndpointMailer,
		Disabled: func(user string) bool { return e.follower.Rules().Disabled(user) != nil },
		Poll:     cfg.EndpointPoll,
		Posted:   func(c endpoints.Class) { e.metrics.posts.WithLabelValues(string(c)).Inc() },
		Logger:   cfg.Logger,
	}, e.store, e.broker)
	e.rollup.OnPublished(e.endpoints.Grown)
}

// A loop runs until ctx ends.
type loop interface{ Run(ctx context.Context) }

// loopFunc is a function as a loop.
type loopFunc func(ctx context.Context)

// Run implements loop.
func (f loopFunc) Run(ctx context.Context) { f(ctx) }

// inLowPriority returns a loop that runs f with low priority.
func inLowPriority(f func(ctx context.Context)) loop {
	return loopFunc(func(ctx context.Context) { f(priority.WithLow(ctx)) })
}

// supportLoops returns the loops that the handlers and the other loops rely on. They start first and stop last.
func (e *Engine) supportLoops() []loop {
	loops := []loop{
		loopFunc(e.follow),
		loopFunc(e.followProbes),
		e.cluster,
		e.reporter,
		inLowPriority(func(ctx context.Context) { e.ages.Run(ctx, e.cfg.QueuePoll, e.log) }),
		inLowPriority(func(ctx context.Context) { e.history.Run(ctx, e.cfg.HistoryPoll, e.log) }),
		inLowPriority(e.rollup.Run),
	}
	loops = append(loops, inLowPriority(e.events.RunMatches), inLowPriority(e.events.Seen.Run))
	for range e.events.Runners() {
		loops = append(loops, inLowPriority(e.events.Run))
	}
	return loops
}

// workLoops returns the loops that find and do work. empty says that no message waited when the engine started.
func (e *Engine) workLoops(empty bool) []loop {
	var names []string
	for _, p := range e.providers.All() {
		names = append(names, p.Name)
	}
	return []loop{
		e.agenda,
		loopFunc(e.agenda.RunResumed),
		loopFunc(e.agenda.RunRecovered),
		loopFunc(e.agenda.RunLeases),
		loopFunc(func(ctx context.Context) { e.agenda.RunBacklog(ctx, empty) }),
		inLowPriority(e.evidence.Run),
		e.silence,
		inLowPriority(e.retention.Run),
		inLowPriority(e.rollup.RunChecks),
		inLowPriority(e.endpoints.Run),
		inLowPriority(e.lists.Run),
		inLowPriority(e.lists.RunPublishing),
		inLowPriority((&reports.Reader{Runner: jobs.Runner{Store: e.store, Worker: e.cfg.Worker, Log: e.log}, Inbox: e.store,
			Broker: e.broker, Providers: e.providers, Refused: (&observer{metrics: e.metrics}).EventRefused}).Run),
		inLowPriority(e.soft.Run),
		inLowPriority(notices.New(e.cfg.Worker+"/"+e.cfg.life, names, e.store, e.follower.Rules(), e.log).Run),
	}
}

// start starts loops in order. stop stops them in reverse order and waits for each.
func start(ctx context.Context, loops []loop) (stop func()) {
	type running struct {
		cancel context.CancelFunc
		done   chan struct{}
	}
	var all []running
	for _, l := range loops {
		ctx, cancel := context.WithCancel(ctx)
		r := running{cancel: cancel, done: make(chan struct{})}
		go func() {
			defer close(r.done)
			l.Run(ctx)
		}()
		all = append(all, r)
	}
	return func() {
		for _, r := range slices.Backward(all) {
			r.cancel()
			<-r.done
		}
	}
}

// Run works until ctx ends or a subscription fails. Then it handles no new message, waits up to grace for running
// calls, and stores summaries.
func (e *Engine) Run(ctx context.Context, grace time.Duration) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	empty := e.restore(ctx)
	stopSupport := start(context.WithoutCancel(ctx), e.supportLoops())
	var work sync.WaitGroup
	failed := e.subscribe(ctx, &work)
	for _, l := range e.workLoops(empty) {
		work.Go(func() { l.Run(ctx) })
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	graceTimer := time.AfterFunc(grace, e.work.Stop)
	work.Wait()
	stopSupport()
	e.history.Finish(e.log)
	// If an append is not resolved in time, another worker resolves it by its agenda.
	lastTimer := time.AfterFunc(2*time.Second, e.work.Stop)
	e.work.Wait()
	lastTimer.Stop()
	graceTimer.Stop()
	e.work.Stop()
	return err
}

// rulePoll is how often the command log is read.
const rulePoll = 250 * time.Millisecond

// follow reads the command log until ctx ends.
func (e *Engine) follow(ctx context.Context) {
	e.follower.Follow(ctx, rulePoll, func(err error) {
		e.log.Warn("cannot read the command log; will retry", "err", err)
	})
}

// restore reads the commands, the peers and the persisted findings before the first call, for three seconds at most. It
// reports whether no message waits in the broker.
func (e *Engine) restore(ctx context.Context) (empty bool) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	err := e.follower.Sync(ctx)
	e.providers.Probe(e.follower.Rules().Probe) // findings from before a probe are not restored
	if err := errors.Join(err, e.cluster.Join(ctx), e.cluster.Restore(ctx)); err != nil {
		e.log.Warn("cannot read commands, peers or findings at the start", "err", err)
	}
	return e.agenda.Idle(ctx)
}

// followProbes carries out commands to probe providers until ctx ends.
func (e *Engine) followProbes(ctx context.Context) {
	for {
		changed := e.follower.Changed()
		e.providers.Probe(e.follower.Rules().Probe)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// standbySlots bounds how many messages of a queue of the standby are handled at once.
const standbySlots = 16

// subscribe subscribes to all queues until ctx ends. failed receives the first error.
func (e *Engine) subscribe(ctx context.Context, all *sync.WaitGroup) (failed <-chan error) {
	fail := make(chan error, 1)
	run := func(subscribe func() error) {
		all.Go(func() {
			if err := subscribe(); err != nil && ctx.Err() == nil {
				select {
				case fail <- err:
				default:
				}
			}
		})
	}
	to := func(q models.Queue, n int, h models.Handler) {
		run(func() error { return e.ages.Subscribe(ctx, q, n, h) })
		if e.cfg.Standby != nil {
			run(func() error { return e.cfg.Standby.Subscribe(ctx, q, min(n, standbySlots), h) })
		}
	}
	// Generic handlers never wait for a provider: as many as all providers together can keep busy, and a few more.
	generic := 4
	for _, p := range e.providers.All() {
		generic += p.Concurrency
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		to(models.Queue{Kind: models.BatchMessage, Lane: lane}, generic, e.dispatch.HandleBatch)
		for _, p := range e.providers.All() {
			n := max(1, p.Concurrency)
			to(models.Queue{Kind: models.ProviderMessage, Provider: p.Name, Lane: lane}, n, e.dispatch.HandleProvider)
			to(models.Queue{Kind: models.LogMessage, Provider: p.Name, Lane: lane}, n, e.dispatch.HandleLog)
		}
	}
	to(models.Queue{Kind: models.EventMessage}, e.events.Concurrency(), e.events.Handle)
	return fail
}

// Accepted notes a batch that this process has just stored, with its first chunk.
func (e *Engine) Accepted(b *models.Batch, first models.Chunk) { e.chunks.Accepted(b, first) }

// Flush renews every marked summary. Tests call it, and commands that need exact sums.
func (e *Engine) Flush(ctx context.Context) error { return e.rollup.Flush(ctx) }

// Pending returns how many chunks are marked for a new summary.
func (e *Engine) Pending() int { return e.rollup.Pending() }

// EventCounts returns the numbers of events that were taken and refused. See events.Processor.Counts.
func (e *Engine) EventCounts() (taken, forged, replayed, skipped int64) { return e.events.Counts() }

// Check recounts sums from the ledgers. See rollup.CheckOptions.
func (e *Engine) Check(ctx context.Context, o rollup.CheckOptions) (telemetry.Recount, error) {
	return e.rollup.Check(ctx, o)
}

// Replay parses the posts that arrived in [from, to) again. See events.Processor.Replay.
func (e *Engine) Replay(
	ctx context.Context,
	from, to time.Time,
	progress func(events.Replayed),
) (events.Replayed, error) {
	return e.events.Replay(ctx, from, to, progress)
}

// Purge removes the content and the recipients of old batches.
func (e *Engine) Purge(ctx context.Context, now time.Time) error { return e.retention.Purge(ctx, now) }

// State returns this worker's report.
func (e *Engine) State() telemetry.WorkerState { return e.reporter.State() }
