package intake

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestFilesUseTheSpool: attachments count for the limit of what is being read, and leave neither files nor use of the
// limit. A limit that is reached ends the request.
func TestFilesUseTheSpool(t *testing.T) {
	t.Parallel()
	var used, most int64
	full := errors.New("the limit is reached")
	limit := int64(10 << 20)
	cfg := Config{MaxRecipients: 10, MaxContent: 1 << 20, SpoolDir: t.TempDir(), Spooling: func(n int64) error {
		if used+n > limit {
			return full
		}
		used += n
		most = max(most, used)
		return nil
	}}
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	read := func() (pieces map[string][][]byte, err error) {
		b := New(t.Context(), &cfg)
		defer b.Close()
		for _, part := range [][]byte{data, data[:100], data} {
			f := b.NewFile()
			if _, err := f.Write(part); err != nil {
				return nil, err
			}
			b.Attach("/attachments", &Attachment{Filename: "f", File: f})
		}
		pieces = map[string][][]byte{}
		return pieces, b.Pieces(func(sum string, n int, piece []byte) error {
			require.Len(t, pieces[sum], n)
			pieces[sum] = append(pieces[sum], bytes.Clone(piece))
			return nil
		})
	}
	pieces, err := read()
	require.NoError(t, err)
	require.Len(t, pieces, 2)
	for _, list := range pieces {
		whole := bytes.Join(list, nil)
		require.True(t, bytes.Equal(whole, data[:len(whole)]))
		for _, p := range list[:len(list)-1] {
			require.Len(t, p, models.PieceSize)
		}
	}
	require.GreaterOrEqual(t, most, int64(6<<20))
	require.Zero(t, used)
	limit = 4 << 20
	_, err = read()
	require.ErrorIs(t, err, full)
	require.Zero(t, used)
	left, err := os.ReadDir(cfg.SpoolDir)
	require.NoError(t, err)
	require.Empty(t, left)
}
