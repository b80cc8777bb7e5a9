package sqlite

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
	"github.com/safedelivr/safedelivr/store/shapes/shapestest"
)

func TestShapes(t *testing.T) {
	shapestest.Run(t, func(t *testing.T) (shapes.Engine, []*shapes.Table) { return newStore(t).engine, store.Tables() })
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) models.Store { return newStore(t) })
	storetest.RunProcesses(t, processes)
}

// processes returns one store for all processes, because only one process can open a
// folder.
func processes(t *testing.T) storetest.Processes {
	var off atomic.Int64
	s, err := Open(t.TempDir(), Options{Options: store.Options{
		Now: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	by := func(d time.Duration) models.Store {
		off.Store(int64(d))
		return s
	}
	return storetest.Processes{
		WithClock: by, Other: func() models.Store { return by(0) },
		Sweep: func(ctx context.Context, now time.Time) error {
			by(time.Until(now))
			return s.Sweep(ctx)
		},
	}
}

func TestStoreDurable(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T) func() models.Store {
		dir := t.TempDir()
		return func() models.Store { return openStore(t, dir) }
	})
}

// newStore returns an empty store that is closed after the test.
func newStore(t testing.TB) *Store { return openStore(t, t.TempDir()) }

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
