package intake

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func newIntake(t *testing.T) *Intake {
	t.Helper()
	b := New(t.Context(), &Config{
		MaxRecipients: 100_000,
		MaxContent:    1000,
		UrgentUpTo:    1,
		ExpireAfter:   time.Hour,
		SpoolDir:      t.TempDir(),
	})
	t.Cleanup(b.Close)
	b.Batch = Batch{From: "a@b.de", Subject: "s", Text: "t"}
	return b
}

// TestChunks: the chunks hold the recipients in order without repeated addresses, from
// memory and from disk.
func TestChunks(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 999, 1000, 1001, 20_500} {
		b := newIntake(t)
		for i := range n {
			for range 2 {
				require.NoError(t, b.add(&Recipient{Email: fmt.Sprintf("r%d@example.com", i)}))
			}
		}
		batch, err := b.Check()
		require.NoError(t, err)
		require.Equal(t, n, batch.Recipients)
		require.Equal(t, n, batch.Duplicates)
		chunks, next := 0, 0
		require.NoError(t, b.Chunks(func(k int, recipients []models.Recipient) error {
			require.Equal(t, chunks, k)
			require.Len(t, recipients, min(models.MaxChunkRecipients, n-next))
			for i := range recipients {
				require.Equal(t, fmt.Sprintf("r%d@example.com", next+i), recipients[i].Email)
			}
			chunks, next = chunks+1, next+len(recipients)
			return nil
		}))
		require.Equal(t, n, next)
		require.Equal(t, batch.Chunks, chunks)
	}
}

// TestSetTimes: an expiry must be in the future, and retries of a request without one
// get the same expiry.
func TestSetTimes(t *testing.T) {
	t.Parallel()
	requested := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	b := newIntake(t)
	var batch models.Batch
	require.NoError(t, b.SetTimes(&batch, requested))
	require.Equal(t, requested.Add(time.Hour), batch.ExpiresAt)

	for text, ok := range map[string]bool{
		"2026-01-31T12:00:01Z":      true,
		"2026-01-31T12:30:00+00:30": false, // the time of the request
		"2026-03-02T12:00:00Z":      true,  // 30 days later
		"2026-03-02T12:00:01Z":      false,
	} {
		b := newIntake(t)
		b.Batch.ExpiresAt = text
		require.NoError(t, b.add(&Recipient{Email: "a@b.de"}))
		batch, err := b.Check()
		require.NoError(t, err)
		require.Equal(t, ok, b.SetTimes(&batch, requested) == nil, text)
	}
}
