package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestUntriedProviderIsTriedAtOnce: the provider that was not tried is first and waits for nothing. The time until the
// expiry, and the time that the refusing provider named, change nothing about that. Mail with an unknown outcome goes
// to no other provider because time is short.
func TestUntriedProviderIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	p := New(Config{
		MaxRetries: 10, Delays: []time.Duration{time.Minute}, EvidenceWindow: time.Hour,
	}, []models.Provider{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	at := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	now := at.Add(time.Millisecond)
	plan := func(left time.Duration, part models.Part) Step {
		t.Helper()
		part.Recipients = models.SetOf(1)
		facts := []models.Fact{
			{Key: models.OutcomeKey(1), Outcome: &models.Outcome{Attempt: 1, At: at, Parts: []models.Part{part}}},
		}
		entries := []models.Entry{
			{Number: 1, Kind: models.Attempt, At: at, Recipients: models.SetOf(1), Provider: "a", CallEnds: at},
		}
		b := &models.Batch{ExpiresAt: now.Add(left)}
		b.Content.From.Email = "a@b.c"
		steps := p.Plan(models.Resolve(1, entries, facts), b, &Commands{Rules: control.NewFollower(nil).Rules()}, now)
		require.Len(t, steps, 1)
		return steps[0]
	}
	for _, left := range []time.Duration{7 * 24 * time.Hour, time.Hour, time.Minute, time.Second, 2 * time.Millisecond} {
		for _, class := range []models.Class{models.Unavailable, models.Throttled, models.AccountClass} {
			st := plan(left, models.Part{Class: class, RetryAt: at.Add(24 * time.Hour)})
			require.Equal(t, Call, st.Do, "%s %s", left, class)
			require.Equal(t, []Option{{Provider: "b"}, {Provider: "c"}}, st.Options[:2], "%s %s", left, class)
			require.Equal(t, "a", st.Options[2].Provider)
			require.True(t, st.Options[2].NotBefore.After(now))
			require.True(t, st.Earliest().IsZero())
		}
		st := plan(left, models.Part{Class: models.Unknown})
		require.Equal(t, Wait, st.Do, left)
		require.Equal(t, models.WaitEvidence, st.Waits.Code)
	}
}
