package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestEventsByAddress: a provider reports the events of a batch with its chunk and an address alone. Each of them finds
// its mail.
func TestEventsByAddress(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const n = 60
		r := newRig(t, b, simulator.Options{NoVersionHeaders: true})
		require.NoError(t, r.sim.AddAccount(simulator.Account{Name: "br", Kind: simulator.Brevo, Key: "xkeysib-k",
			SigningKey: "a-bearer-token", WebhookURL: "http://" + r.addr + "/webhooks/br"}))
		r.env = append(r.env,
			"SAFEDELIVR_PROVIDERS_BR_KIND=brevo",
			"SAFEDELIVR_PROVIDERS_BR_API_KEY=xkeysib-k",
			"SAFEDELIVR_PROVIDERS_BR_BASE_URL="+r.api+"/br",
			"SAFEDELIVR_PROVIDERS_BR_WEBHOOK_KEY=a-bearer-token")
		r.start(r.addr, nil, "serve")
		id := r.post(mail{n: n, providers: []string{"br"}})
		done := r.done(id)
		require.EqualValues(t, n, done.Counts.Delivered)
		require.Zero(t, r.exactlyOnce(id, n))
	})
}
