package memory

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// compressed uses the compression of stored forms before any test. It makes channels at its first use, and those of one
// synctest bubble cannot be used in another one.
var _, compressed = codec.Unpack(codec.Pack(make([]byte, 1<<10)))

// Open returns an empty store. It is closed after the test.
func Open(t testing.TB) *Store {
	t.Helper()
	require.NoError(t, compressed)
	s := New(store.Options{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// Holds reports whether a stored key or value contains a text, in any case. It unpacks packed values.
func (s *Store) Holds(text string) bool {
	e := s.Engine().(*engine)
	e.mu.Lock()
	defer e.mu.Unlock()
	has := func(raw []byte) bool { return bytes.Contains(bytes.ToLower(raw), bytes.ToLower([]byte(text))) }
	packed := func(raw []byte) bool {
		plain, err := codec.Unpack(raw)
		return err == nil && has(plain)
	}
	for _, p := range e.parts {
		for _, r := range p.rows {
			if has(r.Key) || has(r.Value) || packed(r.Value) {
				return true
			}
		}
		for i := range p.entries {
			if has(p.entries[i].Value) || packed(p.entries[i].Value) {
				return true
			}
		}
	}
	return false
}

// Forget removes what is stored of the summaries of a chunk, and of the sums above it, so that a test can store others
// with the same versions.
func Forget(t testing.TB, s models.Store, user string, chunk models.ID, levels ...models.Level) {
	t.Helper()
	on, ok := s.(interface{ Engine() shapes.Engine })
	require.True(t, ok, "the store has no engine")
	for _, table := range store.Tables() {
		switch table.Name {
		case "summaries":
			if len(levels) == 0 {
				require.NoError(t, on.Engine().RemoveRows(t.Context(),
					shapes.Address{Table: table, Part: []byte(user), Key: chunk[:]}))
			}
		default:
			if level := models.Level(strings.TrimPrefix(table.Name, "sums_")); slices.Contains(levels, level) {
				start := models.MinID(models.SpanOf(user, level, chunk.Time()).Start)
				require.NoError(t, on.Engine().RemoveRows(t.Context(),
					shapes.Address{Table: table, Part: []byte(user), Key: start[:6]}))
			}
		}
	}
}
