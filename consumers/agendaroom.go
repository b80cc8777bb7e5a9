package consumers

import (
	"context"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// agendaConfig has the times of the agenda.
type agendaConfig struct {
	Worker      string
	Recheck     time.Duration // how soon something unfinished is reconciled again
	IntakeGrace time.Duration // after which an incomplete batch is cleared away
	Poll        time.Duration // how often the agenda is read
	Lease       time.Duration // how long a shard stays with a worker that is silent
	InboxAge    time.Duration // after which a post that was not processed is announced again
	Logger      *slog.Logger
}

// agendaStore is the part of models.Store that the agenda needs.
type agendaStore interface {
	Schedule(ctx context.Context, es ...models.AgendaEntry) error
	Agenda(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.AgendaEntry, error]
	AgendaMark(ctx context.Context, shard int) (time.Time, error)
	SetAgendaMark(ctx context.Context, shard int, t time.Time) error
	Shards() int
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	AbandonBatch(ctx context.Context, batch models.ID, chunks int) (bool, error)
	Summaries(ctx context.Context, user string, batch models.ID, from int) iter.Seq2[models.ChunkSummary, error]
}

// agendaBroker is the part of models.Broker that the agenda needs.
type agendaBroker interface {
	Ping(ctx context.Context) error
	Depths(ctx context.Context) ([]models.Depth, error)
}

// membership is what the agenda asks about the other workers.
type membership interface {
	Share() (provider.Share, bool)
	NoteGone(now time.Time)
	GoneSince() time.Time
}

// inboxSweeper announces posts again that were not processed in time. It returns from
// when on posts of the shard may be unprocessed, and when the oldest of them came; zero:
// there is none.
type inboxSweeper interface {
	Sweep(ctx context.Context, shard int, from, now time.Time) (next, oldest time.Time, err error)
}

// agendaDeps are what an agenda needs. All are required.
type agendaDeps struct {
	Store     agendaStore
	Broker    agendaBroker
	Follower  *control.Follower
	Providers *provider.Set
	Members   membership
	Dispatch  *dispatcher
	Inbox     inboxSweeper
	Summaries summaryMarks
	Ages      *queueAges
}

// agenda finds everything unfinished again.
type agenda struct {
	cfg       agendaConfig
	log       *slog.Logger
	store     agendaStore
	broker    agendaBroker
	follower  *control.Follower
	providers *provider.Set
	members   membership
	dispatch  *dispatcher
	inbox     inboxSweeper
	summaries summaryMarks
	ages      *queueAges

	shards      []*shard
	urgentFirst barrier      // shut while urgent mail that was missed is being announced
	cleared     atomic.Int64 // incomplete batches cleared away
}

// newAgenda returns an agenda that holds no shard yet.
func newAgenda(cfg agendaConfig, deps agendaDeps) *agenda {
	a := &agenda{
		cfg:       cfg,
		log:       cfg.Logger,
		store:     deps.Store,
		broker:    deps.Broker,
		follower:  deps.Follower,
		providers: deps.Providers,
		members:   deps.Members,
		dispatch:  deps.Dispatch,
		inbox:     deps.Inbox,
		summaries: deps.Summaries,
		ages:      deps.Ages,
		shards:    make([]*shard, deps.Store.Shards()),
	}
	for i := range a.shards {
		a.shards[i] = &shard{n: i}
	}
	return a
}

// probe obeys the newest commands to probe providers.
func (a *agenda) probe() { a.providers.Probe(a.follower.Rules().Probe) }

// Lags returns how far the inbox and the agenda are behind in the shards of this worker.
func (a *agenda) Lags(now time.Time) (inbox, agenda time.Duration) {
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
