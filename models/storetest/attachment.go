package storetest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func attachmentCases() []testCase {
	return []testCase{
		{"Attachment/Read", testAttachmentRead},
		{"Attachment/Removed", testAttachmentRemoved},
		{"Attachment/Damaged", testAttachmentDamaged},
	}
}

// newAttachment returns random bytes, which no compression makes smaller, and their description.
func newAttachment(size int) ([]byte, models.Attachment) {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = source.Read(data)
	sum := sha256.Sum256(data)
	return data, models.Attachment{
		Filename: "f",
		Type:     "text/plain",
		Size:     int64(size),
		SHA256:   hex.EncodeToString(sum[:]),
	}
}

// attach stores the pieces of an attachment.
func attach(t *testing.T, s models.Store, batch models.ID, data []byte, sum string) {
	t.Helper()
	for n := 0; len(data) > 0; n++ {
		size := min(len(data), models.PieceSize)
		require.NoError(t, s.PutPiece(t.Context(), batch, sum, n, data[:size]))
		data = data[size:]
	}
}

// testAttachmentRead reads attachments of several sizes, which differ by their hash
// within a batch, and by the batch.
func testAttachmentRead(t *testing.T, s models.Store) {
	a, b := newBatch(models.NewUserID(), now(), 1), newBatch(models.NewUserID(), now(), 1)
	sizes := []int{0, 1, models.PieceSize, 3*models.PieceSize + 17}
	for _, size := range sizes {
		data, about := newAttachment(size)
		for range 2 { // a repeat changes nothing
			attach(t, s, a.ID, data, about.SHA256)
		}
	}
	accept(t, s, a)
	for _, size := range sizes {
		data, about := newAttachment(size)
		got, err := io.ReadAll(models.OpenAttachment(t.Context(), s, a.ID, &about))
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got), "%d bytes", size)
		_, err = s.Piece(t.Context(), b.ID, about.SHA256, 0)
		require.ErrorIs(t, err, models.ErrNotFound, "another batch")
	}
}

// testAttachmentRemoved removes batches in every way. Nothing of their attachments is left, and
// a piece that comes late does not come back.
func testAttachmentRemoved(t *testing.T, s models.Store) {
	ctx := t.Context()
	data, about := newAttachment(models.PieceSize + 1)
	for name, remove := range map[string]func(b models.Batch) error{
		"abandoned": func(b models.Batch) error {
			_, err := s.AbandonBatch(ctx, b.ID, b.Chunks)
			return err
		},
		"redacted": func(b models.Batch) error { accept(t, s, b); return s.Redact(ctx, b.ID) },
		"purged":   func(b models.Batch) error { accept(t, s, b); return s.Purge(ctx, b.User, b.ID) },
	} {
		for _, chunks := range []int{1, 3} {
			b, kept := newBatch(models.NewUserID(), now(), chunks), newBatch(models.NewUserID(), now(), 1)
			attach(t, s, b.ID, data, about.SHA256)
			attach(t, s, kept.ID, data, about.SHA256)
			require.NoError(t, remove(b), name)
			for range 2 {
				for n := range 2 {
					_, err := s.Piece(ctx, b.ID, about.SHA256, n)
					require.ErrorIs(t, err, models.ErrNotFound, "%s, piece %d", name, n)
				}
				if name == "purged" {
					break // nothing is written about a batch that is old enough
				}
				attach(t, s, b.ID, data, about.SHA256)
			}
			_, err := io.ReadAll(models.OpenAttachment(ctx, s, kept.ID, &about))
			require.NoError(t, err)
		}
	}
}

// testAttachmentDamaged reads bytes that are not those of the hash.
func testAttachmentDamaged(t *testing.T, s models.Store) {
	b := newBatch(models.NewUserID(), now(), 1)
	data, about := newAttachment(100)
	data[50]++
	attach(t, s, b.ID, data, about.SHA256)
	_, err := io.ReadAll(models.OpenAttachment(t.Context(), s, b.ID, &about))
	require.ErrorIs(t, err, models.ErrDamaged)
}
