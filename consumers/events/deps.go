// Package events turns the webhook posts in the inbox into facts about chunks.
package events

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
)

// Config configures a Processor, a Sweeper or a SoftDecider.
type Config = dispatch.Config

// Store is the part of models.Store that a Processor needs.
type Store interface {
	models.DocumentStore
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
	SuppressionsOf(ctx context.Context, list string, hashes ...models.AddressHash) ([]models.Suppression, error)
	Inbox(ctx context.Context, ids ...models.ID) ([]models.Inbox, error)
	InboxDone(ctx context.Context, ids ...models.ID) error
	Pending(ctx context.Context, shard int, from, to time.Time) iter.Seq2[models.Inbox, error]
	Posts(ctx context.Context, from, to time.Time) iter.Seq2[models.Inbox, error]
	GuardReplays(ctx context.Context, ws ...models.ReplayMark) (firsts []string, err error)
	Ledger(ctx context.Context, chunk models.ID) ([]models.Entry, error)
	Record(ctx context.Context, chunk models.ID) ([]models.Entry, []models.Fact, error)
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	Users(ctx context.Context) ([]models.User, error)
	AddressIndexHours(ctx context.Context, user string, before time.Time, limit int) ([]time.Time, error)
	AddressIndexes(ctx context.Context, user string, t time.Time, before models.ID) iter.Seq2[models.AddressIndex, error]
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	PutFacts(ctx context.Context, facts ...models.ChunkFact) error
}

// Depths is the part of models.Broker that a Processor needs.
type Depths interface {
	Depths(ctx context.Context) ([]models.Depth, error)
}

// Requeuer puts chunks that are unfinished on the agenda.
type Requeuer interface {
	Requeue(ctx context.Context, entry models.AgendaEntry, found dispatch.Result) error
}

// Summaries renews the summaries of marked chunks.
type Summaries interface {
	dispatch.SummaryMarks
	Flush(ctx context.Context) error
	Pending() int
}

// Observer is notified of events and posts.
type Observer interface {
	// EventTaken is called once for each event of an attempt, and not for its repeats.
	// accepted is when the batch was accepted.
	EventTaken(ev *models.Event, of *models.Entry, accepted time.Time)
	// EventRefused is called for each event or post that is refused or skipped.
	EventRefused(provider, why string)
}

// counts holds the numbers of events since the start.
type counts struct {
	taken, forged, replayed, skipped, unmatched atomic.Int64
}
