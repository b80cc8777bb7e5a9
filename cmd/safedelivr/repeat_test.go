package main

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/simulator"
)

// TestRepeatedThroughKills: a client repeats one request, under one key, while
// the process that works it off is killed again and again, a little later each
// time. In the end there is one batch, and one copy of each mail.
func TestRepeatedThroughKills(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend) {
		const n = 20_000
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1") // it posts its events one by one
		ask := func() (status int, id models.ID) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.client.base+"/v1/batches", batchBody(n, "", plainAddress))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer "+r.client.key)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", "one")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return 0, id
			}
			defer func() { _ = resp.Body.Close() }()
			var v service.Accepted
			_ = json.NewDecoder(resp.Body).Decode(&v) // cut off, if it is
			return resp.StatusCode, v.ID
		}
		for i := range 3 {
			p := r.start(r.addr, nil, "serve")
			kill := time.AfterFunc(time.Duration(30+100*i)*time.Millisecond, func() { _ = p.cmd.Process.Kill() })
			ask()
			kill.Stop()
			p.kill()
		}
		r.start(r.addr, nil, "serve")
		var id models.ID
		require.Eventually(t, func() bool {
			status, answered := ask()
			id = answered
			return status == http.StatusAccepted
		}, patience, 200*time.Millisecond)
		status, again := ask()
		require.Equal(t, http.StatusAccepted, status)
		require.Equal(t, id, again)
		var list service.BatchPage
		r.get("/v1/batches", &list)
		require.Len(t, list.Batches, 1)
		require.Equal(t, n, list.Batches[0].Recipients)
		r.done(id)
		r.exactlyOnce(id, n)
	})
}
