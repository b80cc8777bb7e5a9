package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// everyones returns the entries of everyone's suppression list, by address.
func (r *rig) everyones(operator *client.Client) map[string]client.Suppression {
	r.t.Helper()
	out := map[string]client.Suppression{}
	for s, err := range operator.Suppressions(r.t.Context(), client.SuppressionOptions{Everyone: true}) {
		require.NoError(r.t, err)
		out[s.Email] = s
	}
	return out
}

// TestProvidersListsAreRead: an address that a provider has on its list before anything is sent is suppressed
// after a round: no provider is called for it. One that a provider drops goes to no other.
func TestProvidersListsAreRead(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{Suppress: true}, "SAFEDELIVR_TIMES_PROVIDER_LISTS=300ms")
		at := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
		require.NoError(t, r.sim.Suppress("sg", simulator.Suppressed{
			Address: "known@demo.test", List: "bounces", At: at, Status: "5.1.1", Text: "550 5.1.1 unknown"}))
		require.NoError(t, r.sim.Suppress("mg", simulator.Suppressed{Address: "angry@demo.test", List: "complaints", At: at}))
		operator := r.clientWith(strings.TrimSpace(r.command("key", "add", "tester", "--scope", "send,read,operate")))
		r.serveHere()
		var list map[string]client.Suppression
		require.Eventually(t, func() bool {
			list = r.everyones(operator)
			return len(list) == 2
		}, testkit.Patience, 50*time.Millisecond)
		require.Equal(t, client.Suppression{Email: "known@demo.test", Reason: "hard_bounce",
			ReasonText: models.HardBounce.Words(), Origin: "provider", By: "sg", Why: "bounces: 550 5.1.1 unknown", At: at},
			list["known@demo.test"])
		require.Equal(t, "mg", list["angry@demo.test"].By)

		addresses := []string{"Known@demo.test", "angry@demo.test", "ann@demo.test", "suppressed-bounce-sg@demo.test"}
		id := r.post(mail{n: len(addresses), providers: []string{"sg", "mg"},
			address: func(i int) string { return addresses[i] }})
		r.done(id)
		for i, l := range r.logs(id, "") {
			if l.Email == "ann@demo.test" {
				require.Equal(t, client.Success, l.State)
				continue
			}
			require.Equal(t, client.Failed, l.State, "%+v", l)
			require.Equal(t, string(models.Suppressed), l.Reason, "%+v", l)
			dropped := strings.HasPrefix(l.Email, "suppressed-bounce")
			copies := r.sim.Copies(l.ID)
			require.Equal(t, dropped, len(copies) == 1, "%d %s: %+v", i, l.Email, copies)
			if dropped {
				require.Equal(t, "sg", copies[0].Account)
			}
		}
		r.statsAgree(id)
	})
}
