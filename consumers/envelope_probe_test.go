package consumers

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestEnvelopeAsProbe: an envelope with which a suspended provider is probed is one call, and if the probe is
// refused, it moves to the next provider as a whole.
func TestEnvelopeAsProbe(t *testing.T) {
	t.Parallel()
	for _, class := range []models.Class{models.AccountClass, models.Unavailable} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var r *rig
				var healed, probed atomic.Bool
				sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
					h := r.engine.providers.Get("sg").Health.Report(time.Now(), control.ProviderMode{})
					if probed.Store(probed.Load() || h.State == telemetry.Probing); healed.Load() {
						return part(models.Accepted, c)
					}
					return part(class, c)
				})
				mg := newScripted("mg", always(models.Accepted))
				r = emptyRig(t, nil, "sg", "mg")
				r.withEvents(fast(), sg, mg)
				r.order(models.Command{Kind: models.ProviderOffline, Provider: "mg"})
				moves := r.envelope(nil)
				require.Eventually(t, probed.Load, patience, 20*time.Millisecond)
				r.order(models.Command{Kind: models.ProviderOnline, Provider: "mg"})
				r.taken(moves)
				require.Equal(t, []string{wholeEnvelope}, mg.shapes())

				probed.Store(false)
				healed.Store(true)
				stays := r.envelope(func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg"} })
				r.taken(stays)
				require.True(t, probed.Load())
				for _, shape := range sg.shapes() {
					require.Equal(t, wholeEnvelope, shape)
				}
				for n := 1; n <= 4; n++ {
					require.Equal(t, 1, sg.copiesOf(stays.ID.Log(n)))
					require.Zero(t, sg.copiesOf(moves.ID.Log(n)))
				}
			})
		})
	}
}

// TestEnvelopeOnProbation: a provider that was silent gets a few recipients at a time, and an envelope with more of
// them is one call all the same.
func TestEnvelopeOnProbation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		var state atomic.Value
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			state.Store(r.engine.providers.Get("sg").Health.Report(time.Now(), control.ProviderMode{}).State)
			return part(models.Accepted, c)
		})
		r = emptyRig(t, nil, "sg")
		raw, err := json.Marshal(struct {
			provider.Finding
			At time.Time `json:"at"`
		}{provider.Finding{State: telemetry.Suspended, Source: telemetry.Silence, Left: 300 * time.Millisecond}, time.Now()})
		require.NoError(t, err)
		require.NoError(t, r.store.PutTransient(t.Context(), "finding", "sg dead", raw, time.Hour))
		r.withEvents(fast(), sg)
		r.taken(r.batch(1, true, nil)) // the probe
		b := r.batch(
			50,
			true,
			func(b *models.Batch, _ []models.Recipient) { b.Envelope = &models.Envelope{CC: 48, BCC: 1} },
		)
		r.taken(b)
		require.Equal(t, telemetry.Probation, state.Load())
		require.Less(t, r.engine.providers.Get("sg").CallSize(time.Now()), 50)
		require.Len(t, sg.shapes(), 2)
		require.Len(t, sg.calls[1].Recipients, 50)
	})
}
