package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestBouncingBatchIsStopped sends to a list on which every fifth address does not exist. The batch must be stopped
// before all are called, and its user must be able to resume it.
func TestBouncingBatchIsStopped(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const n = 3_000
		r := newRig(t, b, simulator.Options{},
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=50")
		r.serveHere()
		slow := r.sim.Inject(simulator.Fault{Account: "sg", Mode: "delay:1s"}) // a minute for the batch
		id := r.post(mail{n: n, providers: []string{"sg"}, address: func(i int) string {
			if i%5 == 0 {
				return fmt.Sprintf("hardbounce+%d@demo.test", i)
			}
			return plainAddress(i)
		}})
		var stopped client.Batch
		require.Eventually(t, func() bool {
			stopped = r.batch(id)
			return stopped.Stopped
		}, testkit.Patience, 50*time.Millisecond)
		require.Equal(t, models.BySafedelivr, stopped.StoppedBy)
		require.Contains(t, stopped.StoppedWhy, "do not exist, which is more than 5 %")
		require.Less(t, r.sim.Stats("sg").Accepted, int64(n), "the rest was sent meanwhile")

		r.sim.Clear(slow)
		_, err := r.client.ResumeBatch(t.Context(), id.String(), "")
		require.NoError(t, err)
		done := r.done(id)
		require.EqualValues(t, n/5, done.Counts.FailedReasons[string(models.MailboxInvalid)], "%+v", done.Counts)
		require.False(t, done.Stopped, "it was stopped again")
		r.statsAgree(id)
		stats, err := r.client.GetStats(t.Context(), "", "", "sender", "")
		require.NoError(t, err)
		require.Equal(t, "demo.test", stats.Groups[0].Name)
		require.Equal(t, stats.Totals, stats.Groups[0].Counts)
		require.EqualValues(t, n/5, stats.Totals.Events.Bounced)
	})
}
