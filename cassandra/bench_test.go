package cassandra

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/stretchr/testify/require"
)

// inParallel runs f b.N times from 64 goroutines, as many as requests come in
// at the same time on a busy machine.
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

func benchBatch(recipients int) (models.Batch, models.Chunk) {
	b := models.Batch{
		ID: models.NewBatchID(time.Now()), User: "0123456789abcdef", Lane: models.Urgent, OnUnknown: models.Hold,
		Content: models.Content{
			From: models.Address{Email: "shop@example.com", Name: "Shop"}, Subject: "Your order {{n}}",
			Text: "Dear {{name}}, your order is on its way.",
		},
		Recipients: recipients, Chunks: 1, Deadline: time.Now().UTC().Add(72 * time.Hour),
	}
	ch := models.Chunk{ID: b.ID}
	for i := range recipients {
		ch.Recipients = append(ch.Recipients, models.Recipient{
			Email: fmt.Sprintf("user%d.%x@example.com", i, b.ID[9:12]), Name: fmt.Sprint("User ", i*7919%10007), Vars: map[string]string{"n": fmt.Sprint(i * 104729)},
		})
	}
	return b, ch
}

// acceptBatch is what the contract asks of who accepts a batch of one chunk.
func acceptBatch(ctx context.Context, s *Store, batch models.Batch, ch models.Chunk) error {
	err := s.Schedule(ctx, models.AgendaEntry{Due: time.Now().Add(time.Minute), Kind: models.LookAtBatch, ID: batch.ID, User: batch.User, Chunks: 1})
	if err != nil {
		return err
	}
	return s.PutBatch(ctx, batch, ch)
}

func benchStore(b *testing.B) *Store {
	b.Helper()
	return open(b, newConfig(b))
}

func BenchmarkAccept1(b *testing.B) {
	s := benchStore(b)
	inParallel(b, func(int) error {
		batch, ch := benchBatch(1)
		return acceptBatch(b.Context(), s, batch, ch)
	})
}

func BenchmarkAccept1000(b *testing.B) {
	s := benchStore(b)
	_, ch := benchBatch(1000)
	inParallel(b, func(int) error {
		batch, _ := benchBatch(0)
		return acceptBatch(b.Context(), s, batch, models.Chunk{ID: batch.ID, Recipients: ch.Recipients})
	})
}

func benchEntry(n int) models.Entry {
	now := time.Now().UTC()
	return models.Entry{
		Number: n, Token: models.NewToken(), Kind: models.Attempt, At: now, Recipients: models.SetOf(1),
		Account: "sg", Worker: "worker-1", StartBy: now.Add(time.Second), CallEnds: now.Add(time.Minute),
	}
}

func benchFact(n int) models.Fact {
	return models.Fact{Key: models.OutcomeKey(n), Outcome: &models.Outcome{
		Attempt: n, At: time.Now().UTC(), Took: time.Second,
		Parts: []models.Part{{Class: models.Accepted, Recipients: models.SetOf(1), Status: 202, MessageID: "14c5d75ce93.dfd.64b469"}},
	}}
}

func BenchmarkAppend(b *testing.B) {
	s := benchStore(b)
	inParallel(b, func(int) error { return s.Append(b.Context(), models.NewBatchID(time.Now()), benchEntry(1)) })
}

func BenchmarkPutFacts(b *testing.B) {
	s := benchStore(b)
	inParallel(b, func(int) error {
		return s.PutFacts(b.Context(), models.ChunkFact{Chunk: models.NewBatchID(time.Now()), Fact: benchFact(1)})
	})
}

func BenchmarkRecord(b *testing.B) {
	s := benchStore(b)
	ids := make([]models.ID, 1000)
	require.NoError(b, each(b.Context(), len(ids), func(ctx context.Context, i int) error {
		ids[i] = models.NewBatchID(time.Now())
		if err := s.Append(ctx, ids[i], benchEntry(1)); err != nil {
			return err
		}
		return s.PutFacts(ctx, models.ChunkFact{Chunk: ids[i], Fact: benchFact(1)})
	}))
	inParallel(b, func(i int) error {
		_, _, err := s.Record(b.Context(), ids[i%len(ids)])
		return err
	})
}

func BenchmarkInbox(b *testing.B) {
	s := benchStore(b)
	body := []byte(`[{"event":"delivered","email":"user@example.com","sg_event_id":"` + strings.Repeat("abcdef", 60) + `"}]`)
	inParallel(b, func(int) error {
		return s.PutInbox(b.Context(), models.Inbox{ID: models.NewInboxID(time.Now()), Account: "sg", Body: body})
	})
}
