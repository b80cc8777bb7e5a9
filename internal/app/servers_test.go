package app

import (
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/rabbit"
)

// servers are the real servers with TLS, which scripts/services starts.
type servers struct{ cassandra, amqps, ca, cert, key string }

func tlsServers(t *testing.T) servers {
	t.Helper()
	if os.Getenv("SAFEDELIVR_TEST_AMQP_URL") == "" || os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS") == "" {
		t.Skip("needs RabbitMQ and Cassandra: start them with scripts/services up and load the environment it prints")
	}
	dir := os.Getenv("SAFEDELIVR_TEST_TLS")
	s := servers{
		cassandra: os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS"),
		amqps:     os.Getenv("SAFEDELIVR_TEST_AMQPS_URL"),
		ca:        filepath.Join(dir, "ca.pem"),
		cert:      filepath.Join(dir, "client.pem"),
		key:       filepath.Join(dir, "client.key"),
	}
	require.NotEmpty(t, dir, "scripts/services prints SAFEDELIVR_TEST_TLS")
	require.NotEmpty(t, s.amqps, "scripts/services prints SAFEDELIVR_TEST_AMQPS_URL")
	return s
}

func (s servers) config(t *testing.T, keyspace string) config.Config {
	t.Helper()
	cfg, err := config.Load("", []string{
		"SAFEDELIVR_CASSANDRA_HOSTS=" + s.cassandra,
		"SAFEDELIVR_CASSANDRA_KEYSPACE=" + keyspace,
		"SAFEDELIVR_CASSANDRA_TLS_CA=" + s.ca,
		"SAFEDELIVR_CASSANDRA_TLS_CERT=" + s.cert,
		"SAFEDELIVR_CASSANDRA_TLS_KEY=" + s.key,
		"SAFEDELIVR_AMQP_URL=" + s.amqps,
		"SAFEDELIVR_AMQP_PREFIX=" + keyspace,
		"SAFEDELIVR_AMQP_TLS_CA=" + s.ca,
		"SAFEDELIVR_AMQP_TLS_CERT=" + s.cert,
		"SAFEDELIVR_AMQP_TLS_KEY=" + s.key,
	})
	require.NoError(t, err)
	return cfg
}

// open opens the store and waits for an answer of the broker, on a keyspace and a prefix that it removes.
func (s servers) open(t *testing.T) (store, broker error) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	cfg := s.config(t, "t"+models.NewUserID())
	db, store := OpenStore(t.Context(), &cfg, quiet)
	if store == nil {
		_, store = db.Users(t.Context())
		require.NoError(t, db.Close())
		c, err := CassandraConfig(&cfg, quiet)
		require.NoError(t, err)
		require.NoError(t, cassandra.Drop(t.Context(), c))
	}
	opened, err := OpenBroker(t.Context(), &cfg, quiet)
	require.NoError(t, err)
	defer func() { require.NoError(t, opened.Close()) }()
	if broker = opened.Ping(t.Context()); broker == nil {
		real, ok := opened.(*rabbit.Broker)
		require.True(t, ok)
		require.NoError(t, real.Remove(t.Context()))
	}
	return store, broker
}

// Cassandra and RabbitMQ are reached over TLS with a certificate of the client. What either side must refuse is
// refused, and the error says why.
func TestTLSWithServers(t *testing.T) {
	t.Parallel()
	s := tlsServers(t)
	store, broker := s.open(t)
	require.NoError(t, store)
	require.NoError(t, broker)

	other := testkit.NewAuthority(t)
	wrongCA, wrongName, stranger, bare := s, s, s, s
	wrongCA.ca = other.File
	_, port, err := net.SplitHostPort(strings.Split(s.cassandra, ",")[0])
	require.NoError(t, err)
	wrongName.cassandra = "localhost:" + port
	u, err := url.Parse(strings.Split(s.amqps, ",")[0])
	require.NoError(t, err)
	u.Host = "localhost:" + u.Port()
	wrongName.amqps = u.String()
	stranger.cert, stranger.key = filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	other.Certificate(t, stranger.cert, stranger.key, "127.0.0.1", time.Hour)
	bare.cert, bare.key = "", ""
	for _, c := range []struct {
		name          string
		servers       servers
		store, broker string
	}{
		{"the servers' CA is another", wrongCA, "signed by unknown authority", "signed by unknown authority"},
		{"the servers have another name", wrongName, "wanted to match localhost", "wanted to match localhost"},
		// Java says no more to a client.
		{"the client's CA is another", stranger, "remote error: tls", "remote error: tls: unknown certificate authority"},
		{"the client has no certificate", bare, "tls: certificate required", "tls: certificate required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// A server that refuses a client's certificate closes the connection. The client may notice that before it has
			// read why, and tries again.
			for deadline := time.Now().Add(testkit.Patience); ; {
				store, broker := c.servers.open(t)
				require.Error(t, store)
				require.Error(t, broker)
				if strings.Contains(store.Error(), c.store) && strings.Contains(broker.Error(), c.broker) {
					break
				}
				require.True(t, time.Now().Before(deadline), "%v; %v", store, broker)
			}
		})
	}
}
