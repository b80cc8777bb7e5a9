package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestRepeatedRequestThroughKills repeats one request with one key while the process that handles it is killed again
// and again, a little later each time. In the end there must be one batch, and one copy of each mail.
func TestRepeatedRequestThroughKills(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(3_000, 20_000)
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1") // it posts its events one by one
		batch := mail{n: n}
		ask := func() (models.ID, error) {
			accepted, err := r.client.StreamBatch(t.Context(), batch.batch(), batch.recipients, client.IdempotencyKey("one"))
			if err != nil {
				return models.ID{}, err
			}
			return r.id(accepted.ID), nil
		}
		for i := range 3 {
			p := r.start(r.addr, nil, "serve")
			kill := time.AfterFunc(time.Duration(30+100*i)*time.Millisecond, func() { _ = p.cmd.Process.Kill() })
			_, _ = ask() // it is killed before or after the answer
			kill.Stop()
			p.kill()
		}
		r.start(r.addr, nil, "serve")
		var id models.ID
		require.Eventually(t, func() (ok bool) {
			answered, err := ask()
			id = answered
			return err == nil
		}, testkit.Patience, 200*time.Millisecond)
		again, err := ask()
		require.NoError(t, err)
		require.Equal(t, id, again)
		var batches []client.Batch
		for b, err := range r.client.Batches(t.Context(), client.ListOptions{}) {
			require.NoError(t, err)
			batches = append(batches, b)
		}
		require.Len(t, batches, 1)
		require.Equal(t, n, batches[0].Recipients)
		r.done(id)
		r.exactlyOnce(id, n)
	})
}
