package dispatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// attached stores a batch with two equal attachments, and returns their bytes.
func (f *fixture) attached(t *testing.T) (*models.Batch, []byte) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), models.PieceSize/10)
	sum := sha256.Sum256(data)
	a := models.Attachment{Filename: "f", Type: "text/plain", Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	id := f.batchWith(t, 2, models.Hold, func(b *models.Batch) {
		b.Content.Attachments = []models.Attachment{a, a}
		require.NoError(t, f.store.PutPiece(t.Context(), b.ID, a.SHA256, 0, data[:models.PieceSize]))
		require.NoError(t, f.store.PutPiece(t.Context(), b.ID, a.SHA256, 1, data[models.PieceSize:]))
	})
	return id, data
}

func (f *fixture) adapterOf(name string) *adapter {
	return f.Providers.Get(name).Adapter.(*adapter) //nolint:forcetypeassert // newFixture made it
}

// takeMemory takes all memory of a provider. It waits for what is taken.
func (f *fixture) takeMemory(t *testing.T, name string) {
	t.Helper()
	_, err := f.Providers.Get(name).Memory.Take(t.Context(), 1<<40)
	require.NoError(t, err)
}

// TestAttachmentsOfCall: a call has the bytes of its attachments. Afterwards no memory is taken.
func TestAttachmentsOfCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b, data := f.attached(t)
	m := models.Message{Kind: models.ProviderMessage, Provider: "sg", Lane: b.Lane, ID: b.ID}
	require.Equal(t, models.Done(), f.HandleProvider(t.Context(), m))
	require.Equal(t, [][]byte{data, data}, f.adapterOf("sg").files)
	f.takeMemory(t, "sg")
}

// TestNoMemoryForAttachments: without memory for its attachments no attempt is appended, and other mail passes. The
// memory of one provider is not taken by another.
func TestNoMemoryForAttachments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, models.Accepted, "sg", "mg")
		b, data := f.attached(t)
		m := models.Message{Kind: models.ProviderMessage, Provider: "sg", Lane: b.Lane, ID: b.ID}
		f.takeMemory(t, "sg")
		require.Equal(t, models.Done(), f.HandleProvider(t.Context(), m), "it is requeued")
		entries, _, err := f.store.Record(t.Context(), b.ID)
		require.NoError(t, err)
		require.Empty(t, entries)
		plain := f.batch(t, 1, models.Hold)
		f.HandleProvider(t.Context(), models.Message{Kind: models.ProviderMessage, Provider: "sg", Lane: b.Lane, ID: plain.ID})
		entries, _, err = f.store.Record(t.Context(), plain.ID)
		require.NoError(t, err)
		require.Len(t, entries, 1)

		m.Provider = "mg"
		require.Equal(t, models.Done(), f.HandleProvider(t.Context(), m))
		require.Equal(t, [][]byte{data, data}, f.adapterOf("mg").files)
	})
}

// TestAttachmentsMissing: no attempt is appended if attachments cannot be read.
func TestAttachmentsMissing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b := f.batchWith(t, 1, models.Hold, func(b *models.Batch) {
		b.Content.Attachments = []models.Attachment{{Filename: "f", Size: 3, SHA256: "none"}}
	})
	f.HandleProvider(t.Context(), models.Message{Kind: models.ProviderMessage, Provider: "sg", Lane: b.Lane, ID: b.ID})
	entries, _, err := f.store.Record(t.Context(), b.ID)
	require.NoError(t, err)
	require.Empty(t, entries)
	f.takeMemory(t, "sg")
}
