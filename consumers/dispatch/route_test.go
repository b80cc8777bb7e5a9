package dispatch

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/models"
)

// TestRequeueJitter: steps that wait for the same time are not all requeued for one moment.
func TestRequeueJitter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	now := time.Now()
	const wait = 10 * time.Minute
	seen := map[time.Time]bool{}
	for range 100 {
		var out messages
		st := &policy.Step{
			Do:      policy.Call,
			Who:     models.SetOf(1),
			Retry:   3,
			Options: []policy.Option{{Provider: "sg", NotBefore: now.Add(wait)}},
		}
		f.requeue(&Chunk{ID: models.NewBatchID(now)}, st, now, "", &out)
		require.Len(t, out, 1)
		require.Equal(t, models.BatchMessage, out[0].Kind, "the provider is chosen again then")
		require.False(t, out[0].NotBefore.Before(now.Add(wait)))
		require.False(t, out[0].NotBefore.After(now.Add(wait+30*time.Second)), "a tenth of the wait, half a minute at most")
		seen[out[0].NotBefore] = true
	}
	require.Greater(t, len(seen), 50)
}
