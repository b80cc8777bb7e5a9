package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestInOrder: an event that is stamped in whole seconds follows the answer to
// its attempt, and a delivery the beginning of it.
func TestInOrder(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, 1, 31, 12, 0, 10, 0, time.UTC)
	at := func(ms int) time.Time { return second.Add(time.Duration(ms) * time.Millisecond) }
	story := []models.Moment{{What: "accepted", At: at(100)}, {What: "attempt", Attempt: 1, At: at(300)},
		{
			What:    "event",
			Event:   models.Delivered,
			Attempt: 1,
			At:      second,
		}, {What: "event", Event: models.Processed, Attempt: 1, At: second},
		{What: "answer", Attempt: 1, At: at(400)}, {What: "event", Event: models.Opened, Attempt: 1, At: at(60_000)}}
	inOrder(story)
	var got []string
	for _, m := range story {
		got = append(got, m.What+string(m.Event))
	}
	require.Equal(t, []string{"accepted", "attempt", "answer", "eventprocessed", "eventdelivered", "eventopened"}, got)
}
