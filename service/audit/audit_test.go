package audit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestFind: filters select by who, what and when, over all pages and across removed
// commands.
func TestFind(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := New(Deps{Store: store, Follower: control.NewFollower(store), Sole: true})
	day := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	const all = 1500
	for n := 1; n <= all; n++ {
		c := models.Command{
			Number: n,
			Token:  models.NewToken(),
			At:     day.Add(time.Duration(n/500) * 24 * time.Hour),
			By:     "ann",
			Kind:   models.RevokedKey,
		}
		if n%100 == 0 {
			c.By, c.Kind = "bob", models.CreatedKey
		}
		require.NoError(t, store.AppendCommand(t.Context(), c))
	}
	require.NoError(t, s.Follower.Sync(t.Context()))
	find := func(filter Filter) (numbers []int) {
		t.Helper()
		cursor := ""
		for range 1000 {
			page, err := s.Find(t.Context(), caller.Caller{Operator: true}, filter, operation.Page{Limit: 4, Cursor: cursor})
			require.NoError(t, err)
			for _, c := range page.Commands {
				numbers = append(numbers, c.Number)
			}
			if cursor = page.Next; cursor == "" {
				return numbers
			}
		}
		t.Fatal("the pages do not end")
		return nil
	}
	require.Len(t, find(Filter{}), all)
	bob := func(by string) bool { return by == "bob" }
	require.Equal(
		t,
		[]int{1500, 1400, 1300, 1200, 1100, 1000, 900, 800, 700, 600, 500, 400, 300, 200, 100},
		find(Filter{By: bob}),
	)
	require.Equal(t, []int{900, 800, 700, 600, 500}, find(Filter{Command: models.CreatedKey, Day: "2026-02-01"}))
	require.Len(t, find(Filter{Day: "2026-01-31"}), 499)
	require.Empty(t, find(Filter{Day: "2025-01-31"}))
	require.NoError(t, store.PutRules(t.Context(), all, []byte(`{}`)))
	require.NoError(t, store.DropCommands(t.Context(), 1250))
	require.Equal(t, []int{1500, 1400, 1300}, find(Filter{By: bob}))
	require.Len(t, find(Filter{}), all-1250)
	_, err := s.Find(t.Context(), caller.Caller{Operator: true}, Filter{Day: "x"}, operation.Page{})
	require.Error(t, err)
}
