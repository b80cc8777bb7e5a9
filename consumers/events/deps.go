// Package events turns the webhook posts in the inbox into facts about chunks.
package events

import (
	"context"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Config configures the processing of events.
type Config struct {
	InboxAge time.Duration // after which a post that was not processed is announced again
	Sole     bool          // no other process works on the store
	Priority *priority.Scheduler
	Logger   *slog.Logger
}

// Store is the part of models.Store that the processing of events needs.
type Store interface {
	Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error)
	InboxDone(ctx context.Context, ids ...models.ID) error
	Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error]
	Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error]
	GuardReplays(ctx context.Context, ws ...models.ReplayMark) (firsts []string, err error)
	Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error)
	Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error)
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
}

// Depths is the part of models.Broker that the processing of events needs.
type Depths interface {
	Depths(ctx context.Context) ([]models.Depth, error)
}

// Requeuer puts on the agenda what is still open about a chunk.
type Requeuer interface {
	Requeue(ctx context.Context, entry models.AgendaEntry, found dispatch.Result) error
}

// Summaries renews the summaries of chunks that are marked.
type Summaries interface {
	dispatch.SummaryMarks
	Flush(ctx context.Context) error
	Pending() int
}

// Observer is told of events and posts.
type Observer interface {
	// EventTaken is told of an event of an attempt, once for all its repeats. accepted is
	// when the batch was.
	EventTaken(ev *models.Event, of *models.Entry, accepted time.Time)
	// EventRefused is told of events and posts that are not taken, and why.
	EventRefused(provider, why string)
}

// counts of events since the start.
type counts struct {
	eventsTaken, eventsForged, eventsReplayed, eventsSkipped atomic.Int64
}
