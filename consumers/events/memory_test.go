package events

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// marks holds the marks of summaries that are not stored yet.
type marks struct {
	Summaries
	marked map[models.ID][]func()
}

func (m *marks) Mark(_ string, chunk models.ID, then ...func()) {
	m.marked[chunk] = append(m.marked[chunk], then...)
}

// flush acts as if all marked summaries were stored.
func (m *marks) flush() {
	for _, then := range m.marked {
		for _, f := range then {
			f()
		}
	}
	clear(m.marked)
}

// noObserver is an observer that does nothing.
type noObserver struct{}

func (noObserver) EventTaken(*models.Event, *models.Entry, time.Time) {}

func (noObserver) EventRefused(string, string) {}

// TestMarkedChunkHoldsNoEvents: the events of a chunk do not stay in memory until its
// summary is stored, which takes seconds. Its posts are marked as processed after that.
func TestMarkedChunkHoldsNoEvents(t *testing.T) { // not parallel: it measures memory
	const size, posts = 1000, 40
	store, summaries := memory.Open(t), &marks{marked: map[models.ID][]func(){}}
	q := newProcessor(t, store, jsonAdapter{}, summaries)
	ctx, now := context.Background(), time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       models.NewUserID(),
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
		Recipients: size,
		Chunks:     1,
		ExpiresAt:  now.Add(time.Hour),
	}
	require.NoError(t, store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: make([]models.Recipient, size)}))
	require.NoError(t, store.Append(ctx, b.ID, models.Entry{
		Number:     1,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		Provider:   "sg",
		Recipients: models.SetTo(size),
		At:         now,
	}))
	var ids []models.ID
	for p := range posts {
		events := make([]models.ParsedEvent, size)
		for i := range events {
			events[i] = models.ParsedEvent{Log: b.ID.Log(i + 1), Event: models.Event{
				ID:      fmt.Sprint(p, "-", i),
				Attempt: 1,
				Kind:    models.Deferred,
				At:      now,
				Text:    strings.Repeat("x", 200),
			}}
		}
		body, err := json.Marshal(events)
		require.NoError(t, err)
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: body}}}
		require.NoError(t, store.PutInbox(ctx, in))
		ids = append(ids, in.ID)
	}
	before := inUse()
	for rest := ids; len(rest) > 0; {
		n, err := q.process(ctx, rest)
		require.NoError(t, err)
		rest = rest[n:]
	}
	require.Len(t, summaries.marked, 1, "the chunk is marked, its summary is not stored")
	taken, _, _, _ := q.Counts()
	require.EqualValues(t, size*posts, taken)
	require.Less(t, inUse()-before, int64(4<<20), "%d events take 16 MB", size*posts)
	summaries.flush()
	q.finished.work.Wait()
	for shard := range store.Shards() {
		for in, err := range store.Pending(ctx, shard, now.Add(-time.Hour), now.Add(time.Hour)) {
			require.NoError(t, err)
			t.Errorf("post %s is not marked as processed", in.ID)
		}
	}
}

// inUse returns the size of the heap in bytes.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // objects with finalizers, and those in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below 2^63
}
