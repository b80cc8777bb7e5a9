// Package dispatch brings chunks forward: it decides by the policy, calls providers, stores
// what came of it, and passes on what is to be done elsewhere or later.
package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// dispatchConfig has the times of the dispatcher.
type Config struct {
	Worker      string        // this process's name in ledger entries
	StartBy     time.Duration // a call begins within this of the moment before its append, or never
	Recheck     time.Duration // how soon something unfinished is reconciled again
	LookUpPause time.Duration // how soon a provider is asked again
	KeepContent time.Duration // how long content and recipients are kept after acceptance
	Priority    *priority.Scheduler
	Logger      *slog.Logger
}

// Store is the part of models.Store that the dispatcher needs.
type Store interface {
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
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

// Evidence says what is known of attempts whose outcome is not.
type Evidence interface {
	// Answered reports whether every provider that may have what a step is about was
	// asked late enough, or cannot be asked.
	Answered(c *Chunk, st *policy.Step, now time.Time) bool
	// MayEndSoon reports whether a wait may end before its time.
	MayEndSoon(c *Chunk, st *policy.Step, now time.Time) bool
}

// SummaryMarks are the chunks whose summaries are to be renewed.
type SummaryMarks interface {
	// Mark asks for a new summary of a chunk; then, if given, runs after it was stored.
	Mark(user string, chunk models.ID, then ...func())
	// MarkChunk asks for a new summary of a chunk that was just read.
	MarkChunk(c *Chunk)
}

// Observer is told of calls and endings.
type Observer interface {
	// Called is told of a call that was made and its answer. first: no call was made for
	// its recipients before.
	Called(p *provider.Provider, c *Chunk, call Call)
	// Ended is told of an ending or a cancellation.
	Ended(entry *models.Entry)
}

// calledWith is a call that was made.
type Call struct {
	Entry *models.Entry
	First bool // no call was made for its recipients before
	Took  time.Duration
	Parts []models.Part // its answer
}

// dispatchDeps are what a dispatcher needs. All are required.
type Deps struct {
	Store     Store
	Broker    Publisher
	Follower  *control.Follower
	Policy    *policy.Policy
	Providers *provider.Set
	Observer  Observer
}

// Dispatcher brings chunks forward: it decides by the policy, calls providers, and
// passes on what is to be done elsewhere or later.
type Dispatcher struct {
	cfg       Config
	log       *slog.Logger
	store     Store
	broker    Publisher
	follower  *control.Follower
	Policy    *policy.Policy
	priority  *priority.Scheduler
	providers *provider.Set
	observer  Observer
	evidence  Evidence
	summaries SummaryMarks

	batches  *lru.Cache[models.ID, *models.Batch] // of ordinary size
	large    *lru.Cache[models.ID, *models.Batch]
	recent   *recentlyAccepted
	Inflight *inflight
	Outage   Outage

	Background sync.WaitGroup  // unknown appends being resolved, and posts being marked
	hard       context.Context //nolint:containedctx // ends when waiting for running calls is over
	kill       context.CancelFunc
}

// newDispatcher returns a dispatcher. Connect must be called before it is used.
func New(cfg Config, deps Deps) *Dispatcher {
	d := &Dispatcher{
		cfg:       cfg,
		log:       cfg.Logger,
		priority:  cfg.Priority,
		store:     deps.Store,
		broker:    deps.Broker,
		follower:  deps.Follower,
		Policy:    deps.Policy,
		providers: deps.Providers,
		observer:  deps.Observer,
		batches:   NewMemo[models.ID, *models.Batch](512),
		large:     NewMemo[models.ID, *models.Batch](8),
		recent:    NewMemo[models.ID, []models.Recipient](recentBatches),
		Inflight:  NewInflight(),
	}
	d.hard, d.kill = context.WithCancel(context.Background())
	return d
}

// Connect gives the dispatcher the rooms that are built upon it.
func (d *Dispatcher) Connect(evidence Evidence, summaries SummaryMarks) {
	d.evidence, d.summaries = evidence, summaries
}

// CallContext ends when waiting for running calls is over.
func (d *Dispatcher) CallContext() context.Context { return d.hard }

// GoBackground runs f so that Wait waits for it.
func (d *Dispatcher) GoBackground(f func()) { d.Background.Go(f) }

// Stop ends all waiting for running calls.
func (d *Dispatcher) Stop() { d.kill() }

// Wait waits until no append is being resolved and no outcome stored any more.
func (d *Dispatcher) Wait() { d.Background.Wait() }

// OutgoingOutage is the time in which messages cannot be published.
func (d *Dispatcher) OutgoingOutage() *Outage { return &d.Outage }

// NewMemo returns a bounded memo of what was used lately.
func NewMemo[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("consumers: " + err.Error()) // the size is a positive constant
	}
	return c
}
