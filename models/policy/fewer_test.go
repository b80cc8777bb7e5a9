package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestTooManyRecipients: mail of a call that had too many recipients goes to the same provider in smaller calls, and to
// another one only if that one cannot take it. The smaller calls are no retries.
func TestTooManyRecipients(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	refused := models.Part{Class: models.RejectedHereClass, Status: 403}
	fewer := func(n int) models.Part { p := refused; p.Fewer = n; return p }
	for name, c := range map[string]struct {
		parts     []models.Part // of the calls so far, through a
		elsewhere bool          // the last one was through b
		together  bool
		named     []string // providers of the batch
		want      []Option
		retry     int
	}{
		"in parts": {[]models.Part{fewer(500)}, false, false, nil, []Option{{Provider: "a", Most: 500}, {Provider: "b"}}, 0},
		"in parts again": {[]models.Part{fewer(500), fewer(250)}, false, false, nil,
			[]Option{{Provider: "a", Most: 250}, {Provider: "b"}}, 0},
		"then another":    {[]models.Part{fewer(1), refused}, false, false, nil, []Option{{Provider: "b"}}, 1},
		"after another":   {[]models.Part{fewer(500), refused}, true, false, nil, []Option{{Provider: "a", Most: 500}}, 2},
		"cannot be taken": {[]models.Part{fewer(500)}, false, false, []string{"b"}, []Option{{Provider: "b"}}, 1},
		"one mail to all": {[]models.Part{fewer(500)}, false, true, nil, []Option{{Provider: "b"}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New(Config{MaxRetries: 5, Delays: []time.Duration{time.Minute}}, []models.Provider{
				{Name: "a", Carries: models.Capabilities{Copies: true}},
				{Name: "b", Carries: models.Capabilities{Copies: true}},
			})
			var entries []models.Entry
			var facts []models.Fact
			for i, part := range c.parts {
				part.Recipients = models.SetTo(1000)
				through := "a"
				if c.elsewhere && i == len(c.parts)-1 {
					through = "b"
				}
				entries = append(entries, models.Entry{Number: i + 1, Kind: models.Attempt, Provider: through, At: at, CallEnds: at,
					Recipients: part.Recipients, Together: c.together})
				facts = append(facts, models.Fact{Key: models.OutcomeKey(i + 1), Outcome: &models.Outcome{
					Attempt: i + 1, At: at, Parts: []models.Part{part}}})
			}
			rules := control.NewFollower(nil).Rules()
			b := &models.Batch{ExpiresAt: at.Add(time.Hour)}
			if c.together {
				b.Envelope = &models.Envelope{CC: 999}
			}
			b.Providers = c.named
			steps := p.Plan(models.Resolve(1000, entries, facts), b, &Commands{Rules: rules}, at)
			require.Len(t, steps, 1)
			require.Equal(t, Call, steps[0].Do)
			require.Equal(t, c.want, steps[0].Options)
			require.Equal(t, c.retry, steps[0].Retry)
			require.Zero(t, steps[0].Split)
			require.NotEmpty(t, steps[0].Because)
		})
	}
}
