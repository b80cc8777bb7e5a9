package cassandra

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
)

func names() (out []string) {
	for _, m := range migrations() {
		out = append(out, m.name)
	}
	return out
}

// Ten processes migrate at once. All must succeed, and one of them must apply each file.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	var (
		all     sync.WaitGroup
		errs    [10]error
		applied [10][]string
	)
	for i := range errs {
		all.Go(func() { applied[i], errs[i] = Migrate(t.Context(), c) })
	}
	all.Wait()
	var together []string
	for i, err := range errs {
		require.NoError(t, err)
		together = append(together, applied[i]...)
	}
	require.Equal(t, names(), together)
	again, err := Migrate(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, again)
	c.Migrate = false
	open(t, c)
}

// withMigrator calls f with a migrator on a keyspace that has only the lock.
func withMigrator(t *testing.T, c Config, f func(m *migrator)) {
	t.Helper()
	c, l, err := c.complete()
	require.NoError(t, err)
	require.NoError(t, makeKeyspace(t.Context(), &c, l))
	session, err := c.connect(t.Context(), l, c.Keyspace)
	require.NoError(t, err)
	defer session.Close()
	m := &migrator{runner: runner{session: session, timeout: c.Timeout}, config: &c, levels: l, all: migrations()}
	require.NoError(t, m.bootstrap(t.Context()))
	f(m)
}

// The holder of the lock dies in the middle of a file. Another process must wait until
// the lock ends and apply the rest.
func TestMigrateAfterCrash(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.lockTTL = 2 * time.Second
	start := time.Now()
	withMigrator(t, c, func(m *migrator) {
		held, err := lease(t.Context(), &m.runner, leaseID{"schema_lock", "migrate", "dead"}, c.lockTTL)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, m.change(t.Context(), m.all[0].statements[0]))
	})
	applied, err := Migrate(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, names(), applied)
	require.Greater(t, time.Since(start), time.Second, "it waited for the lock")
}

// A process that waits for the lock must stop when its context ends.
func TestMigrateStopsWithContext(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	withMigrator(t, c, func(m *migrator) {
		held, err := lease(t.Context(), &m.runner, leaseID{"schema_lock", "migrate", "busy"}, time.Hour)
		require.NoError(t, err)
		require.True(t, held)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err = Migrate(ctx, c)
		require.ErrorIs(t, err, models.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// The context of a lock must end when another process takes the lock.
func TestMigrationLockLost(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.lockTTL = time.Hour
	withMigrator(t, c, func(m *migrator) {
		_, release, err := m.lock(t.Context())
		require.NoError(t, err)
		require.NotNil(t, release)
		_, none, err := m.lock(t.Context())
		require.NoError(t, err)
		require.Nil(t, none, "it is taken")
		release()
		m.config.lockTTL = time.Second
		work, release, err := m.lock(t.Context())
		require.NoError(t, err)
		require.NotNil(t, release)
		for stolen := false; !stolen; { // it may just have ended
			for _, when := range []string{"EXISTS", "holder = null"} {
				applied, _, err := m.cas(t.Context(), plain,
					`UPDATE schema_lock SET holder = 'thief' WHERE name = 'migrate' IF `+when)
				require.NoError(t, err)
				stolen = stolen || applied
			}
		}
		<-work.Done()
		require.ErrorIs(t, context.Cause(work), errLockLost)
		release()
		_, none, err = m.lock(t.Context())
		require.NoError(t, err)
		require.Nil(t, none, "the lock of the thief was not released")
	})
}

// Open must refuse a keyspace that does not fit and say what to do.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.Migrate = false
	refused := func(c Config, words ...string) {
		t.Helper()
		_, err := Open(t.Context(), c)
		require.Error(t, err)
		for _, w := range words {
			require.ErrorContains(t, err, w)
		}
	}
	refused(c, "safedelivr migrate", c.Keyspace)
	require.NoError(t, makeOnly(t, c))
	refused(c, "safedelivr migrate", "schema 0")
	_, err := Migrate(t.Context(), c)
	require.NoError(t, err)
	s := open(t, c)

	other := c
	other.Serial = "SERIAL"
	refused(other, "LOCAL_SERIAL", "SERIAL")
	_, err = Migrate(t.Context(), other)
	require.ErrorContains(t, err, "LOCAL_SERIAL")
	other = c
	other.Consistency, other.Timeout = "TWO", 2*time.Second // a statement is repeated until then
	refused(other, "TWO")
	other.Timeout = c.Timeout
	for _, level := range []string{"ONE", "QUORUM", "ALL"} { // one replica is all
		other.Consistency = level
		open(t, other)
	}

	set := func(cql string, args ...any) { require.NoError(t, engineOf(s).exec(t.Context(), plain, cql, args...)) }
	last := len(names())
	set(`INSERT INTO schema_versions (part, version, name) VALUES (0, ?, 'from the future')`, last+1)
	refused(c, "newer version of safedelivr")
	_, err = Migrate(t.Context(), c)
	require.ErrorContains(t, err, "newer version of safedelivr")
	set(`DELETE FROM schema_versions WHERE part = 0 AND version = ?`, last+1)
	set(`DELETE FROM schema_versions WHERE part = 0 AND version = ?`, last)
	refused(c, "safedelivr migrate")
	applied, err := Migrate(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, names()[last-1:], applied)
	set(`UPDATE settings SET value = '4' WHERE name = 'shards'`)
	refused(c, "shards 4")
}

// makeOnly makes the keyspace without any table.
func makeOnly(t *testing.T, c Config) error {
	t.Helper()
	c, l, err := c.complete()
	require.NoError(t, err)
	return makeKeyspace(t.Context(), &c, l)
}

// TestMigrations: numbers have no gap, and no table is left out.
func TestMigrations(t *testing.T) {
	t.Parallel()
	for i, m := range migrations() {
		require.Equal(t, i+1, m.version)
		require.Contains(t, m.name, fmt.Sprintf("%03d_", m.version))
		for _, ddl := range m.statements {
			require.Contains(t, ddl, "IF NOT EXISTS")
		}
	}
	all := fmt.Sprint(migrations())
	for _, t2 := range store.Tables() {
		require.Contains(t, all, "EXISTS "+t2.Name+" (")
	}
}
