package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// attemptAt returns an attempt that began ms milliseconds after flowBegin.
func attemptAt(n int, ms int, provider string, recipients models.Set, because string) models.Entry {
	return models.Entry{
		Number:     n,
		Kind:       models.Attempt,
		At:         flowBegin.Add(time.Duration(ms) * time.Millisecond),
		Provider:   provider,
		Recipients: recipients,
		Because:    because,
	}
}

var flowBegin = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// TestRefusedCalls: a call was refused if all of its mails needed another attempt. A call
// was accepted if some of them did not.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	var f Flow
	f.fill(callsOf([]models.Entry{
		attemptAt(1, 0, "sg", models.SetTo(10), ""),
		attemptAt(2, 100, "mg", models.SetOf(3), "sg reported: blocked"), // one of ten mails, later
		attemptAt(3, 1000, "sg", models.SetOf(11, 12), ""),
		attemptAt(4, 1200, "mg", models.SetOf(11, 12), "sg answered 503"),
		attemptAt(5, 1500, "sg", models.SetOf(13, 14), ""),
		attemptAt(6, 2500, "sg", models.SetOf(13), "sg answered 503"), // the same provider again
		attemptAt(7, 2600, "mg", models.SetOf(14), "sg answered 503"),
		{Number: 8, Kind: models.Ending, At: flowBegin, Recipients: models.SetOf(3)},
	}), 2)
	require.Equal(t, flowBegin, f.From)
	require.Equal(t, 250*time.Millisecond, f.Step)
	require.Len(t, f.Providers, 2)
	mg, sg := f.Providers[0], f.Providers[1]
	require.Equal(t, "mg", mg.Provider)
	require.InDelta(t, 10*2*4, sg.Taken[0], 0.01, "ten mails, scaled up, in a quarter of a second")
	require.InDelta(t, 2*2*4, sg.Refused[4], 0.01)
	require.InDelta(t, 2*2*4, mg.Taken[4], 0.01)
	require.Equal(
		t,
		[]Trouble{
			{Provider: "sg", From: flowBegin.Add(time.Second), To: flowBegin.Add(1500 * time.Millisecond), Refused: 8, Moved: 4,
				Failover: 200 * time.Millisecond, Through: []string{"mg"}, Because: "sg answered 503", Over: true},
		},
		f.Troubles,
	)
}

func TestFlowWithoutCalls(t *testing.T) {
	t.Parallel()
	var f Flow
	f.fill(nil, 1)
	require.Equal(t, Flow{}, f)
}

// TestNumberOfSteps: a flow has at most maxSteps+1 steps, however long the batch took.
func TestNumberOfSteps(t *testing.T) {
	t.Parallel()
	for _, span := range []time.Duration{0, time.Second, time.Minute, time.Hour, 7 * 24 * time.Hour} {
		var f Flow
		f.fill([]call{{at: flowBegin, provider: "sg", mails: 1}, {at: flowBegin.Add(span), provider: "sg", mails: 1}}, 1)
		require.LessOrEqual(t, len(f.Providers[0].Taken), maxSteps+1, span)
	}
}
