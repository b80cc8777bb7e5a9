package dashboard

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/attention"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// TestNoWorkerIsShown: without a worker mail is accepted and waits, and the pages of operators say so.
func TestNoWorkerIsShown(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	gone := []byte("null!") // the rig's report; what cannot be read says nothing
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "w", gone, time.Hour))
	b := f.byLink(login.LocalUser())
	b.live("/live/overview").until("No worker is running")
	b.live("/live/operations?page=").until("No worker is running")
	require.NotContains(t, b.get("/").text, "Nothing needs your attention")
}

// TestOutageOfAllProviders: one banner says that no provider accepts mail, how much waits and when the next attempt is.
func TestOutageOfAllProviders(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	var state telemetry.WorkerState
	since := time.Now().UTC().Add(-time.Minute)
	for _, name := range []string{"sg", "mg"} {
		state.Providers = append(state.Providers, telemetry.ProviderState{Name: name, Health: telemetry.Health{
			State: telemetry.Suspended, Since: since, Until: since.Add(2 * time.Minute), Failures: 7, LastError: "503",
		}})
	}
	raw, err := json.Marshal(state)
	require.NoError(t, err)
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Hour))
	f.mixed("local", 12)
	b := f.byLink(login.LocalUser())
	b.live("/live/overview").until("No provider accepts mail")
	banner, err := attention.New(f.service).Of(t.Context(), service.Caller{User: "local", Operator: true, Everyone: true},
		nil, nil, &client.Counts{})
	require.NoError(t, err)
	at := slices.IndexFunc(banner, func(a attention.Attention) bool { return a.Title == "No provider accepts mail" })
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, since.Add(2*time.Minute), banner[at].Next)
	require.Regexp(t, `\d+ messages? waits? \(\d+ urgent, the oldest for`, banner[at].Text)
	require.Contains(t, textOf(b.get("/operations").text), "No provider accepts mail")
}

// TestOverviewOfOthersMail: an operator who has not sent sees how much mail others have sent. The first steps are shown
// only if no user has sent.
func TestOverviewOfOthersMail(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	require.NoError(t, f.store.CreateUser(t.Context(), models.User{ID: "shop", Name: "shop", Created: time.Now()}))
	b := f.byLink(login.LocalUser())
	const steps = "Send your first message in three steps"
	require.Contains(t, b.get("/").text, steps)
	f.mixed("shop", 12)
	require.NotContains(t, b.get("/").text, steps)
	require.Contains(t, textOf(b.get("/").text), "12 messages of 1 user in the last 30 days")
	b.post("/everyone", nil) // mine
	text := b.get("/").text
	require.NotContains(t, text, steps)
	require.Contains(t, textOf(text), "You have not sent yet. Others have: 12 messages of 1 user.")
}
