package walk

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// days is a store with sums of days.
type days struct {
	Store
	accepted map[time.Time]int64
}

func (d days) Nodes(_ context.Context, user string, l models.Level, from, to time.Time) (out []models.Node, err error) {
	for at := from; at.Before(to); at = at.Add(l.Length()) {
		if n := d.accepted[at]; n > 0 {
			out = append(out, models.Node{Span: models.SpanOf(user, l, at), Summary: models.Summary{Accepted: n}})
		}
	}
	return out, nil
}

// TestOldDaysAreCountedOnceAMinute: a list that is counted again and again reads the days before yesterday once a
// minute, and the others each time.
func TestOldDaysAreCountedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		today := models.DayOf(time.Now())
		old, yesterday := today.AddDate(0, 0, -2), today.AddDate(0, 0, -1)
		store, counts := days{accepted: map[time.Time]int64{old: 100, yesterday: 10, today: 1}}, NewCounts(time.Second)
		count := func(list string) int64 {
			c := Counter{List: list, Of: func(s *models.Summary) (int64, bool) { return s.Accepted, true }}
			n, known, err := counts.Count(t.Context(), store, Span{User: "ada", First: old, Last: today.AddDate(0, 0, 1)}, c)
			require.NoError(t, err)
			require.True(t, known)
			return n
		}
		require.EqualValues(t, 111, count("logs"))
		store.accepted[old], store.accepted[yesterday], store.accepted[today] = 200, 20, 2
		require.EqualValues(t, 122, count("logs"))
		require.EqualValues(t, 222, count("failed"), "another list")
		time.Sleep(countedFor)
		require.EqualValues(t, 222, count("logs"))
	})
}
