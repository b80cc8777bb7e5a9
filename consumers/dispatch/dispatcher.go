// Package dispatch handles messages about chunks. It plans by the policy, calls
// providers, stores the outcomes, and requeues steps for other handlers or for later.
package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// Config configures a Dispatcher.
type Config struct {
	Worker string // this process's name in ledger entries
	settings.Times
	settings.Pace
	Priority *priority.Scheduler
	Logger   *slog.Logger
}

// Store is the part of models.Store that the dispatcher needs.
type Store interface {
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	models.AttachmentStore
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error)
	Append(ctx context.Context, chunk models.ID, e models.Entry) error
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
	PutAddressIndex(ctx context.Context, user string, index models.AddressIndex) error
}

// Publisher is the part of models.Broker that the dispatcher needs.
type Publisher interface {
	Publish(ctx context.Context, ms ...models.Message) error
}

// Evidence looks up attempts whose outcome is unknown.
type Evidence interface {
	// Answered reports whether every provider that may have the mail of a step was
	// queried late enough, or has no look-up.
	Answered(c *Chunk, st *policy.Step, now time.Time) bool
	// MayEndSoon reports whether a wait may end early.
	MayEndSoon(c *Chunk, st *policy.Step, now time.Time) bool
}

// SummaryMarks collects the chunks whose summaries have to be recomputed.
type SummaryMarks interface {
	// Mark marks a chunk. If then is given, it runs after the new summary was stored.
	Mark(user string, chunk models.ID, then ...func())
	// MarkChunk marks a chunk that was just read.
	MarkChunk(c *Chunk)
}

// Observer is notified of calls and endings.
type Observer interface {
	// Called is called after each provider call.
	Called(p *provider.Provider, c *Chunk, call Call)
	// Ended is called after an ending or a cancellation was appended.
	Ended(entry *models.Entry)
}

// Call is a provider call that was made.
type Call struct {
	Entry *models.Entry
	First bool // no call was made for its recipients before
	Took  time.Duration
	Parts []models.Part // its answer
}

// Deps holds the dependencies of a Dispatcher. All but Standby are required.
type Deps struct {
	Store        Store
	Broker       Publisher
	Standby      Publisher // takes messages while Broker does not; nil: there is none
	Follower     *control.Follower
	Suppressions *suppression.Lists
	Policy       *policy.Policy
	Providers    *provider.Set
	Observer     Observer
}

// Dispatcher handles messages about chunks. Its methods may be called concurrently.
type Dispatcher struct {
	cfg       Config
	log       *slog.Logger
	store     Store
	broker    Publisher
	standby   Publisher
	follower  *control.Follower
	policy    *policy.Policy
	priority  *priority.Scheduler
	providers *provider.Set
	observer  Observer
	evidence  Evidence
	summaries SummaryMarks

	suppressions *suppression.Lists

	batches  *lru.Cache[models.ID, *models.Batch] // up to largeContent
	large    *lru.Cache[models.ID, *models.Batch]
	recent   *recentlyAccepted
	inflight *inflight
	outage   Outage

	background sync.WaitGroup  // unknown appends being resolved, and posts being marked
	hard       context.Context // cancelled by Stop
	kill       context.CancelFunc
}

// New returns a dispatcher. Connect must be called before it is used.
func New(cfg Config, deps Deps) *Dispatcher {
	d := &Dispatcher{
		cfg:       cfg,
		log:       cfg.Logger,
		priority:  cfg.Priority,
		store:     deps.Store,
		broker:    deps.Broker,
		standby:   deps.Standby,
		follower:  deps.Follower,
		policy:    deps.Policy,
		providers: deps.Providers,
		observer:  deps.Observer,
		batches:   NewMemo[models.ID, *models.Batch](512),
		large:     NewMemo[models.ID, *models.Batch](8),
		recent:    NewMemo[models.ID, acceptedChunk](recentBatches),
		inflight:  newInflight(),

		suppressions: deps.Suppressions,
	}
	d.hard, d.kill = context.WithCancel(context.Background())
	return d
}

// Connect sets the parts of the engine that are built upon the dispatcher.
func (d *Dispatcher) Connect(evidence Evidence, summaries SummaryMarks) {
	d.evidence, d.summaries = evidence, summaries
}

// CallContext returns the context of provider calls. Stop cancels it.
func (d *Dispatcher) CallContext() context.Context { return d.hard }

// GoBackground runs f so that Wait waits for it.
func (d *Dispatcher) GoBackground(f func()) { d.background.Go(f) }

// Stop cancels running calls.
func (d *Dispatcher) Stop() { d.kill() }

// Wait waits until all background work has ended.
func (d *Dispatcher) Wait() { d.background.Wait() }

// OutgoingOutage returns the state of publishing.
func (d *Dispatcher) OutgoingOutage() *Outage { return &d.outage }

// NewMemo returns a cache of the size most recently used values.
func NewMemo[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("consumers: " + err.Error()) // the size is a positive constant
	}
	return c
}
