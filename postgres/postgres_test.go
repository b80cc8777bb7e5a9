package postgres

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/shapes"
	"github.com/safedelivr/safedelivr/store/shapes/shapestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server returns the URL of the test server. Without one it skips the test.
func server(t testing.TB) string {
	t.Helper()
	url := os.Getenv("SAFEDELIVR_TEST_POSTGRES_URL")
	if url == "" {
		t.Skip("SAFEDELIVR_TEST_POSTGRES_URL is not set; scripts/services up postgres starts a server and prints it")
	}
	return url
}

// pooler returns the URL of PgBouncer before the test server. Without one it skips the test.
func pooler(t testing.TB) string {
	t.Helper()
	address := os.Getenv("SAFEDELIVR_TEST_PGBOUNCER_URL")
	if address == "" {
		t.Skip("SAFEDELIVR_TEST_PGBOUNCER_URL is not set; scripts/services up postgres pgbouncer prints it")
	}
	return with(t, address, "default_query_exec_mode", "exec") // versions before 1.21 keep no prepared statements
}

var schemaNumber atomic.Int64

// newConfig returns a configuration with a new schema, which does not exist yet and is dropped after the test.
func newConfig(t testing.TB) Config {
	t.Helper()
	c := Config{
		URL:     server(t),
		Schema:  fmt.Sprintf("sd_%d_%d_%d", os.Getpid(), time.Now().UnixNano(), schemaNumber.Add(1)),
		Migrate: true,
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, Drop(ctx, c))
	})
	return c
}

// open opens a store that is closed after the test.
func open(t testing.TB, c Config) *store.Store {
	t.Helper()
	s, err := Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestShapes(t *testing.T) {
	shapestest.Run(t, func(t *testing.T) (shapes.Engine, []*shapes.Table) {
		c := newConfig(t)
		e, err := newEngine(t.Context(), &c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		return e, store.Tables()
	})
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) models.Store { return open(t, newConfig(t)) })
	storetest.RunProcesses(t, processes)
}

// processes returns a store for each clock.
func processes(t *testing.T) storetest.Processes {
	c := newConfig(t)
	stores := map[time.Duration]models.Store{}
	return storetest.Processes{
		WithClock: func(off time.Duration) models.Store {
			if stores[off] == nil {
				by := c
				by.Now = func() time.Time { return time.Now().Add(off) }
				stores[off] = open(t, by)
			}
			return stores[off]
		},
		Other: func() models.Store { return open(t, c) },
		Sweep: func(context.Context, time.Time) error { return nil },
	}
}

func TestStoreDurable(t *testing.T) {
	storetest.RunDurable(t, func(t *testing.T) func() models.Store {
		c := newConfig(t)
		return func() models.Store { return open(t, c) }
	})
}

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) models.Store { return open(b, newConfig(b)) })
}
