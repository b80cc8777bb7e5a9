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
// stays unknown. Resend gives the first answer again, and Brevo one without ids.
func TestOutcomeIsSettledByRepeat(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		for _, kind := range []string{simulator.Resend, simulator.Brevo} {
			t.Run(kind, func(t *testing.T) { settledByRepeat(t, b, kind) })
		}
	})
}

func settledByRepeat(t *testing.T, b testkit.Backend, kind string) {
	const n = 250
	// The keys of Brevo are kept for minutes, which must not pass faster here than for the product.
	r := newRig(t, b, simulator.Options{TimeScale: 1}, "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=10m")
	require.NoError(t, r.sim.AddAccount(simulator.Account{Name: "keyed", Kind: kind, Key: "re_test"}))
	r.env = append(r.env,
		"SAFEDELIVR_PROVIDERS_KEYED_KIND="+kind,
		"SAFEDELIVR_PROVIDERS_KEYED_API_KEY=re_test",
		"SAFEDELIVR_PROVIDERS_KEYED_BASE_URL="+r.api+"/keyed",
		"SAFEDELIVR_PROVIDERS_KEYED_EVENTS=none",
		"SAFEDELIVR_PROVIDERS_KEYED_TIMEOUT=2s")
	lost := r.sim.Inject(simulator.Fault{Account: "keyed", Mode: simulator.ModeAcceptThenClose})
	p := r.start(r.addr, nil, "serve")
	id := r.post(mail{n: n, providers: []string{"keyed", "sg", "mg"}})
	copied := func() bool { return r.sim.Stats("keyed").Copies == n }
	require.Eventually(t, copied, testkit.Patience, 20*time.Millisecond)
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
}
