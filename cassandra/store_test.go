package cassandra

import (
	"context"
	"fmt"
	"os"
	"strings"
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

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The driver closes these and does not wait for them.
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Conn).heartBeat"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Conn).serve"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*writeCoalescer).writeFlusher"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*eventDebouncer).flusher"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*refreshDebouncer).flusher"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*controlConn).heartBeat"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).reconnectDownedHosts"),
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*hostConnPool).fill"),
		goleak.Cleanup(func(code int) {
			if err := dropShared(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
			os.Exit(code)
		}),
	)
}

// hosts returns the nodes of the test cluster. Without one it skips the test.
func hosts(t testing.TB) []string {
	t.Helper()
	h := os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
	if h == "" {
		t.Skip("SAFEDELIVR_TEST_CASSANDRA_HOSTS is not set; scripts/services up cassandra starts a node and prints it")
	}
	return strings.Split(h, ",")
}

var keyspaceNumber atomic.Int64

// newConfig returns a configuration with a new keyspace, which does not exist yet and is
// dropped after the test.
func newConfig(t testing.TB) Config {
	t.Helper()
	c := configOf(hosts(t))
	t.Cleanup(func() { require.NoError(t, drop(c)) })
	return c
}

func configOf(hosts []string) Config {
	return Config{
		Hosts:    hosts,
		Keyspace: fmt.Sprintf("sd_%d_%d_%d", os.Getpid(), time.Now().UnixNano(), keyspaceNumber.Add(1)),
		Migrate:  true,
		Timeout:  20 * time.Second,
	}
}

// shared is the keyspace of tests that look only at what they stored: to make one costs the node seconds of processor
// time. Its name is empty if no test used it.
var shared Config

// sharedConfig returns a configuration with the shared keyspace. Its tests do not run in parallel.
func sharedConfig(t testing.TB) Config {
	t.Helper()
	if all := hosts(t); shared.Keyspace == "" {
		shared = configOf(all)
	}
	return shared
}

func dropShared() error {
	if shared.Keyspace == "" {
		return nil
	}
	return drop(shared)
}

func drop(c Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return admin(ctx, c, `DROP KEYSPACE IF EXISTS `+c.Keyspace)
}

// admin runs schema changes on a session of its own.
func admin(ctx context.Context, c Config, statements ...string) error {
	c, l, err := c.complete()
	if err != nil {
		return err
	}
	c.Timeout = time.Minute
	return c.once(ctx, l, "", func(r *runner) error {
		for _, s := range statements {
			if err := r.change(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// open opens a store that is closed after the test.
func open(t testing.TB, c Config) *store.Store {
	t.Helper()
	s, err := Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// engineOf returns the engine below a store.
func engineOf(s *store.Store) *engine {
	e, _ := s.Engine().(*engine)
	return e
}

// tableOf returns a table of an engine.
func (e *engine) tableOf(name string) *table {
	for _, t := range e.tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}

func TestShapes(t *testing.T) {
	shapestest.Run(t, func(t *testing.T) (shapes.Engine, []*shapes.Table) {
		return open(t, sharedConfig(t)).Engine(), store.Tables()
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	storetest.RunDurable(t, func(t *testing.T) func() models.Store {
		c := newConfig(t)
		return func() models.Store { return open(t, c) }
	})
}
