package people

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestRequestsWaitWhileProcessJoins: a process that starts beside another one refuses no request that its part of the
// limits allows. The request waits until the other process counts this one.
func TestRequestsWaitWhileProcessJoins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, log := memory.Open(t), slog.New(slog.DiscardHandler)
		start := func(name string) *Limits {
			s := NewLimits(LimitDeps{Store: store, Quotas: models.Limits{models.RequestsAtOnce: 4}, Log: log,
				Audit: audit.New(audit.Deps{Store: store, Follower: control.NewFollower(store), Log: log})})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { s.Process(ctx, name) })
			t.Cleanup(func() { stop(); running.Wait() })
			synctest.Wait()
			return s
		}
		admit := func(s *Limits) (waited time.Duration, err error) {
			began := time.Now()
			_, _, err = s.Admit(t.Context(), caller.Caller{User: "ann"})
			return time.Since(began), err
		}
		one := start("one")
		waited, err := admit(one)
		require.NoError(t, err)
		require.Zero(t, waited, "it is alone")
		two := start("two")
		waited, err = admit(two)
		require.NoError(t, err)
		require.Zero(t, waited)
		waited, err = admit(two)
		require.NoError(t, err)
		require.Positive(t, waited)
		waited, err = admit(two)
		require.Error(t, err, "half of the limit is the other process's")
		require.Zero(t, waited)
	})
}
