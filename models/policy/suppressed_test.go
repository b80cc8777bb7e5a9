package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestSuppressedByProviders: a bounce that one provider remembers does not keep another one from the mail. If two
// remember one, the mail ends, although a third was not tried.
func TestSuppressedByProviders(t *testing.T) {
	t.Parallel()
	p := New(Config{MaxRetries: 10, Delays: []time.Duration{time.Second}, FinalEventWait: time.Hour},
		[]models.Provider{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	attempt := func(n int, provider string) models.Entry {
		return models.Entry{
			Number: n, Kind: models.Attempt, At: at, Recipients: models.SetOf(1), Provider: provider, CallEnds: at,
		}
	}
	dropped := func(n int, provider string, reason models.Reason) models.Fact {
		return models.Fact{Key: provider, Events: []models.Event{
			{ID: provider, Recipient: 1, Attempt: n, Provider: provider, Kind: models.Dropped, Reason: reason, At: at},
		}}
	}
	plan := func(second models.Reason, n int) Step {
		entries := []models.Entry{attempt(1, "a"), attempt(2, "b")}
		facts := []models.Fact{dropped(1, "a", models.SuppressedBounce), dropped(2, "b", second)}
		b := &models.Batch{Content: models.Content{From: models.Address{Email: "a@b.c"}}, ExpiresAt: at.Add(time.Hour)}
		v := models.Resolve(1, entries[:n], facts[:n])
		steps := p.Plan(v, b, &Commands{Rules: control.NewFollower(nil).Rules()}, at)
		require.Len(t, steps, 1)
		return steps[0]
	}
	st := plan("", 1)
	require.Equal(t, Call, st.Do)
	require.Equal(t, []Option{{Provider: "b"}, {Provider: "c"}}, st.Options)
	require.Equal(t, "a reported: "+models.SuppressedBounce.Words(), st.Because)

	st = plan(models.DNSOrConnect, 2)
	require.Equal(t, []Option{{Provider: "c"}}, st.Options)

	st = plan(models.SuppressedBounce, 2)
	require.Equal(t, End, st.Do)
	require.Equal(t, models.NoProviderLeft, st.Reason)
	require.Equal(t, "b reported: "+models.SuppressedBounce.Words(), st.Detail)
}
