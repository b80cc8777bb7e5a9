package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/policy"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// What waits for the same time does not come back in one instant.
func TestJitter(t *testing.T) {
	t.Parallel()
	e, err := New(
		&entries{},
		nil,
		[]provider.Spec{{Adapter: newScripted("sg", nil), Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1}}},
		DefaultConfig(),
	)
	require.NoError(t, err)
	now := time.Now()
	const wait = 10 * time.Minute
	seen := map[time.Time]bool{}
	for range 100 {
		var told dispatch.Outgoing
		st := &policy.Step{
			Do:      policy.Call,
			Who:     models.SetOf(1),
			Retry:   3,
			Options: []policy.Option{{Provider: "sg", NotBefore: now.Add(wait)}},
		}
		e.dispatch.Requeue(&dispatch.Chunk{ID: models.NewBatchID(now)}, st, now, "", &told)
		require.Len(t, told, 1)
		require.Equal(t, models.BatchMessage, told[0].Kind, "the provider is chosen anew then")
		require.False(t, told[0].NotBefore.Before(now.Add(wait)))
		require.False(t, told[0].NotBefore.After(now.Add(wait+30*time.Second)), "a tenth of the wait, half a minute at most")
		seen[told[0].NotBefore] = true
	}
	require.Greater(t, len(seen), 50)
}
