// Package agenda finds all unfinished work: unannounced batches, messages that the broker lost, attempts of dead
// workers, expired evidence windows and deadlines, and unprocessed posts.
package agenda

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Config configures an Agenda.
type Config = dispatch.Config

// Store is the part of models.Store that the agenda needs.
type Store interface {
	Schedule(ctx context.Context, es ...models.AgendaEntry) error
	Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error]
	AgendaMark(ctx context.Context, shard int) (time.Time, error)
	SetAgendaMark(ctx context.Context, shard int, t time.Time) error
	Shards() int
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	AbandonBatch(ctx context.Context, batch models.ID, chunks int) (bool, error)
	Summaries(ctx context.Context, user string, batch models.ID, from int) iter.Seq2[models.ChunkSummary, error]
}

// Broker is the part of models.Broker that the agenda needs.
type Broker interface {
	Ping(ctx context.Context) error
	Depths(ctx context.Context) ([]models.Depth, error)
}

// Members says what the agenda needs to know of the cluster.
type Members interface {
	Share() (provider.Share, bool)
	NoteGone(now time.Time)
	GoneSince() time.Time
}

// InboxSweeper announces posts again that were not processed in time. It returns from
// which time on posts of the shard may be unprocessed, and when the oldest of them
// arrived; zero: there is none.
type InboxSweeper interface {
	Sweep(ctx context.Context, shard int, from, now time.Time) (next, oldest time.Time, err error)
}

// Deps holds the dependencies of an Agenda. All are required.
type Deps struct {
	Store     Store
	Broker    Broker
	Follower  *control.Follower
	Providers *provider.Set
	Members   Members
	Chunks    *dispatch.Chunks
	Outbox    *dispatch.Outbox
	Dispatch  *dispatch.Dispatcher
	Inbox     InboxSweeper
	Summaries dispatch.SummaryMarks
	Ages      *QueueAges
}

// Agenda finds all unfinished work and has it done.
type Agenda struct {
	Deps
	cfg Config
	log *slog.Logger

	shards      []*shard
	ended       ended
	urgentFirst barrier // shut while missed urgent mail is being published
}

// New returns an agenda that holds no shard yet.
func New(cfg Config, deps Deps) *Agenda {
	a := &Agenda{
		Deps:   deps,
		cfg:    cfg,
		log:    cfg.Logger,
		shards: make([]*shard, deps.Store.Shards()),
	}
	for i := range a.shards {
		a.shards[i] = &shard{n: i}
	}
	deps.Ages.outage = &deps.Outbox.Outage
	return a
}

// probe carries out the newest commands to probe providers.
func (a *Agenda) probe() { a.Providers.Probe(a.Follower.Rules().Probe) }

// Lags returns how far the inbox and the agenda are behind in the shards of this worker.
func (a *Agenda) Lags(now time.Time) (inbox, agenda time.Duration) {
	for _, s := range a.shards {
		if !s.held.Load() {
			continue
		}
		if at := s.oldestPost.Load(); at > 0 {
			inbox = max(inbox, now.Sub(time.UnixMilli(at)))
		}
		if at := s.readTo.Load(); at > 0 {
			agenda = max(agenda, now.Sub(time.UnixMilli(at)))
		}
	}
	return inbox, agenda
}
