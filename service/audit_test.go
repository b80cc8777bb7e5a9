package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestOrderedBefore: an order is found however many came after it, and what was
// never ordered is not.
func TestOrderedBefore(t *testing.T) {
	t.Parallel()
	f := newOrderRig(t)
	line := func(c models.Command) {
		t.Helper()
		c.Number, c.Token, c.At = f.journal.Rules().UpTo()+1, models.NewToken(), time.Now()
		require.NoError(t, f.store.AppendCommand(t.Context(), c))
		require.NoError(t, f.journal.Sync(t.Context()))
	}
	line(models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: "b"}})
	line(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "c", Domain: "example.com"}})
	for range 2*journalPage + 100 {
		line(models.Command{Kind: models.RevokedKey, Subject: "k"})
	}
	boss := Caller{By: "boss", Operator: true}
	changed, err := f.RemoveBlock(t.Context(), boss, "b", "")
	require.NoError(t, err)
	require.False(t, changed)
	changed, err = f.RemoveBlock(t.Context(), boss, "c", "")
	require.NoError(t, err)
	require.True(t, changed)
	_, err = f.RemoveBlock(t.Context(), boss, "k", "")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, NotFound, e.Kind)
}
