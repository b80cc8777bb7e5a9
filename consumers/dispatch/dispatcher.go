// Package dispatch handles messages about chunks. It plans by the policy, calls
// providers, stores the outcomes, and requeues steps for other handlers or for later.
package dispatch

import (
	"context"
	"log/slog"
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

// Config configures the rooms that handle chunks: this one, and those that read chunks by it.
type Config struct {
	Worker string // this process's name in ledger entries
	settings.Times
	settings.Limits
	settings.Pace
	Sole     bool // no other process uses the store
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

// Deps holds the dependencies of a Dispatcher. All are required.
type Deps struct {
	Store        Store
	Chunks       *Chunks
	Outbox       *Outbox
	Work         *Work
	Follower     *control.Follower
	Suppressions *suppression.Lists
	Policy       *policy.Policy
	Providers    *provider.Set
	Observer     Observer
	Evidence     Evidence
	Summaries    SummaryMarks
}

// Dispatcher handles messages about chunks. Its methods may be called concurrently.
type Dispatcher struct {
	Deps
	cfg      Config
	inflight *inflight
	commands *commands
	planner  *planner
	router   *router
	caller   *caller
}

// New returns a dispatcher.
func New(cfg Config, deps Deps) *Dispatcher {
	in, rules := deps.Chunks, &commands{deps.Follower, deps.Providers, deps.Store}
	route := &router{in, deps.Outbox, deps.Providers, cfg.Recheck}
	plan := &planner{cfg, deps.Follower, in, rules, deps.Policy, deps.Evidence, deps.Observer}
	call := &caller{deps, cfg, rules, &unwanted{in, deps.Suppressions, deps.Observer}, route}
	return &Dispatcher{deps, cfg, newInflight(), rules, plan, route, call}
}

// NewMemo returns a cache of the size most recently used values.
func NewMemo[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("consumers: " + err.Error()) // the size is a positive constant
	}
	return c
}
