package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/tcpproxy"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
)

// admin runs statements on a connection of its own.
func admin(t testing.TB, c Config, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), c.URL)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	for _, s := range statements {
		_, err := conn.Exec(context.Background(), s)
		require.NoError(t, err, s)
	}
}

// with returns a URL with another parameter.
func with(t testing.TB, address, name, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// proxied puts a proxy between the store and the server.
func proxied(t *testing.T, c *Config) *tcpproxy.Proxy {
	t.Helper()
	u, err := url.Parse(c.URL)
	require.NoError(t, err)
	p, err := tcpproxy.New(context.Background(), u.Host)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	u.Host = p.Addr()
	c.URL = with(t, u.String(), "sslmode", "disable") // the proxy cuts connections, and has no certificate
	return p
}

// TestConnectionsAreLost cuts all connections again and again while goroutines append. No number is lost or given
// twice, and what was acknowledged is there.
func TestConnectionsAreLost(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	direct := open(t, c)
	p := proxied(t, &c)
	s := open(t, c)
	const writers, entries = 8, 20
	var all sync.WaitGroup
	chunk := models.NewBatchID(time.Now())
	errs, stored := make([]error, writers), make(chan bool, writers*entries)
	for i := range writers {
		all.Go(func() {
			for n := 1; n <= entries && errs[i] == nil; n++ {
				errs[i] = s.Append(t.Context(), chunk.Chunk(i), storetest.SampleEntry(n))
				stored <- true
			}
		})
	}
	go func() {
		all.Wait()
		close(stored)
	}()
	n := 0
	for range stored {
		if n++; n%writers == 0 { // the other writers are in the middle of theirs
			p.Cut()
		}
	}
	for i := range writers {
		require.NoError(t, errs[i])
		es, err := direct.Ledger(t.Context(), chunk.Chunk(i))
		require.NoError(t, err)
		require.Len(t, es, entries)
	}
}

// TestServerIsAway: while the server cannot be reached, calls are unavailable, and they work again afterwards.
func TestServerIsAway(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	c.Timeout = 300 * time.Millisecond
	p := proxied(t, &c)
	s := open(t, c)
	require.NoError(t, s.Ping(t.Context()))
	p.Refuse()
	b, first := storetest.SampleBatch(1)
	_, err := s.Batch(t.Context(), b.ID)
	require.ErrorIs(t, err, models.ErrUnavailable)
	err = s.PutBatch(t.Context(), b, first)
	require.Error(t, err)
	require.Error(t, s.Ping(t.Context()))
	p.Accept()
	require.Eventually(t, func() bool { return s.PutBatch(t.Context(), b, first) == nil }, time.Minute,
		20*time.Millisecond)
	require.NoError(t, s.Ping(t.Context()))
	_, err = s.Batch(t.Context(), b.ID)
	require.NoError(t, err)
}

// TestStatementTimeout: statements that the server ends are tried again, until the time of the call is over.
func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	other := open(t, c)
	limited := c
	limited.URL = with(t, c.URL, "statement_timeout", "50")
	limited.Timeout = time.Second
	s := open(t, limited)
	b, first := storetest.SampleBatch(1)
	require.NoError(t, other.PutBatch(t.Context(), b, first))

	conn, err := pgx.Connect(t.Context(), c.URL)
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE `+c.Schema+`.batches`)
	require.NoError(t, err)
	_, err = s.Batch(t.Context(), b.ID)
	require.ErrorIs(t, err, models.ErrUnavailable)
	read := make(chan error, 1)
	go func() {
		_, err := s.Batch(context.Background(), b.ID)
		read <- err
	}()
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-read)
	require.NoError(t, conn.Close(t.Context()))
}

// TestLeastRights: a role that may only read and write rows can use a schema that exists, and cannot create one.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	role := strings.Replace(c.Schema, "sd_", "role_", 1)
	admin(t, c, `CREATE ROLE `+role+` LOGIN PASSWORD 'least'`)
	t.Cleanup(func() { admin(t, c, `DROP OWNED BY `+role, `DROP ROLE `+role) })
	u, err := url.Parse(c.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(role, "least")
	least := c
	least.URL, least.Migrate = u.String(), false
	_, err = Open(t.Context(), least)
	require.ErrorContains(t, err, "run safedelivr migrate")
	require.NoError(t, Migrate(t.Context(), c))
	require.NoError(t, Migrate(t.Context(), c), "again")
	admin(t, c, `GRANT USAGE ON SCHEMA `+c.Schema+` TO `+role,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA `+c.Schema+` TO `+role)
	s := open(t, least)
	b, first := storetest.SampleBatch(3)
	require.NoError(t, s.PutBatch(t.Context(), b, first))
	require.NoError(t, s.Redact(t.Context(), b.ID))
	require.NoError(t, s.Purge(t.Context(), b.User, b.ID))
	require.NoError(t, s.Sweep(t.Context()))
}

// TestNewerForm: a schema of a newer version is refused.
func TestNewerForm(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	require.NoError(t, open(t, c).Ping(t.Context()))
	admin(t, c, `UPDATE `+c.Schema+`.schema_form SET form = 99`)
	_, err := Open(t.Context(), c)
	require.ErrorContains(t, err, "a newer version of safedelivr uses it")
}

// TestOlderForm: a table that an older schema does not have is created by a process that may, and others refuse it.
func TestOlderForm(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	require.NoError(t, open(t, c).Ping(t.Context()))
	admin(t, c, `UPDATE `+c.Schema+`.schema_form SET form = `+strconv.Itoa(store.Form-1),
		`DROP TABLE `+c.Schema+`.documents`)
	least := c
	least.Migrate = false
	_, err := Open(t.Context(), least)
	require.ErrorContains(t, err, "run safedelivr migrate")
	for _, cfg := range []Config{c, least} {
		_, err = open(t, cfg).Document(t.Context(), "u", "kind", "none")
		require.ErrorIs(t, err, models.ErrNotFound)
	}
}

// TestManyProcessesStart: processes that start at the same time create one schema.
func TestManyProcessesStart(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	var all sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		all.Go(func() { errs[i] = Migrate(t.Context(), c) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// TestMistakes: mistakes in the configuration are named, without the password.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{URL: "postgres://u:topsecret@h:port/d"},
		{URL: "postgres://u:topsecret@h/d?sslmode=never"},
		{URL: "postgres://u:topsecret@h/d", Schema: "Big"},
	} {
		_, err := Open(t.Context(), c)
		require.ErrorIs(t, err, models.ErrInvalid)
		require.NotContains(t, err.Error(), "topsecret")
	}
}

// TestPooler: the store works through PgBouncer in transaction mode.
func TestPooler(t *testing.T) {
	t.Parallel()
	c := newConfig(t)
	pooled := c
	pooled.URL = pooler(t)
	s := open(t, pooled)
	for n := range 50 {
		b, first := storetest.SampleBatch(2)
		require.NoError(t, s.PutBatch(t.Context(), b, first))
		require.NoError(t, s.Append(t.Context(), b.ID, storetest.SampleEntry(1)))
		require.NoError(t, s.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: storetest.SampleFact(1)}))
		es, fs, err := s.Record(t.Context(), b.ID)
		require.NoError(t, err, fmt.Sprint(n))
		require.Len(t, es, 1)
		require.Len(t, fs, 1)
	}
}
