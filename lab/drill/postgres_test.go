//go:build full

package drill

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/postgres"
)

// TestFailoverOfPostgres: scripts/services kills the primary of a cluster, promotes a standby, and makes a standby of
// the old primary. What was written before and after is on every node, and no process is left at the end.
func TestFailoverOfPostgres(t *testing.T) {
	c := &cluster{server: "postgres"}
	c.start(t)
	require.Equal(t, []string{"primary", "standby", "standby"}, c.roles(t))
	c.query(t, 0, "CREATE TABLE numbers (n int); INSERT INTO numbers VALUES (1)")
	c.seen(t, 1, "1")
	_, err := c.services(t.Context(), "promote", c.name(1))
	require.ErrorContains(t, err, "end it first", "two primaries would differ")

	_, err = c.services(t.Context(), "kill", "postgres")
	require.NoError(t, err)
	require.True(t, c.down(t.Context(), 0))
	lines, err := c.services(t.Context(), "promote", c.name(1))
	require.NoError(t, err)
	require.Contains(t, string(lines), "SAFEDELIVR_TEST_POSTGRES_URL="+c.url(1)+"\n", "it names the new primary")
	c.query(t, 1, "INSERT INTO numbers VALUES (2)")
	_, err = c.services(t.Context(), "start", "postgres")
	require.NoError(t, err)
	require.Equal(t, []string{"standby", "primary", "standby"}, c.roles(t))
	c.seen(t, 0, "1\n2")
	c.seen(t, 2, "1\n2")

	pids, err := c.services(t.Context(), "pids", c.name(1))
	require.NoError(t, err)
	_, err = c.services(t.Context(), "down", "postgres")
	require.NoError(t, err)
	for pid := range strings.FieldsSeq(string(pids)) {
		cwd, _ := filepath.EvalSymlinks(filepath.Join("/proc", pid, "cwd"))
		require.Empty(t, cwd, "process %s is left", pid)
	}
}

// TestPostgresFailoverLosesNothing appends while the primary is killed and a synchronous standby is promoted. All that
// was acknowledged is there afterwards, and the same store goes on with the new primary.
func TestPostgresFailoverLosesNothing(t *testing.T) {
	c := &cluster{server: "postgres"}
	c.start(t)
	c.query(t, 0, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 2 (*)'")
	c.query(t, 0, "SELECT pg_reload_conf()")
	s, err := postgres.Open(t.Context(), postgres.Config{
		URL:     "postgres://safedelivr:safedelivr@" + c.addr(0) + "," + c.addr(1) + "/safedelivr",
		Migrate: true,
		Timeout: time.Minute,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	chunk := models.NewBatchID(time.Now())
	var (
		appended atomic.Int64
		failed   error
		all      sync.WaitGroup
		stop     = make(chan struct{})
	)
	all.Go(func() {
		for n := 1; failed == nil; n++ {
			if failed = s.Append(context.Background(), chunk, models.Entry{Number: n, Token: models.NewToken(),
				Kind: models.Attempt, At: time.Now().UTC(), Provider: "sg"}); failed == nil {
				appended.Store(int64(n))
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	more := func() {
		t.Helper()
		begin := appended.Load()
		require.NoError(t, poll(t.Context(), patience, "entries are appended", func() (bool, error) {
			return appended.Load() > begin+50, nil
		}))
	}
	more()
	_, err = c.services(t.Context(), "kill", "postgres")
	require.NoError(t, err)
	before := appended.Load()
	_, err = c.services(t.Context(), "promote", c.name(1))
	require.NoError(t, err)
	more()
	close(stop)
	all.Wait()
	require.NoError(t, failed)
	es, err := s.Ledger(t.Context(), chunk)
	require.NoError(t, err)
	require.Len(t, es, int(appended.Load()))
	require.Greater(t, appended.Load(), before)
}

func (c *cluster) url(i int) string {
	return "postgres://safedelivr:safedelivr@" + c.addr(i) + "/safedelivr"
}

// roles returns the roles of the nodes.
func (c *cluster) roles(t *testing.T) (roles []string) {
	t.Helper()
	out, err := c.services(t.Context(), "status", c.server)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m), (\w+) \(packages\)$`).FindAllStringSubmatch(string(out), -1) {
		roles = append(roles, m[1])
	}
	return roles
}

// query runs statements on node i and returns the rows.
func (c *cluster) query(t *testing.T, i int, statements string) string {
	t.Helper()
	out, err := c.psql(t.Context(), i, statements)
	require.NoError(t, err, out)
	return out
}

func (c *cluster) psql(ctx context.Context, i int, statements string) (string, error) {
	out, err := exec.CommandContext(ctx, "psql", "-XAtq", c.url(i), "-c", statements).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// seen waits until node i has these numbers.
func (c *cluster) seen(t *testing.T, i int, numbers string) {
	t.Helper()
	var got string
	err := poll(t.Context(), patience, "the standby has the rows", func() (bool, error) {
		var err error
		got, err = c.psql(t.Context(), i, "SELECT n FROM numbers ORDER BY n")
		return err == nil && got == numbers, nil
	})
	require.NoError(t, err, got)
}
