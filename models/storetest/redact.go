package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

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
