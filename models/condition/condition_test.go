package condition

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestNoProvider: no provider accepts mail if all that may get it refuse it. A draining one gets none while another is
// online.
func TestNoProvider(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		sg, mg         string
		wrong, offline bool
	}{
		"one healthy":            {telemetry.Healthy, telemetry.Suspended, false, false},
		"one on probation":       {telemetry.Failing, telemetry.Probation, false, false},
		"both refuse":            {telemetry.Failing, telemetry.Probing, true, false},
		"both offline":           {telemetry.Offline, telemetry.Offline, true, true},
		"offline and suspended":  {telemetry.Offline, telemetry.Suspended, true, false},
		"draining and failing":   {telemetry.Draining, telemetry.Failing, true, false},
		"draining and suspended": {telemetry.Suspended, telemetry.Draining, true, false},
		"draining and healthy":   {telemetry.Draining, telemetry.Healthy, false, false},
		"draining and offline":   {telemetry.Offline, telemetry.Draining, false, false},
		"both draining":          {telemetry.Draining, telemetry.Draining, false, false},
	} {
		got := ofWorkers(map[string]telemetry.WorkerState{"w": {Providers: []telemetry.ProviderState{
			{Name: "sg", Health: telemetry.Health{State: c.sg, Since: now}},
			{Name: "mg", Health: telemetry.Health{State: c.mg, Since: now}},
		}}}, []string{"sg", "mg"})
		if !c.wrong {
			require.Empty(t, got, name)
			continue
		}
		require.Len(t, got, 1, name)
		require.Equal(t, NoProvider, got[0].Kind, name)
		require.Equal(t, c.offline, got[0].Offline, name)
	}
}
