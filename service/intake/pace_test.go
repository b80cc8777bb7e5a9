package intake

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLongBodiesGiveWay: a long body enters before its caller computes, leaves while it
// waits for bytes, and has left when it is done. A short one never enters.
func TestLongBodiesGiveWay(t *testing.T) {
	t.Parallel()
	entered, inside := 0, 0
	var refused error
	cfg := &Config{MaxRecipients: 10, MaxContent: 1 << 20, Enter: func() (func(), error) {
		if refused != nil {
			return nil, refused
		}
		entered++
		inside++
		return func() { inside-- }, nil
	}}
	read := func(n int) error {
		b := New(t.Context(), cfg)
		defer b.Close()
		body := b.Body(readFunc(func(p []byte) (int, error) {
			require.Zero(t, inside, "it waits for bytes")
			if n == 0 {
				return 0, io.EOF
			}
			got := min(len(p), n)
			n -= got
			return got, nil
		}))
		_, err := io.Copy(io.Discard, body)
		b.Pause()
		require.Zero(t, inside)
		return err
	}
	require.NoError(t, read(longBody))
	require.Zero(t, entered)
	require.NoError(t, read(longBody+1))
	require.Equal(t, 1, entered)

	b := New(t.Context(), cfg)
	defer b.Close()
	require.NoError(t, b.AddContent(longContent+1))
	b.Batch.Text = strings.Repeat("x", longContent+1)
	_, err := b.Check()
	require.Error(t, err)
	require.Equal(t, 2, entered, "so does the check of long content")
	require.Zero(t, inside)
	refused = errors.New("the client has left")
	require.ErrorIs(t, read(longBody+1), refused)
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
