package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// recorder is a store that compares the states of a worker with the times of its failed calls.
type recorder struct {
	TransientStore
	saving func() // is called while times are stored
	saved  telemetry.FailedCallsOf
	states int      // that say that calls fail
	early  []string // providers of a state whose times were not stored
}

func (s *recorder) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	switch kind {
	case telemetry.FailedCallsReport:
		if err := json.Unmarshal(value, &s.saved); err != nil {
			return err
		}
		s.saving()
	case telemetry.WorkerReport:
		var state telemetry.WorkerState
		_ = json.Unmarshal(value, &state) // it is empty when the worker ends
		for _, p := range state.Providers {
			if p.Health.State == telemetry.Failing {
				if s.states++; len(s.saved[p.Name]) == 0 {
					s.early = append(s.early, p.Name)
				}
			}
		}
	}
	return s.TransientStore.PutTransient(ctx, kind, name, value, ttl)
}

// TestFailedCallsAreStoredFirst: others see that calls of a worker fail only when the times of these calls are stored.
// Otherwise a notice would say so, and after a kill the times would be missing.
func TestFailedCallsAreStoredFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inMemory := memory.Open(t)
		s := &recorder{TransientStore: inMemory}
		c := New(s, memberConfig("w"))
		var specs []provider.Spec
		for _, name := range []string{"sg", "mg"} {
			specs = append(specs, provider.Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: name, Concurrency: 8}})
		}
		ps, err := provider.NewSet(specs, &health, c)
		require.NoError(t, err)
		r := NewReporter(ReporterDeps{Store: s, Cluster: c, Follower: control.NewFollower(inMemory), Providers: ps,
			Flows: provider.NewFlows(), Worker: "w", Life: "l", Started: time.Now(), Logger: slog.New(slog.DiscardHandler)})
		fail := func(name string) {
			settle, ok := ps.Get(name).Health.Begin("a.test", 1)
			require.True(t, ok)
			settle([]models.Part{{Class: models.Unavailable, Text: "answered 503"}}, time.Millisecond)
		}
		s.saving = func() { s.saving = func() {}; fail("mg") }
		fail("sg")
		ctx, stop := context.WithCancel(t.Context())
		go r.Run(ctx)
		time.Sleep(time.Minute)
		stop()
		synctest.Wait()
		require.Empty(t, s.early)
		require.GreaterOrEqual(t, s.states, 3)
	})
}
