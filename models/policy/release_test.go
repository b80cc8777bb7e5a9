package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// TestReleaseAppliesToOneRecipient: one recipient was released although it may double,
// its neighbour because that was safe, and both went out in the same calls. When an
// event shows that a provider has both, only the first may be sent again.
func TestReleaseAppliesToOneRecipient(t *testing.T) {
	t.Parallel()
	p := &Policy{
		cfg: Config{
			MaxRetries:     10,
			FinalEventWait: time.Hour,
			Delays:         []time.Duration{time.Second},
			Recheck:        time.Minute,
		},
		names: []string{"sg", "mg"},
	}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	both, entry := models.SetTo(2), func(n int, k models.EntryKind, who models.Set) models.Entry {
		return models.Entry{Number: n, Kind: k, At: at, Recipients: who, Provider: "sg", CallEnds: at}
	}
	release := entry(3, models.Release, models.SetOf(1))
	release.MayDouble = true
	entries := []models.Entry{
		entry(1, models.Attempt, both),
		entry(2, models.Ending, both),
		release,
		entry(4, models.Release, models.SetOf(2)),
		entry(5, models.Attempt, both),
	}
	refused := func(n int) models.Fact {
		return models.Fact{
			Key:     models.OutcomeKey(n),
			Outcome: &models.Outcome{Attempt: n, At: at, Parts: []models.Part{{Class: models.Unavailable, Recipients: both}}},
		}
	}
	late := models.Fact{
		Key: "e1",
		Events: []models.Event{
			{ID: "1", Recipient: 1, Attempt: 1, Provider: "sg", Kind: models.Processed, At: at},
			{ID: "2", Recipient: 2, Attempt: 1, Provider: "sg", Kind: models.Processed, At: at},
		},
	}
	v := models.Resolve(2, entries, []models.Fact{refused(1), refused(5), late})
	steps := p.Plan(
		v,
		&models.Batch{Content: models.Content{From: models.Address{Email: "a@b.c"}}},
		&Commands{Rules: control.NewFollower(nil).Rules()},
		at.Add(time.Minute),
	)
	require.Len(t, steps, 2)
	require.Equal(t, Call, steps[0].Do)
	require.Equal(t, models.SetOf(1), steps[0].Recipients)
	require.Equal(t, Wait, steps[1].Do, "its provider has it")
}

// TestNothingIsSentForGuess: a bounce with nothing but an address ends a log. The same
// bounce of a known attempt is cured by another provider.
func TestNothingIsSentForGuess(t *testing.T) {
	t.Parallel()
	p := &Policy{cfg: Config{MaxRetries: 10, Delays: []time.Duration{time.Second}}, names: []string{"sg", "mg"}}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	entry := models.Entry{Number: 1, Kind: models.Attempt, At: at, Recipients: models.SetTo(2), Provider: "sg"}
	blocked := func(r int, guess bool) models.Event {
		return models.Event{ID: "e", Recipient: r, Attempt: 1, Provider: "sg", Kind: models.Blocked,
			Reason: models.PolicyReputation, At: at, Guess: guess}
	}
	facts := []models.Fact{{Key: "e", Events: []models.Event{blocked(1, true), blocked(2, false)}}}
	steps := p.Plan(
		models.Resolve(2, []models.Entry{entry}, facts),
		&models.Batch{Content: models.Content{From: models.Address{Email: "a@b.c"}}},
		&Commands{Rules: control.NewFollower(nil).Rules()},
		at,
	)
	require.Len(t, steps, 2)
	require.Equal(t, End, steps[0].Do)
	require.Equal(t, models.PolicyReputation, steps[0].Reason)
	require.Equal(t, Call, steps[1].Do)
}
