package rollup

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestChangingSumIsNotReported: a sum is not reported while it or its recount changes. It
// is reported if it differs for a while without a change.
func TestChangingSumIsNotReported(t *testing.T) {
	t.Parallel()
	s, now := &Rollup{log: slog.New(slog.DiscardHandler)}, time.Now()
	var w Round
	chunk := func(version int64) []Difference {
		return []Difference{
			{What: "chunk", ID: "a", Shown: models.Summary{Version: 1}, Counted: models.Summary{Version: version}},
		}
	}
	for version := range int64(5) {
		s.judge(&w, chunk(2+version), now)
		require.Zero(t, w.lasting())
		now = now.Add(settleRounds)
	}
	require.Len(t, s.judge(&w, chunk(6), now), 1, "it is out of date: it is renewed once")
	require.Zero(t, w.lasting())
	now = now.Add(settleRounds)
	require.Empty(t, s.judge(&w, chunk(6), now))
	require.Equal(t, 1, w.lasting(), "renewing it did not help")
	s.judge(&w, nil, now)
	require.Zero(t, w.lasting())
	s.judge(&w, []Difference{{What: "chunk", ID: "b", Damaged: "torn"}}, now)
	require.Equal(t, 1, w.lasting(), "a record that cannot be read is reported at once")
	var many []Difference
	for range 2 * maxSuspects {
		many = append(many, Difference{What: "chunk", ID: models.NewBatchID(now).String()})
	}
	s.judge(&w, many, now)
	require.Len(t, w.Suspects, maxSuspects)
}
