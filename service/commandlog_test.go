package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestRepeatedRemoval: the removal of a block rule succeeds again if the rule was removed
// before, however many commands followed. It fails for a rule that never existed.
func TestRepeatedRemoval(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
	add := func(c models.Command) {
		t.Helper()
		c.Number, c.Token, c.At = f.commandLog.Rules().UpTo()+1, models.NewToken(), time.Now()
		require.NoError(t, f.store.AppendCommand(t.Context(), c))
		require.NoError(t, f.commandLog.Sync(t.Context()))
	}
	add(models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: "b"}})
	add(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "c", Domain: "example.com"}})
	for range 2*commandPage + 100 {
		add(models.Command{Kind: models.RevokedKey, Subject: "k"})
	}
	changed, err := f.RemoveBlock(t.Context(), operator, "b", "")
	require.NoError(t, err)
	require.False(t, changed)
	changed, err = f.RemoveBlock(t.Context(), operator, "c", "")
	require.NoError(t, err)
	require.True(t, changed)
	_, err = f.RemoveBlock(t.Context(), operator, "k", "")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, NotFound, e.Kind)
}

// TestFindAudit: filters select by who, what and when, over all pages and across removed
// commands.
func TestFindAudit(t *testing.T) {
	t.Parallel()
	f := newCommandRig(t)
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
		require.NoError(t, f.store.AppendCommand(t.Context(), c))
	}
	require.NoError(t, f.commandLog.Sync(t.Context()))
	find := func(filter AuditFilter) (numbers []int) {
		t.Helper()
		cursor := ""
		for range 1000 {
			page, err := f.FindAudit(t.Context(), operator, filter, Page{Limit: 4, Cursor: cursor})
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
	require.Len(t, find(AuditFilter{}), all)
	bob := func(by string) bool { return by == "bob" }
	require.Equal(
		t,
		[]int{1500, 1400, 1300, 1200, 1100, 1000, 900, 800, 700, 600, 500, 400, 300, 200, 100},
		find(AuditFilter{By: bob}),
	)
	require.Equal(t, []int{900, 800, 700, 600, 500}, find(AuditFilter{Command: models.CreatedKey, Day: "2026-02-01"}))
	require.Len(t, find(AuditFilter{Day: "2026-01-31"}), 499)
	require.Empty(t, find(AuditFilter{Day: "2025-01-31"}))
	require.NoError(t, f.store.PutRules(t.Context(), all, []byte(`{}`)))
	require.NoError(t, f.store.DropCommands(t.Context(), 1250))
	require.Equal(t, []int{1500, 1400, 1300}, find(AuditFilter{By: bob}))
	require.Len(t, find(AuditFilter{}), all-1250)
	_, err := f.FindAudit(t.Context(), operator, AuditFilter{Day: "x"}, Page{})
	require.Error(t, err)
}
