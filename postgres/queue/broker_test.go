package queue

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// server returns the URL of the test server. Without one it skips the test.
func server(t testing.TB) string {
	t.Helper()
	u := os.Getenv("SAFEDELIVR_TEST_POSTGRES_URL")
	if u == "" {
		t.Skip("SAFEDELIVR_TEST_POSTGRES_URL is not set")
	}
	return u
}

var schemaNumber atomic.Int64

// newConfig returns a configuration with a new schema, which does not exist yet and is dropped after the test.
func newConfig(t testing.TB, providers ...string) Config {
	t.Helper()
	c := Config{URL: server(t), Providers: providers,
		Schema: fmt.Sprintf("q_%d_%d_%d", os.Getpid(), time.Now().UnixNano(), schemaNumber.Add(1))}
	t.Cleanup(func() { admin(t, `DROP SCHEMA IF EXISTS `+c.Schema+` CASCADE`) })
	return c
}

// admin runs a statement on a connection of its own.
func admin(t testing.TB, sql string, args ...any) (rows int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, server(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	tag, err := conn.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	require.NoError(t, err)
	return tag.RowsAffected()
}

func openWith(t testing.TB, c Config) *Broker {
	t.Helper()
	b, err := Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// through returns the configuration for the same schema through a proxy.
func through(t testing.TB, c Config) (Config, *tcpproxy.Proxy) {
	t.Helper()
	u, err := url.Parse(c.URL)
	require.NoError(t, err)
	p, err := tcpproxy.New(context.Background(), u.Host)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	u.Host = p.Addr()
	c.URL = u.String()
	return c, p
}

// remote is a broker behind a proxy. It implements brokertest.Remote.
type remote struct {
	*Broker
	t      *testing.T
	proxy  *tcpproxy.Proxy
	config Config // without the proxy
}

var _ brokertest.Remote = (*remote)(nil)

// Lose breaks all connections and ends all leases, like a loss that lasts longer than a lease.
func (r *remote) Lose() {
	r.proxy.Cut()
	admin(r.t, `UPDATE `+r.config.Schema+`.queue_message SET taken_until = now(), deliveries = deliveries + 1
		WHERE taken_by LIKE $1`, r.name+"/%")
}

func (r *remote) Peer(t *testing.T) models.Broker {
	t.Helper()
	return openWith(t, r.config)
}

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, providers ...string) models.Broker {
		c := newConfig(t, providers...)
		proxied, p := through(t, c)
		return &remote{openWith(t, proxied), t, p, c}
	})
}
