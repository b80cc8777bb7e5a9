package operate

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestProvidersOfSeveralWorkers: counters of workers are added up, and the worst health
// counts. A worker whose report has expired does not count.
func TestProvidersOfSeveralWorkers(t *testing.T) {
	t.Parallel()
	store, broker := memory.Open(t), inproctest.New(t, "sg", "mg")
	s := newInstallation(store, broker, "sg", "mg")
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	report := func(worker, state string, share float64, accepted int64) {
		raw, err := json.Marshal(telemetry.WorkerState{Started: began, Share: share, Providers: []telemetry.ProviderState{
			{
				Name:     "sg",
				Health:   telemetry.Health{State: state, Senders: []string{"unverified.test"}},
				Counters: telemetry.Counters{Accepted: accepted},
				Rate:     2,
				Answers:  time.Duration(accepted) * time.Millisecond,
			},
			{Name: "gone", Health: telemetry.Health{State: telemetry.Suspended}}}})
		require.NoError(t, err)
		require.NoError(t, store.PutTransient(t.Context(), telemetry.WorkerReport, worker, raw, time.Hour))
	}
	report("b", telemetry.Healthy, 0.5, 7)
	report("a", telemetry.Suspended, 0.5, 5)
	report("c", telemetry.Probing, 0, 1)
	require.NoError(t, store.PutTransient(t.Context(), telemetry.WorkerReport, "torn", []byte(`{`), time.Hour))

	providers, err := s.Providers(t.Context(), caller.Caller{User: "ann"})
	require.NoError(t, err)
	require.Len(t, providers, 2, "the configured providers")
	require.Equal(t, telemetry.Suspended, providers[0].Health.State)
	require.EqualValues(t, 13, providers[0].Worker.Accepted)
	require.InDelta(t, 6, providers[0].RateUsed, 0)
	require.InDelta(t, 7, providers[0].AnswerMS, 0)
	require.Nil(t, providers[1].Health, "no worker has reported")

	require.Empty(t, providers[0].Health.Senders, "for operators only")

	seen, err := s.Providers(t.Context(), operator)
	require.NoError(t, err)
	require.Equal(t, []string{"unverified.test"}, seen[0].Health.Senders)
	workers, err := s.Workers(t.Context(), operator)
	require.NoError(t, err)
	require.Equal(t, []client.Worker{
		{Name: "a", Started: began, Share: 0.5}, {Name: "b", Started: began, Share: 0.5}, {Name: "c", Started: began},
	}, workers)
	require.NoError(t, store.PutTransient(t.Context(), telemetry.WorkerReport, "a", nil, 0))
	providers, err = s.Providers(t.Context(), caller.Caller{User: "ann"})
	require.NoError(t, err)
	require.Equal(t, telemetry.Probing, providers[0].Health.State)
	_, err = s.Workers(t.Context(), caller.Caller{User: "ann"})
	require.Error(t, err)
}

// A command is in effect on pages as soon as it is answered, before a worker reports.
func TestCommandedHealthAtOnce(t *testing.T) {
	t.Parallel()
	store, broker := memory.Open(t), inproctest.New(t, "sg")
	s := newInstallation(store, broker, "sg")
	raw, err := json.Marshal(telemetry.WorkerState{Providers: []telemetry.ProviderState{
		{Name: "sg", Health: telemetry.Health{State: telemetry.Healthy}},
	}})
	require.NoError(t, err)
	require.NoError(t, store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Hour))
	for _, c := range []struct {
		do    models.CommandKind
		state string
	}{
		{models.ProviderOffline, telemetry.Offline},
		{models.ProviderDrain, telemetry.Draining},
		{models.ProviderOnline, telemetry.Healthy},
	} {
		_, _, err := s.ControlProvider(t.Context(), operator, c.do, "sg", "", idempotency.Repeat{})
		require.NoError(t, err)
		providers, err := s.Providers(t.Context(), caller.Caller{User: "ann"})
		require.NoError(t, err)
		require.Equal(t, c.state, providers[0].Health.State)
	}
}
