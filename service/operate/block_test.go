package operate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestRepeatedRemoval: the removal of a block rule succeeds again if the rule was removed
// before, however many commands followed. It fails for a rule that never existed.
func TestRepeatedRemoval(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	f := newInstallation(store, inproctest.New(t, "sg"), "sg")
	add := func(c models.Command) {
		t.Helper()
		c.Number, c.Token, c.At = f.Audit.Follower.Rules().UpTo()+1, models.NewToken(), time.Now()
		require.NoError(t, store.AppendCommand(t.Context(), c))
		require.NoError(t, f.Audit.Follower.Sync(t.Context()))
	}
	add(models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: "b"}})
	add(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "c", Domain: "example.com"}})
	for range 1100 {
		add(models.Command{Kind: models.RevokedKey, Subject: "k"})
	}
	changed, err := f.RemoveBlock(t.Context(), operator, "b", "")
	require.NoError(t, err)
	require.False(t, changed)
	changed, err = f.RemoveBlock(t.Context(), operator, "c", "")
	require.NoError(t, err)
	require.True(t, changed)
	_, err = f.RemoveBlock(t.Context(), operator, "k", "")
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, problem.NotFound, e.Kind)
}
