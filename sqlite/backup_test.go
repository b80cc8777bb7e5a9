package sqlite

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
)

// TestBackup copies a store while batches are written. The copy has a beginning of them
// without gaps, and only its owner may read it.
func TestBackup(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	s := openStore(t, dir)
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	user, first := models.NewUserID(), make(chan struct{})
	count := 0
	writers.Go(func() {
		for ; ctx.Err() == nil; count++ {
			b, chunk := storetest.SampleBatch(1)
			b.User = user
			require.NoError(t, s.PutBatch(t.Context(), b, chunk))
			if count == 20 {
				close(first)
			}
		}
	})
	<-first
	before, err := s.BatchIDs(t.Context(), user, models.ID{}, 1<<20)
	require.NoError(t, err)
	size, err := Backup(t.Context(), dir, to, func(_, _ int64) {})
	require.NoError(t, err)
	stop()
	writers.Wait()
	info, err := os.Stat(filepath.Join(to, databaseFile))
	require.NoError(t, err)
	require.Equal(t, size, info.Size())
	require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	_, err = Backup(t.Context(), dir, to, func(_, _ int64) {})
	require.ErrorIs(t, err, fs.ErrExist)

	c := openStore(t, to)
	copied, err := c.BatchIDs(t.Context(), user, models.ID{}, 1<<20)
	require.NoError(t, err)
	all, err := s.BatchIDs(t.Context(), user, models.ID{}, 1<<20)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(copied), len(before))
	require.Subset(t, all, copied)
	for _, id := range copied {
		_, err := c.Recipients(t.Context(), id)
		require.NoError(t, err)
	}
}

// TestBackupOfNothing: a folder without a database is not copied, and what a backup that
// failed has written is removed.
func TestBackupOfNothing(t *testing.T) {
	to := t.TempDir()
	_, err := Backup(t.Context(), t.TempDir(), filepath.Join(to, "copy"), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	dir := t.TempDir()
	require.NoError(t, openStore(t, dir).PutTransient(t.Context(), "k", "n", fmt.Append(nil, "v"), time.Hour))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Backup(ended, dir, filepath.Join(to, "copy"), func(_, _ int64) {})
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Empty(t, left)
}
