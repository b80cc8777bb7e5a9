package storetest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/feed"
)

// Benchmark measures the calls that a mail needs. open returns a store on new, empty data and closes it in b.Cleanup.
// It is called for each benchmark.
func Benchmark(b *testing.B, open func(b *testing.B) models.Store) {
	for _, c := range []struct {
		name string
		run  func(b *testing.B, s models.Store)
	}{
		{"Accept1", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error {
				batch, ch := SampleBatch(1)
				return acceptOne(b.Context(), s, batch, ch)
			})
		}},
		{"PutBatch1", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error {
				batch, ch := SampleBatch(1)
				return s.PutBatch(b.Context(), batch, ch)
			})
		}},
		{"Accept1000", func(b *testing.B, s models.Store) {
			_, ch := SampleBatch(1000)
			inParallel(b, func(int) error {
				batch, _ := SampleBatch(0)
				return acceptOne(b.Context(), s, batch, models.Chunk{ID: batch.ID, Recipients: ch.Recipients})
			})
		}},
		{"Append", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error { return s.Append(b.Context(), models.NewBatchID(time.Now()), SampleEntry(1)) })
		}},
		{"PutFacts", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error {
				return s.PutFacts(b.Context(), models.ChunkFact{Chunk: models.NewBatchID(time.Now()), Fact: SampleFact(1)})
			})
		}},
		{"AppendPutFacts", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error { return attempted(b.Context(), s, models.NewBatchID(time.Now())) })
		}},
		{"Record", func(b *testing.B, s models.Store) {
			ids := make([]models.ID, 1000)
			for i := range ids {
				ids[i] = models.NewBatchID(time.Now())
			}
			allNil(b, together(len(ids), func(i int) error { return attempted(b.Context(), s, ids[i]) }))
			inParallel(b, func(i int) error {
				_, _, err := s.Record(b.Context(), ids[i%len(ids)])
				return err
			})
		}},
		{"Recipients1000", func(b *testing.B, s models.Store) {
			batch, ch := SampleBatch(1000)
			require.NoError(b, s.PutBatch(b.Context(), batch, ch))
			inParallel(b, func(int) error {
				_, err := s.Recipients(b.Context(), batch.ID)
				return err
			})
		}},
		{"Inbox", func(b *testing.B, s models.Store) {
			body := []byte(`[{"event":"delivered","email":"user@example.com","sg_event_id":"` + strings.Repeat("abcdef", 60) +
				`"}]`)
			inParallel(b, func(int) error {
				return s.PutInbox(b.Context(), models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg",
					Posts: []models.Post{{Body: body}}})
			})
		}},
		{"PutSummaries", func(b *testing.B, s models.Store) {
			inParallel(b, func(int) error {
				return s.PutSummaries(b.Context(),
					models.ChunkSummary{User: "0123456789abcdef", Chunk: models.NewBatchID(time.Now()), Summary: summary(3, 1, 0)})
			})
		}},
		{"FeedBulk", func(b *testing.B, s models.Store) { publish(b, s, 1000, 1) }},
		{"FeedOne", func(b *testing.B, s models.Store) { publish(b, s, 1, 1) }},
		{"FeedEvents", func(b *testing.B, s models.Store) { publish(b, s, 1000, 20) }},
	} {
		b.Run(c.name, func(b *testing.B) { c.run(b, open(b)) })
	}
}

// publish publishes the ends of 50,000 mails of one user, as in a second of much work. The chunks have a size, and some
// of their recipients end in each round.
func publish(b *testing.B, s models.Store, size, rounds int) {
	b.Helper()
	const changes = 50_000
	w, user := feed.NewWriter(s), models.NewUserID()
	for b.Loop() {
		b.StopTimer()
		ids, ended := make([]models.ID, changes/size), make([]models.Set, changes/size)
		for i := range ids {
			ids[i] = models.NewBatchID(time.Now())
		}
		for round := range rounds {
			chunks := make([]feed.Chunk, len(ids))
			for i, id := range ids {
				for r := 1 + round; r <= size; r += rounds {
					ended[i].Add(r)
				}
				e := models.Entry{Number: 1, Kind: models.Ending, Reason: models.Expired, Recipients: ended[i]}
				f := models.Fact{Key: models.VersionFloorKey(int64(round)), VersionFloor: int64(round)}
				chunks[i] = feed.Chunk{ID: id, View: models.Resolve(size, []models.Entry{e}, []models.Fact{f}).ForFeed()}
			}
			b.StartTimer()
			if err := w.Publish(b.Context(), user, chunks); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(changes)*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
	stored, entries := 0, 0
	for after := 0; ; entries++ {
		es, err := s.Feed(b.Context(), user, after, 1)
		require.NoError(b, err)
		if len(es) == 0 {
			break
		}
		after, stored = es[0].Number, stored+len(codec.EncodeFeedEntry(&es[0]))
	}
	b.ReportMetric(float64(stored)/float64(changes*b.N), "B/change")
	b.ReportMetric(float64(entries)/float64(b.N), "entries")
}

// inParallel runs f b.N times from 64 goroutines, like the requests on a busy machine.
func inParallel(b *testing.B, f func(i int) error) {
	b.Helper()
	b.ReportAllocs()
	b.SetParallelism(32) // times two cores
	var next atomic.Int64
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(int(next.Add(1) - 1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

// SampleBatch returns a typical batch of one chunk.
func SampleBatch(recipients int) (models.Batch, models.Chunk) {
	b := models.Batch{
		ID:        models.NewBatchID(time.Now()),
		User:      "0123456789abcdef",
		Lane:      models.Urgent,
		OnUnknown: models.Hold,
		Content: models.Content{
			From: models.Address{Email: "shop@example.com", Name: "Shop"}, Subject: "Your order {{n}}",
			Text: "Dear {{name}}, your order is on its way.",
		},
		Recipients: recipients,
		Chunks:     1,
		ExpiresAt:  time.Now().UTC().Add(72 * time.Hour),
	}
	ch := models.Chunk{ID: b.ID}
	for i := range recipients {
		ch.Recipients = append(ch.Recipients, models.Recipient{
			Email: fmt.Sprintf("user%d.%x@example.com", i, b.ID[9:12]), Name: fmt.Sprint("User ", i*7919%10007),
			Vars: map[string]string{"n": fmt.Sprint(i * 104729)},
		})
	}
	return b, ch
}

// acceptOne accepts a batch of one chunk as the contract requires.
func acceptOne(ctx context.Context, s models.Store, batch models.Batch, ch models.Chunk) error {
	err := s.Schedule(ctx, models.AgendaEntry{
		Due:    time.Now().Add(time.Minute),
		Kind:   models.LookAtBatch,
		ID:     batch.ID,
		User:   batch.User,
		Chunks: 1,
		Lane:   batch.Lane,
	})
	if err != nil {
		return err
	}
	return s.PutBatch(ctx, batch, ch)
}

// attempted stores an attempt for one recipient and its outcome.
func attempted(ctx context.Context, s models.Store, chunk models.ID) error {
	if err := s.Append(ctx, chunk, SampleEntry(1)); err != nil {
		return err
	}
	return s.PutFacts(ctx, models.ChunkFact{Chunk: chunk, Fact: SampleFact(1)})
}

// SampleEntry returns entry n of a ledger: an attempt for one recipient.
func SampleEntry(n int) models.Entry {
	now := time.Now().UTC()
	return models.Entry{
		Number:     n,
		Token:      models.NewToken(),
		Kind:       models.Attempt,
		At:         now,
		Recipients: models.SetOf(1),
		Provider:   "sg",
		Worker:     "worker-1",
		StartBy:    now.Add(time.Second),
		CallEnds:   now.Add(time.Minute),
	}
}

// SampleFact returns the outcome of attempt n: accepted.
func SampleFact(n int) models.Fact {
	return models.Fact{Key: models.OutcomeKey(n), Outcome: &models.Outcome{
		Attempt: n,
		At:      time.Now().UTC(),
		Took:    time.Second,
		Parts: []models.Part{{
			Class:      models.Accepted,
			Recipients: models.SetOf(1),
			Status:     202,
			MessageID:  "14c5d75ce93.dfd.64b469",
		}},
	}}
}
