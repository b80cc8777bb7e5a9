package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestOutcomeIsSettledByRepeat: the answers of a provider with idempotency keys are lost, and the process is killed
// between a call and its repeat. There are no events. Each mail is sent once, through that provider, and no outcome
// stays unknown.
func TestOutcomeIsSettledByRepeat(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const n = 250
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=10m")
		require.NoError(t, r.sim.AddAccount(simulator.Account{Name: "rs", Kind: simulator.Resend, Key: "re_test"}))
		r.env = append(r.env,
			"SAFEDELIVR_PROVIDERS_RS_KIND=resend",
			"SAFEDELIVR_PROVIDERS_RS_API_KEY=re_test",
			"SAFEDELIVR_PROVIDERS_RS_BASE_URL="+r.api+"/rs",
			"SAFEDELIVR_PROVIDERS_RS_EVENTS=none",
			"SAFEDELIVR_PROVIDERS_RS_TIMEOUT=2s")
		lost := r.sim.Inject(simulator.Fault{Account: "rs", Mode: simulator.ModeAcceptThenClose})
		p := r.start(r.addr, nil, "serve")
		id := r.post(mail{n: n, providers: []string{"rs", "sg", "mg"}})
		require.Eventually(t, func() bool { return r.sim.Stats("rs").Copies == n }, testkit.Patience, 20*time.Millisecond)
		p.kill()
		r.sim.Clear(lost)
		r.start(r.addr, nil, "serve")
		done := r.done(id)
		require.EqualValues(t, n, done.Counts.Delivered)
		require.Zero(t, r.exactlyOnce(id, n))
		require.Zero(t, r.sim.Stats("sg").Calls+r.sim.Stats("mg").Calls)
		repeats := 0
		for _, l := range r.logs(id, client.Delivered) {
			log, err := r.client.Log(t.Context(), l.ID)
			require.NoError(t, err)
			for _, m := range log.Timeline {
				if m.What == "repeat" {
					repeats++
				}
			}
		}
		require.GreaterOrEqual(t, repeats, n, "each call was repeated")
	})
}
