package service

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestRequestsWaitWhileProcessJoins: a process that starts beside another one refuses no request that its part of the
// limits allows. The request waits until the other process counts this one.
func TestRequestsWaitWhileProcessJoins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
		start := func(name string) *Service {
			s := New(Deps{Store: store, Broker: broker, Providers: []models.Provider{{Name: "sg"}},
				Config: Config{SpoolDir: t.TempDir(), Quotas: models.Limits{models.RequestsAtOnce: 4}}})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { s.Process(ctx, name) })
			t.Cleanup(func() { stop(); running.Wait(); s.Close() })
			synctest.Wait()
			return s
		}
		admit := func(s *Service) (waited time.Duration, err error) {
			began := time.Now()
			_, _, err = s.Admit(t.Context(), Caller{User: "ann"})
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
