package storetest

import (
	"context"
	"iter"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// call is one method with arguments that a new store accepts.
type call struct {
	name string
	do   func(ctx context.Context, s models.Store) error
}

// cursor returns the error of a cursor.
func cursor[T any](seq iter.Seq2[T, error]) error {
	_, err := drain(seq)
	return err
}

// calls returns every method that can fail.
func calls() []call {
	b := newBatch(models.NewUserID(), now(), 2)
	u := newUser("calls")
	k, _ := models.NewKey(u.ID, "k", now())
	span := models.SpanOf(u.ID, models.Second, now())
	p := post(now(), "x")
	return []call{
		{"CreateUser", func(ctx context.Context, s models.Store) error { return s.CreateUser(ctx, u) }},
		{"UserByName", func(ctx context.Context, s models.Store) error { _, err := s.UserByName(ctx, u.Name); return err }},
		{"User", func(ctx context.Context, s models.Store) error { _, err := s.User(ctx, u.ID); return err }},
		{"Users", func(ctx context.Context, s models.Store) error { _, err := s.Users(ctx); return err }},
		{"CreateKey", func(ctx context.Context, s models.Store) error { return s.CreateKey(ctx, k) }},
		{"KeyByHash", func(ctx context.Context, s models.Store) error { _, err := s.KeyByHash(ctx, k.Hash); return err }},
		{"Keys", func(ctx context.Context, s models.Store) error { _, err := s.Keys(ctx, u.ID); return err }},
		{"RevokeKey", func(ctx context.Context, s models.Store) error { return s.RevokeKey(ctx, u.ID, k.ID, now()) }},
		{"PutChunk", func(ctx context.Context, s models.Store) error { return s.PutChunk(ctx, chunkOf(b, 1)) }},
		{"PutBatch", func(ctx context.Context, s models.Store) error { return s.PutBatch(ctx, b, chunkOf(b, 0)) }},
		{"Batch", func(ctx context.Context, s models.Store) error { _, err := s.Batch(ctx, b.ID); return err }},
		{"Batches", func(ctx context.Context, s models.Store) error {
			_, err := s.Batches(ctx, b.User, models.ID{}, 5)
			return err
		}},
		{"BatchIDsAfter", func(ctx context.Context, s models.Store) error {
			_, err := s.BatchIDsAfter(ctx, b.User, models.ID{}, 5)
			return err
		}},
		{"SecondSummaries", func(ctx context.Context, s models.Store) error {
			return cursor(s.SecondSummaries(ctx, b.User, now()))
		}},
		{"Recipients", func(ctx context.Context, s models.Store) error { _, err := s.Recipients(ctx, b.ID); return err }},
		{"AbandonBatch", func(ctx context.Context, s models.Store) error {
			_, err := s.AbandonBatch(ctx, b.ID, 2)
			return err
		}},
		{"Append", func(ctx context.Context, s models.Store) error { return s.Append(ctx, b.ID, attempt(1, "sg")) }},
		{"PutFacts", func(ctx context.Context, s models.Store) error {
			return s.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: outcome(1)})
		}},
		{"Record", func(ctx context.Context, s models.Store) error { _, _, err := s.Record(ctx, b.ID); return err }},
		{"Calls", func(ctx context.Context, s models.Store) error { _, _, err := s.Calls(ctx, b.ID); return err }},
		{"Ledger", func(ctx context.Context, s models.Store) error { _, err := s.Ledger(ctx, b.ID); return err }},
		{"PutSummaries", func(ctx context.Context, s models.Store) error {
			return s.PutSummaries(ctx, models.ChunkSummary{User: b.User, Chunk: b.ID, Summary: summary(1, 1, 0)})
		}},
		{"Summaries", func(ctx context.Context, s models.Store) error { return cursor(s.Summaries(ctx, b.User, b.ID, 0)) }},
		{"RollUp", func(ctx context.Context, s models.Store) error { err := s.RollUp(ctx, span); return err }},
		{"Nodes", func(ctx context.Context, s models.Store) error {
			_, err := s.Nodes(ctx, u.ID, models.Second, now().Add(-time.Hour), now())
			return err
		}},
		{"Schedule", func(ctx context.Context, s models.Store) error {
			return s.Schedule(ctx, models.AgendaEntry{
				Due:    now(),
				Kind:   models.LookAtBatch,
				ID:     b.ID,
				User:   b.User,
				Chunks: 2,
			})
		}},
		{"Agenda", func(ctx context.Context, s models.Store) error {
			return cursor(s.Agenda(ctx, 0, now().Add(-time.Minute), now()))
		}},
		{"AgendaMark", func(ctx context.Context, s models.Store) error { _, err := s.AgendaMark(ctx, 0); return err }},
		{"SetAgendaMark", func(ctx context.Context, s models.Store) error {
			return s.SetAgendaMark(ctx, 0, now().Add(-9*time.Hour))
		}},
		{"PutDue", func(ctx context.Context, s models.Store) error {
			return s.PutDue(ctx, u.ID, models.Due{At: now(), Batch: b.ID})
		}},
		{"Dues", func(ctx context.Context, s models.Store) error {
			_, err := s.Dues(ctx, u.ID, models.ID{}, false, 1)
			return err
		}},
		{"RemoveDue", func(ctx context.Context, s models.Store) error { return s.RemoveDue(ctx, u.ID, b.ID) }},
		{"DropDues", func(ctx context.Context, s models.Store) error { return s.DropDues(ctx, u.ID, now()) }},
		{"PutInbox", func(ctx context.Context, s models.Store) error { return s.PutInbox(ctx, p) }},
		{"Inbox", func(ctx context.Context, s models.Store) error { _, err := s.Inbox(ctx, p.ID); return err }},
		{"InboxDone", func(ctx context.Context, s models.Store) error { return s.InboxDone(ctx, p.ID) }},
		{"Pending", func(ctx context.Context, s models.Store) error {
			return cursor(s.Pending(ctx, 0, now().Add(-time.Minute), now()))
		}},
		{"GuardReplays", func(ctx context.Context, s models.Store) error {
			_, err := s.GuardReplays(ctx, models.ReplayMark{
				Group:  "g",
				Key:    p.Posts[0].Replay,
				Digest: "d",
				Entry:  p.ID,
			})
			return err
		}},
		{"PutTransient", func(ctx context.Context, s models.Store) error {
			return s.PutTransient(ctx, "k", "n", []byte("v"), time.Minute)
		}},
		{"Lease", func(ctx context.Context, s models.Store) error {
			_, err := s.Lease(ctx, p.Posts[0].Replay, "h", time.Second)
			return err
		}},
		{"Transients", func(ctx context.Context, s models.Store) error {
			_, err := s.Transients(ctx, "k")
			return err
		}},
		{"PutDocument", func(ctx context.Context, s models.Store) error {
			return s.PutDocument(ctx, u.ID, "call", models.Document{Key: "k", Version: 1})
		}},
		{"Document", func(ctx context.Context, s models.Store) error {
			_, err := s.Document(ctx, u.ID, "call", "k")
			return err
		}},
		{"Documents", func(ctx context.Context, s models.Store) error {
			_, err := s.Documents(ctx, u.ID, "call", "", 1)
			return err
		}},
		{"DeleteDocument", func(ctx context.Context, s models.Store) error {
			return s.DeleteDocument(ctx, u.ID, "call", "k")
		}},
		{"PutDocuments", func(ctx context.Context, s models.Store) error {
			_, err := s.PutDocuments(ctx, u.ID, "call", []models.Document{{Key: "m", Version: 1}})
			return err
		}},
		{"DocumentsOf", func(ctx context.Context, s models.Store) error {
			_, err := s.DocumentsOf(ctx, u.ID, "call", []string{"m"})
			return err
		}},
		{"RemoveDocuments", func(ctx context.Context, s models.Store) error {
			return s.RemoveDocuments(ctx, u.ID, "call", []models.Document{{Key: "m", Version: 1}})
		}},
		{"AppendFeed", func(ctx context.Context, s models.Store) error {
			return s.AppendFeed(ctx, u.ID, feedEntry(1, b.ID))
		}},
		{"Feed", func(ctx context.Context, s models.Store) error { _, err := s.Feed(ctx, u.ID, 0, 1); return err }},
		{"FeedHead", func(ctx context.Context, s models.Store) error { _, err := s.FeedHead(ctx, u.ID); return err }},
		{"DropFeed", func(ctx context.Context, s models.Store) error { return s.DropFeed(ctx, u.ID, 1) }},
		{"PutPublished", func(ctx context.Context, s models.Store) error {
			return s.PutPublished(ctx, models.Published{Chunk: b.ID, Entry: 1})
		}},
		{"Published", func(ctx context.Context, s models.Store) error { _, err := s.Published(ctx, b.ID); return err }},
		{"Ping", func(ctx context.Context, s models.Store) error { return s.Ping(ctx) }},
	}
}
