package models

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCutPosts checks that entries hold all posts, in order, and no more than they may.
func TestCutPosts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(
			rapid.OneOf(rapid.IntRange(0, 1000), rapid.IntRange(0, maxPostsBytes), rapid.Just(2*maxPostsBytes)),
			0,
			500,
		).Draw(
			t,
			"sizes",
		)
		all := make([]Post, len(sizes))
		for i, n := range sizes {
			all[i] = Post{Body: make([]byte, n), Replay: strconv.Itoa(i)}
		}
		var got []Post
		for rest := all; len(rest) > 0; {
			var entry []Post
			entry, rest = CutPosts(rest)
			require.NotEmpty(t, entry)
			require.LessOrEqual(t, len(entry), maxPosts)
			in := Inbox{Posts: entry}
			require.True(t, len(entry) == 1 || in.Size() <= maxPostsBytes)
			if len(rest) > 0 {
				require.True(t, len(entry) == maxPosts || in.Size()+rest[0].Size() > maxPostsBytes, "another would fit")
			}
			got = append(got, entry...)
		}
		require.Len(t, got, len(all))
		for i := range got {
			require.Equal(t, all[i].Replay, got[i].Replay)
		}
	})
}
