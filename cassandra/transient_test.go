package cassandra

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/store/shapes"
)

// The row that says that a value was removed must last as long as the value
// would have: a node that missed the removal may still have it.
func TestRemovalOutlastsValue(t *testing.T) {
	s := open(t, sharedConfig(t))
	ctx := t.Context()
	for _, hours := range []int{1, 100} {
		require.NoError(t, s.PutTransient(ctx, "k", "n", []byte("old"), time.Duration(hours)*time.Hour))
		for range 2 {
			require.NoError(t, s.PutTransient(ctx, "k", "n", nil, 0))
		}
		found, err := s.Engine().Find(ctx, shapes.Address{Table: engineOf(s).tableOf("transients").Table, Part: []byte("k")})
		require.NoError(t, err)
		require.True(t, found[0][0].Gone)
		require.GreaterOrEqual(t, found[0][0].TTL, time.Duration(max(hours, 24))*time.Hour-time.Minute)
	}
}
