package events

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestGroupIsBoundedByBytes: a group of entries holds no more than inboxBytes of posts,
// unless a single entry is larger, and takes the entries in order.
func TestGroupIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const kib = 1 << 10
	repeat := func(n, size int) []int { return slices.Repeat([]int{size}, n) }
	for name, c := range map[string]struct {
		sizes []int
		least int // entries in the first group
	}{
		"many small":            {sizes: repeat(64, kib), least: 64},
		"many large":            {sizes: repeat(20, 300*kib), least: 3},
		"larger than the bound": {sizes: []int{3 * inboxBytes, 3 * inboxBytes, kib}, least: 1},
		"large after small":     {sizes: append(repeat(20, kib), repeat(44, 700*kib)...), least: 20},
		"large and small":       {sizes: []int{700 * kib, kib, 700 * kib, kib, 700 * kib, kib}, least: 1},
		"exactly the bound":     {sizes: repeat(9, inboxBytes/4), least: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &memoryInbox{}
			r := inboxReader{store: store}
			var rest []models.ID
			for _, n := range c.sizes {
				rest = append(rest, store.put(bytes.Repeat([]byte{'x'}, n)))
			}
			for first := true; len(rest) > 0; first = false {
				entries, n, err := r.read(t.Context(), rest)
				require.NoError(t, err)
				require.Positive(t, n)
				require.Len(t, entries, n)
				if first {
					require.GreaterOrEqual(t, n, c.least)
				}
				size := 0
				for i := range entries {
					require.Equal(t, rest[i], entries[i].ID)
					size += entries[i].Size()
				}
				if n > 1 {
					require.LessOrEqual(t, size, inboxBytes)
				}
				rest = rest[n:]
			}
		})
	}
}
