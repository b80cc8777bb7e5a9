package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// everyones returns the entries of everyone's suppression list, by address.
func (r *rig) everyones(operator *client.Client) map[string]client.Suppression {
	r.t.Helper()
	out := map[string]client.Suppression{}
	for s, err := range operator.ListSuppressions(r.t.Context(), "", "", "", client.ListOptions{}, client.Everyone()) {
		require.NoError(r.t, err)
		out[s.Email] = s
	}
	return out
}

// TestProvidersListsAreRead: an address that a provider has on its list before anything is sent is suppressed
// after a round: no provider is called for it.
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

		addresses := []string{"Known@demo.test", "angry@demo.test", "ann@demo.test"}
		id := r.post(mail{n: len(addresses), providers: []string{"sg", "mg"},
			address: func(i int) string { return addresses[i] }})
		r.done(id)
		for i, l := range r.logs(id, "") {
			if l.Email == "ann@demo.test" {
				require.Equal(t, client.Delivered, l.State)
				continue
			}
			require.Equal(t, client.Failed, l.State, "%+v", l)
			require.Equal(t, string(models.Suppressed), l.Reason, "%+v", l)
			require.Empty(t, r.sim.Copies(l.ID), "%d %s", i, l.Email)
		}
		r.statsAgree(id)
		r.clearedIsAccepted(operator, "known@demo.test")
	})
}

// clearedIsAccepted removes an address from everyone's list, on which it was put because sg suppresses it. sg still
// does, so that its mail goes through mg, until the address is cleared at sg.
func (r *rig) clearedIsAccepted(operator *client.Client, address string) {
	r.t.Helper()
	ctx := r.t.Context()
	_, err := operator.RemoveSuppressions(ctx, address, "", "", "it works now", client.Everyone())
	require.NoError(r.t, err)
	sentThrough := func() string {
		r.t.Helper()
		id := r.post(mail{n: 1, providers: []string{"sg", "mg"}, address: func(int) string { return address }})
		r.done(id)
		l := r.logs(id, "")[0]
		require.Equal(r.t, client.Delivered, l.State, "%+v", l)
		for _, c := range r.sim.Copies(l.ID) {
			if c.Outcome == "deliver" {
				return c.Account
			}
		}
		return ""
	}
	require.Equal(r.t, "mg", sentThrough())
	listed := func() (out []client.ProviderSuppression) {
		r.t.Helper()
		for e, err := range operator.ListProviderSuppressions(ctx, "sg", client.ListOptions{}) {
			require.NoError(r.t, err)
			if e.Email == address {
				out = append(out, e)
			}
		}
		return out
	}
	es := listed()
	require.Len(r.t, es, 1)
	require.Equal(r.t, "it works now", es[0].RemovedWhy)
	require.NoError(r.t, operator.ClearProviderSuppression(ctx, "sg", address, "", "it works now"))
	require.Empty(r.t, listed())
	require.Equal(r.t, "sg", sentThrough())
}
