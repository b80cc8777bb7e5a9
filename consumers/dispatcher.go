package consumers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// dispatchConfig has the times of the dispatcher.
type dispatchConfig struct {
	Worker      string        // this process's name in ledger entries
	StartBy     time.Duration // a call begins within this of the moment before its append, or never
	Recheck     time.Duration // how soon something unfinished is reconciled again
	LookUpPause time.Duration // how soon a provider is asked again
	KeepContent time.Duration // how long content and recipients are kept after acceptance
	Logger      *slog.Logger
}

// dispatchStore is the part of models.Store that the dispatcher needs.
type dispatchStore interface {
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error)
	Append(ctx context.Context, chunk models.ID, e models.Entry) error
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
	PutAddressIndex(ctx context.Context, user string, index models.AddressIndex) error
}

// publisher is the part of models.Broker that the dispatcher needs.
type publisher interface {
	Publish(ctx context.Context, ms ...models.Message) error
}

// evidenceSource says what is known of attempts whose outcome is not.
type evidenceSource interface {
	// Answered reports whether every provider that may have what a step is about was
	// asked late enough, or cannot be asked.
	Answered(c *chunk, st *policy.Step, now time.Time) bool
	// MayEndSoon reports whether a wait may end before its time.
	MayEndSoon(c *chunk, st *policy.Step, now time.Time) bool
}

// summaryMarks are the chunks whose summaries are to be renewed.
type summaryMarks interface {
	// Mark asks for a new summary of a chunk; then, if given, runs after it was stored.
	Mark(user string, chunk models.ID, then ...func())
	// MarkChunk asks for a new summary of a chunk that was just read.
	MarkChunk(c *chunk)
}

// callObserver is told of calls and endings.
type callObserver interface {
	// Called is told of a call that was made and its answer. first: no call was made for
	// its recipients before.
	Called(p *provider.Provider, c *chunk, call calledWith)
	// Ended is told of an ending or a cancellation.
	Ended(entry *models.Entry)
}

// calledWith is a call that was made.
type calledWith struct {
	Entry *models.Entry
	First bool // no call was made for its recipients before
	Took  time.Duration
	Parts []models.Part // its answer
}

// dispatchDeps are what a dispatcher needs. All are required.
type dispatchDeps struct {
	Store     dispatchStore
	Broker    publisher
	Follower  *control.Follower
	Policy    *policy.Policy
	Providers *provider.Set
	Observer  callObserver
}

// dispatcher brings chunks forward: it decides by the policy, calls providers, and
// passes on what is to be done elsewhere or later.
type dispatcher struct {
	cfg       dispatchConfig
	log       *slog.Logger
	store     dispatchStore
	broker    publisher
	follower  *control.Follower
	policy    *policy.Policy
	providers *provider.Set
	observer  callObserver
	evidence  evidenceSource
	summaries summaryMarks

	batches  *lru.Cache[models.ID, *models.Batch] // of ordinary size
	large    *lru.Cache[models.ID, *models.Batch]
	recent   *recentlyAccepted
	inflight *inflight
	outage   outage

	background sync.WaitGroup  // unknown appends being resolved, and posts being marked
	hard       context.Context //nolint:containedctx // ends when waiting for running calls is over
	kill       context.CancelFunc
}

// newDispatcher returns a dispatcher. Connect must be called before it is used.
func newDispatcher(cfg dispatchConfig, deps dispatchDeps) *dispatcher {
	d := &dispatcher{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		broker:    deps.Broker,
		follower:  deps.Follower,
		policy:    deps.Policy,
		providers: deps.Providers,
		observer:  deps.Observer,
		batches:   newMemo[models.ID, *models.Batch](512),
		large:     newMemo[models.ID, *models.Batch](8),
		recent:    newMemo[models.ID, []models.Recipient](recentBatches),
		inflight:  newInflight(),
	}
	d.hard, d.kill = context.WithCancel(context.Background())
	return d
}

// connect gives the dispatcher the rooms that are built upon it.
func (d *dispatcher) connect(evidence evidenceSource, summaries summaryMarks) {
	d.evidence, d.summaries = evidence, summaries
}

// callContext ends when waiting for running calls is over.
func (d *dispatcher) callContext() context.Context { return d.hard }

// goBackground runs f so that Wait waits for it.
func (d *dispatcher) goBackground(f func()) { d.background.Go(f) }

// stop ends all waiting for running calls.
func (d *dispatcher) stop() { d.kill() }

// wait waits until no append is being resolved and no outcome stored any more.
func (d *dispatcher) wait() { d.background.Wait() }

// outgoingOutage is the time in which messages cannot be published.
func (d *dispatcher) outgoingOutage() *outage { return &d.outage }

// newMemo returns a bounded memo of what was used lately.
func newMemo[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("consumers: " + err.Error()) // the size is a positive constant
	}
	return c
}
