package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecent(t *testing.T) {
	t.Parallel()
	r := NewRecent[int](10)
	for i := range 100 {
		require.False(t, r.Has(i))
		r.Add(-1)
		r.Remove(-1)
		require.False(t, r.Has(-1))
		r.Add(i)
		for k := max(0, i-9); k <= i; k++ {
			require.True(t, r.Has(k), "%d after %d", k, i)
		}
	}
	require.False(t, r.Has(0))
	require.LessOrEqual(t, len(r.now)+len(r.old), 20)
}
