package cassandra

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The row that says that a value was removed must last as long as the value
// would have: a node that missed the removal may still have it.
func TestRemovalOutlastsValue(t *testing.T) {
	s := open(t, newConfig(t))
	ctx := t.Context()
	for _, hours := range []int{1, 100} {
		require.NoError(t, s.PutTransient(ctx, "k", "n", []byte("old"), time.Duration(hours)*time.Hour))
		for range 2 {
			require.NoError(t, s.PutTransient(ctx, "k", "n", nil, 0))
		}
		left, err := single(ctx, &s.runner, column[int],
			`SELECT TTL(removed) FROM transients WHERE kind = 'k' AND name = 'n'`)
		require.NoError(t, err)
		require.GreaterOrEqual(t, left, (max(hours, 24)*3600)-60)
	}
}
