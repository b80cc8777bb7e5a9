package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestRepeatedCallIsAccepted: an acceptance counts, also if another answer to the attempt became known later.
func TestRepeatedCallIsAccepted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	who := models.SetTo(2)
	answer := func(after time.Duration, class models.Class, reason models.Reason) models.Outcome {
		return models.Outcome{Attempt: 1, At: at.Add(after),
			Parts: []models.Part{{Class: class, Reason: reason, Recipients: who}}}
	}
	outcomes := []models.Outcome{
		answer(3*time.Minute, models.Accepted, ""), answer(4*time.Minute, models.Unavailable, models.StartByPassed),
	}
	for _, known := range [][]models.Outcome{outcomes, {outcomes[1], outcomes[0]}} {
		calls := callsOf(&Record{Outcomes: known, Entries: []models.Entry{
			{Number: 1, Kind: models.Attempt, Provider: "a", Recipients: who, At: at, CallEnds: at.Add(time.Minute)},
			{Number: 2, Kind: models.Repeat, Repeats: 1, Provider: "a", Recipients: who, At: at.Add(2 * time.Minute)},
		}}, 0, at.Add(time.Hour), map[string]Open{})
		require.Len(t, calls, 1)
		require.EqualValues(t, 2, calls[0].accepted)
	}
}
