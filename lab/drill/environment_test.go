package drill

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/lab/simulated"
)

// The processes of a drill reach the servers over TLS as the configuration says. Scenarios that put a proxy before a
// server are left out then.
func TestDrillOverTLS(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("", []string{
		"SAFEDELIVR_CASSANDRA_HOSTS=127.0.0.1:9042",
		"SAFEDELIVR_CASSANDRA_TLS_CA=ca",
		"SAFEDELIVR_CASSANDRA_TLS_CERT=cert",
		"SAFEDELIVR_CASSANDRA_TLS_KEY=key",
		"SAFEDELIVR_AMQP_URL=amqps://h/",
		"SAFEDELIVR_AMQP_TLS_CA=ca",
		"SAFEDELIVR_AMQP_TLS_CERT=cert",
		"SAFEDELIVR_AMQP_TLS_KEY=key",
	})
	require.NoError(t, err)
	s := newSetup(Options{Config: cfg, Providers: simulated.Usual, Log: slog.New(slog.DiscardHandler)})
	got, err := (&environment{setup: &s, name: "rehearse_x"}).config()
	require.NoError(t, err)
	cfg.Cassandra.Keyspace, cfg.AMQP.Prefix = "rehearse_x", "rehearse_x"
	require.Equal(t, cfg.AMQP, got.AMQP)
	require.Equal(t, cfg.Cassandra, got.Cassandra)
	for _, n := range []need{needsStore, needsBroker} {
		require.Contains(t, (&scenario{needs: n}).impossible(&s), "would not accept")
	}
	s.cfg.Cassandra.TLSCA = ""
	require.Empty(t, (&scenario{needs: needsStore}).impossible(&s))
}
