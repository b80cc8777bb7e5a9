package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// TestRequestDuringHandling: work that is requested while a handler works on a chunk is done by
// that handler, or announced again if it stops.
func TestRequestDuringHandling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, stops := range []bool{false, true} {
			calling, let := make(chan struct{}, 2), make(chan struct{})
			sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
				calling <- struct{}{}
				<-let
				return part(models.Accepted, c)
			})
			r := emptyRig(t, nil, "sg")
			cfg := fast()
			cfg.Recheck, cfg.AgendaPoll = time.Hour, time.Hour // the agenda requests nothing
			r.engine = r.start(
				cfg,
				[]provider.Spec{{Adapter: sg, Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 4, ChunkLimit: 1,
					Timeout: time.Second, Events: models.EventsNone}}},
			)
			r.caughtUp() // the backlog of the start would announce the batch
			b := r.batch(2, false, nil)
			handle := func(ctx context.Context, log int) models.Disposition {
				return r.engine.dispatch.HandleLog(
					ctx,
					models.Message{Kind: models.LogMessage, Provider: "sg", Lane: b.Lane, ID: b.ID.Log(log)},
				)
			}
			ctx, stop := context.WithCancel(t.Context())
			said := make(chan models.Disposition, 1)
			go func() { said <- handle(ctx, 1) }()
			<-calling
			require.Equal(t, models.Done(), handle(t.Context(), 2), "it does not wait for the first")
			want := models.Done()
			if stops {
				stop()
				want = models.Later(0)
			}
			close(let)
			require.Equal(t, want, <-said)
			if !stops {
				require.Equal(t, 2, sg.count())
			}
			require.Equal(t, models.Success, r.done(b).Status(2).State)
			require.Equal(t, 2, sg.count())
			require.Eventually(t, r.idle, patience, 20*time.Millisecond)
			stop()
		}
	})
}
