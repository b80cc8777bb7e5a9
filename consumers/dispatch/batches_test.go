package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestBatchesAreBoundedByBytes: batches are kept up to a number of bytes, those that were used last. The last one is
// always kept.
func TestBatchesAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	bs := newBatches()
	add := func(text int) models.ID {
		b := &models.Batch{ID: models.NewBatchID(time.Now()), Content: models.Content{Text: strings.Repeat("x", text)}}
		bs.add(b)
		bs.add(b) // again
		return b.ID
	}
	has := func(id models.ID) bool {
		_, ok := bs.get(id)
		return ok
	}
	first, second := add(0), add(batchesBytes/4)
	small := add(0)
	for range batchesBytes / batchBytes / 2 {
		add(0)
		require.True(t, has(first))
	}
	require.True(t, has(second))
	require.LessOrEqual(t, bs.bytes, batchesBytes)
	add(batchesBytes / 2)
	require.False(t, has(small), "it was not used for longest")
	require.True(t, has(first))
	require.True(t, has(second))
	large := add(2 * batchesBytes)
	require.True(t, has(large))
	require.False(t, has(first))
	require.Equal(t, 1, bs.known.Len())
	add(0)
	require.False(t, has(large))
	require.Equal(t, batchBytes, bs.bytes)
}
