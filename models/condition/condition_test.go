package condition_test

import (
	"cmp"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestNoProvider: no provider accepts mail if all that may get it refuse it. A drained one gets none while another is
// online. Workers do not report what operators command.
func TestNoProvider(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		sg, mg         string
		sgIs, mgIs     models.CommandKind
		wrong, offline bool
	}{
		"one healthy":            {sg: telemetry.Healthy, mg: telemetry.Suspended},
		"one on probation":       {sg: telemetry.Failing, mg: telemetry.Probation},
		"both refuse":            {sg: telemetry.Failing, mg: telemetry.Probing, wrong: true},
		"both offline":           {sgIs: models.ProviderOffline, mgIs: models.ProviderOffline, wrong: true, offline: true},
		"offline and suspended":  {sgIs: models.ProviderOffline, mg: telemetry.Suspended, wrong: true},
		"offline and healthy":    {sgIs: models.ProviderOffline},
		"draining and failing":   {sgIs: models.ProviderDrain, mg: telemetry.Failing, wrong: true},
		"suspended and draining": {sg: telemetry.Suspended, mgIs: models.ProviderDrain, wrong: true},
		"draining and healthy":   {sgIs: models.ProviderDrain},
		"draining and offline":   {sgIs: models.ProviderOffline, mgIs: models.ProviderDrain},
		"both draining":          {sgIs: models.ProviderDrain, mgIs: models.ProviderDrain},
		"draining, failing, and offline": {sgIs: models.ProviderOffline, mg: telemetry.Failing,
			mgIs: models.ProviderDrain, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memory.Open(t)
			follower := control.NewFollower(store)
			for name, mode := range map[string]models.CommandKind{"sg": c.sgIs, "mg": c.mgIs} {
				if mode == "" {
					continue
				}
				done, err := follower.Append(t.Context(), &models.Command{Kind: mode, Provider: name, By: "test"},
					func(*control.Rules) bool { return true })
				require.NoError(t, err)
				require.True(t, done)
			}
			state := func(name, state string) telemetry.ProviderState {
				return telemetry.ProviderState{Name: name,
					Health: telemetry.Health{State: cmp.Or(state, telemetry.Healthy), Since: now}}
			}
			raw, err := json.Marshal(telemetry.WorkerState{
				Providers: []telemetry.ProviderState{state("sg", c.sg), state("mg", c.mg)}})
			require.NoError(t, err)
			require.NoError(t, store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Minute))
			got, err := condition.Read(t.Context(), store, []string{"sg", "mg"}, follower.Rules(), now)
			require.NoError(t, err)
			got = slices.DeleteFunc(got, func(c condition.Condition) bool { return c.Kind != condition.NoProvider })
			if !c.wrong {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Equal(t, c.offline, got[0].Offline)
		})
	}
}

// TestUnreadableEndpoint: an endpoint that cannot be read hides no condition, and nobody says that there is none.
func TestUnreadableEndpoint(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	require.NoError(t, store.PutDocument(t.Context(), "*", "endpoint",
		models.Document{Key: feed.Installation + "/x", Version: 1, Value: []byte(`{"id": 5`)}))
	got, err := condition.Read(t.Context(), store, []string{"sg"}, control.NewFollower(store).Rules(), time.Now())
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, condition.NoWorker, got[0].Kind)
}

// TestWhoGetsNotices: notices are posted to an endpoint that is enabled, and not to one of everyone's mail.
func TestWhoGetsNotices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		e    endpoint.Endpoint
		gets bool
	}{
		"enabled":         {endpoint.Endpoint{}, true},
		"disabled":        {endpoint.Endpoint{Disabled: &endpoint.Disabled{}}, false},
		"everyone's mail": {endpoint.Endpoint{EndpointSettings: client.EndpointSettings{Everyone: true}}, false},
	} {
		store := memory.Open(t)
		c.e.ID, c.e.Owner = "x", feed.Installation
		require.NoError(t, endpoint.In(store).Create(t.Context(), c.e.Owner, c.e.ID, c.e))
		got, err := condition.Read(t.Context(), store, nil, control.NewFollower(store).Rules(), time.Now())
		require.NoError(t, err)
		silent := slices.ContainsFunc(got, func(c condition.Condition) bool { return c.Kind == condition.NoNotices })
		require.Equal(t, !c.gets, silent, name)
	}
}
