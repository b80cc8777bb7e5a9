package storetest

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

func eraseCases() []testCase {
	return []testCase{
		{"Erase/Chunk", testErase},
		{"Erase/Together", testEraseTogether},
		{"Erase/Rejections", testEraseRejections},
		{"Erase/Inbox", testEraseInbox},
	}
}

// testErase erases an address from a batch. The others of the batch stay.
func testErase(t *testing.T, s models.Store) {
	ctx := t.Context()
	for _, chunks := range []int{1, 3} {
		b := newBatch(newUser("erase").ID, now(), chunks)
		accept(t, s, b)
		id := b.ID.Chunk(chunks - 1)
		address := chunkOf(b, chunks-1).Recipients[0].Email
		text := "550 <" + address + "> is unknown"
		e, f := attempt(1, "sg"), outcome(1)
		e.Because = text
		f.Outcome.Parts[0].Text = text
		f.Events = []models.Event{
			{ID: "1", Recipient: 1, Attempt: 1, Provider: "sg", Kind: models.Bounced, At: now(), Text: text},
		}
		require.NoError(t, s.Append(ctx, id, e))
		require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}))

		first, err := s.Erase(ctx, id, "A"+address[1:])
		require.NoError(t, err)
		require.Equal(t, models.SetOf(1), first)
		again, err := s.Erase(ctx, id, address)
		require.NoError(t, err)
		require.True(t, again.Empty())
		check := func() {
			t.Helper()
			want := chunkOf(b, chunks-1).Recipients
			want[0] = models.Recipient{}
			rs, err := s.Recipients(ctx, id)
			require.NoError(t, err)
			require.Equal(t, want, rs)
			es, fs, err := s.Record(ctx, id)
			require.NoError(t, err)
			text := "550 <" + models.ErasedAddress + "> is unknown"
			require.Equal(t, text, es[0].Because)
			require.Equal(t, e.Token, es[0].Token)
			require.Equal(t, text, fs[0].Outcome.Parts[0].Text)
			require.Equal(t, text, fs[0].Events[0].Text)
		}
		check()
		require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: f}), "a repeat that comes late")
		if chunks > 1 {
			require.NoError(t, s.PutChunk(ctx, chunkOf(b, chunks-1)))
		}
		require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)))
		check()
		require.NoError(t, s.Append(ctx, id, attempt(2, "mg")), "the ledger goes on")

		require.NoError(t, s.Redact(ctx, b.ID))
		none, err := s.Erase(ctx, id, address)
		require.NoError(t, err)
		require.True(t, none.Empty())
		_, err = s.Recipients(ctx, id)
		require.ErrorIs(t, err, models.ErrNotFound)
	}
	none, err := s.Erase(ctx, models.NewBatchID(now()), "a@example.com")
	require.NoError(t, err)
	require.True(t, none.Empty())
}

// testEraseRejections erases addresses from the list of recipients that were left out of a batch, several at the same
// time. The attachments stay, and what is removed with the batch does not come back.
func testEraseRejections(t *testing.T, s models.Store) {
	ctx := t.Context()
	b := newBatch(newUser("erase").ID, now(), 2)
	data, about := newAttachment(models.PieceSize + 1)
	attach(t, s, b.ID, data, about.SHA256)
	const pieces, perPiece = 3, 5
	detail := func(i int) string { return fmt.Sprintf(`"u%d@example.com, x" is not an email address`, i) }
	put := func() {
		t.Helper()
		for n := range pieces {
			var rs []models.Rejection
			for i := range perPiece {
				rs = append(rs, models.Rejection{
					Index:   n*perPiece + i,
					Pointer: "/to/1",
					Code:    "invalid_address",
					Detail:  detail(i),
				})
			}
			raw, err := json.Marshal(rs)
			require.NoError(t, err)
			require.NoError(t, s.PutPiece(ctx, b.ID, models.RejectedPieces, n, raw))
		}
	}
	put()
	accept(t, s, b)
	var g errgroup.Group
	for i := range perPiece - 1 {
		g.Go(func() error {
			erased, err := s.Erase(ctx, b.ID, fmt.Sprintf("U%d@example.com", i))
			if err == nil && !erased.Empty() {
				err = fmt.Errorf("erased the recipients %v", erased)
			}
			return err
		})
	}
	require.NoError(t, g.Wait())
	check := func() {
		t.Helper()
		for n := range pieces {
			rs, err := models.Rejections(ctx, s, b.ID, n)
			require.NoError(t, err)
			require.Len(t, rs, perPiece)
			for i := range rs {
				want := `"` + models.ErasedAddress + `, x" is not an email address`
				if i == perPiece-1 {
					want = detail(i)
				}
				require.Equal(t, want, rs[i].Detail)
			}
		}
	}
	check()
	put() // a repeat that comes late
	check()
	_, err := io.ReadAll(models.OpenAttachment(ctx, s, b.ID, &about))
	require.NoError(t, err)
	require.NoError(t, s.Redact(ctx, b.ID))
	_, err = s.Erase(ctx, b.ID, "u4@example.com")
	require.NoError(t, err)
	put()
	for n := range pieces {
		_, err := models.Rejections(ctx, s, b.ID, n)
		require.ErrorIs(t, err, models.ErrNotFound)
	}
}

// testEraseTogether erases all addresses of a chunk at the same time.
func testEraseTogether(t *testing.T, s models.Store) {
	b := newBatch(newUser("erase").ID, now(), 1)
	accept(t, s, b)
	to := chunkOf(b, 0).Recipients
	allNil(t, together(len(to), func(i int) error {
		erased, err := s.Erase(t.Context(), b.ID, to[i].Email)
		if err == nil && !erased.Has(i+1) {
			err = fmt.Errorf("erased %v", erased)
		}
		return err
	}))
	rs, err := s.Recipients(t.Context(), b.ID)
	require.NoError(t, err)
	require.Equal(t, make([]models.Recipient, len(to)), rs)
}

// testEraseInbox erases an address from one post of an entry.
func testEraseInbox(t *testing.T, s models.Store) {
	ctx := t.Context()
	in := models.Inbox{ID: models.NewInboxID(now()), Provider: "mg", Posts: []models.Post{
		{Body: []byte(`[{"email":"Ann@x.test"},{"email":"joann@x.test"}]`), Replay: "r1"},
		{Body: []byte(`recipient=ann%40x.test&event=opened`), Replay: "r2"},
	}}
	require.NoError(t, s.PutInbox(ctx, in))
	for _, want := range []bool{true, false} {
		changed, err := s.EraseInbox(ctx, in.ID, "ann@x.test")
		require.NoError(t, err)
		require.Equal(t, want, changed)
	}
	got, err := s.Inbox(ctx, in.ID)
	require.NoError(t, err)
	require.JSONEq(t, `[{"email":"`+models.ErasedAddress+`"},{"email":"joann@x.test"}]`, string(got[0].Posts[0].Body))
	require.Equal(t, `recipient=`+models.ErasedAddress+`&event=opened`, string(got[0].Posts[1].Body))
	require.Equal(t, "r2", got[0].Posts[1].Replay)
	changed, err := s.EraseInbox(ctx, models.NewInboxID(now()), "ann@x.test")
	require.NoError(t, err)
	require.False(t, changed)
}

func redactCases() []testCase {
	return []testCase{
		{"Batch/Redact", testRedact},
		{"Batch/ChunkTooLate", testChunkTooLate},
	}
}

func testRedact(t *testing.T, s models.Store) {
	ctx := t.Context()
	u := newUser("redact").ID
	for _, chunks := range []int{1, 3} {
		b := newBatch(u, now(), chunks)
		require.ErrorIs(t, s.Redact(ctx, b.ID), models.ErrNotFound)
		accept(t, s, b)
		e := attempt(1, "sg")
		require.NoError(t, s.Append(ctx, b.ID, e))
		for range 2 { // again does nothing more
			require.NoError(t, s.Redact(ctx, b.ID))
			got, err := s.Batch(ctx, b.ID)
			require.NoError(t, err)
			want := b
			want.Redact()
			require.Equal(t, want, got)
			for n := range chunks {
				_, err = s.Recipients(ctx, b.ID.Chunk(n))
				require.ErrorIs(t, err, models.ErrNotFound)
			}
			requireRecord(t, s, b.ID, []models.Entry{e}, nil)
		}
		require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)), "a repeat that comes late")
		_, err := s.Recipients(ctx, b.ID)
		require.ErrorIs(t, err, models.ErrNotFound, "brings nothing back")
		list, err := s.Batches(ctx, u, models.ID{}, 1)
		require.NoError(t, err)
		require.True(t, list[0].Redacted)
	}
}

// testChunkTooLate puts chunks again after their batch exists, and after it was
// redacted. That is no error and changes nothing.
func testChunkTooLate(t *testing.T, s models.Store) {
	ctx := t.Context()
	b := newBatch(models.NewUserID(), now(), 3)
	accept(t, s, b)
	again := func() {
		for n := 1; n < b.Chunks; n++ {
			require.NoError(t, s.PutChunk(ctx, chunkOf(b, n)))
		}
	}
	again()
	requirePresent(t, s, b)
	for range 2 {
		require.NoError(t, s.Redact(ctx, b.ID))
		again()
		require.NoError(t, s.PutBatch(ctx, b, chunkOf(b, 0)))
		again()
		for n := range b.Chunks {
			_, err := s.Recipients(ctx, b.ID.Chunk(n))
			require.ErrorIs(t, err, models.ErrNotFound, "chunk %d", n)
		}
	}
}
