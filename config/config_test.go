package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEnvironment(t *testing.T) {
	t.Parallel()
	c, err := Load("", []string{
		"SAFEDELIVR_LISTEN=:9000",
		"SAFEDELIVR_DATA_DIR=/x",
		"SAFEDELIVR_LOG_JSON=true",
		"HOME=/root",
		"SAFEDELIVR_CASSANDRA_HOSTS=a:9042, b",
		"SAFEDELIVR_CASSANDRA_LOCAL_DC=dc1",
		"SAFEDELIVR_AMQP_URL=amqp://u:p@h/, amqps://u:p@i/",
		"SAFEDELIVR_ROLES=worker",
		"SAFEDELIVR_TIMES_EVIDENCE_WINDOW=90s",
		"SAFEDELIVR_LIMITS_RECIPIENTS=10",
		"SAFEDELIVR_PROVIDERS_SG_EU_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_EU_API_KEY=k",
		"SAFEDELIVR_PROVIDERS_SG_EU_WEBHOOK_KEY=w",
		"SAFEDELIVR_PROVIDERS_SG_EU_WEBHOOK_KEY_OLD=o",
		"SAFEDELIVR_PROVIDERS_SG_EU_CALL_RATE=2.5",
		"SAFEDELIVR_PROVIDERS_SG_EU_RATE=7",
		"SAFEDELIVR_PROVIDERS_SG_EU_TIMEOUT=4s",
	})
	require.NoError(t, err)
	require.Equal(t, ":9000", c.Listen)
	require.Equal(t, "/x", c.DataDir)
	require.True(t, c.LogJSON)
	require.Equal(t, []string{"a:9042", "b"}, c.Cassandra.Hosts)
	require.Equal(t, "dc1", c.Cassandra.LocalDC)
	require.Equal(t, []string{"worker"}, c.Roles)
	require.Equal(t, 90*time.Second, c.Times.EvidenceWindow)
	require.Equal(t, 10, c.Limits.Recipients)
	a := c.Providers["sg-eu"]
	require.Equal(
		t,
		Provider{
			Kind:          "sendgrid",
			APIKey:        "k",
			WebhookKey:    "w",
			WebhookKeyOld: "o",
			CallRate:      2.5,
			Rate:          7,
			Timeout:       4 * time.Second,
			Events:        "webhook",
			Weight:        1,
			Concurrency:   16,
			ChunkLimit:    1000,
		},
		a,
	)
}

// TestEnvironmentOverridesFile: a variable overrides the setting in the file.
func TestEnvironmentOverridesFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	require.NoError(
		t,
		os.WriteFile(path, []byte("listen: ':1'\nlog: debug\nproviders:\n  sg:\n    kind: sendgrid\n    weight: 3\n"), 0o600),
	)
	c, err := Load(path, []string{"SAFEDELIVR_LISTEN=:2"})
	require.NoError(t, err)
	require.Equal(t, ":2", c.Listen)
	require.Equal(t, "debug", c.Log)
	require.Equal(t, 3, c.Providers["sg"].Weight)
}

// TestAllMistakesAtOnce: the error names every mistake and shows no secret.
func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load("", []string{
		"SAFEDELIVR_LISTEN=nowhere",
		"SAFEDELIVR_ROLES=api,baker",
		"SAFEDELIVR_LOG=loud",
		"SAFEDELIVR_TRUSTED_PROXIES=10.0.0.0/8,proxy.example.com",
		"SAFEDELIVR_NO_SUCH=1",
		"SAFEDELIVR_TIMES_RECHECK=soon",
		"SAFEDELIVR_LIMITS_RETRIES=-1",
		"SAFEDELIVR_AMQP_URL=amqp://h,http://x",
		"SAFEDELIVR_PROVIDERS_LOG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_MG_API_KEY=topsecret",
		"SAFEDELIVR_PROVIDERS_SG_WEIGHT=0x",
		"SAFEDELIVR_CASSANDRA_HOSTS=h",
		"SAFEDELIVR_CASSANDRA_KEYSPACE=Bad-Name",
		"SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY=MAYBE",
	})
	require.Error(t, err)
	for _, want := range []string{
		"listen",
		"baker",
		"log",
		"trusted_proxies: \"proxy.example.com\"",
		"no.such",
		"recheck",
		"limits.retries",
		"amqp.url",
		"providers.log",
		"providers.mg.kind",
		"weight",
		"cassandra.keyspace",
		"cassandra.serial_consistency",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "topsecret")
}

func TestProxyNetworks(t *testing.T) {
	t.Parallel()
	c, err := Load("", []string{"SAFEDELIVR_TRUSTED_PROXIES=10.1.2.3/8, 192.0.2.7, 2001:db8::/32, ::ffff:192.0.2.8"})
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("192.0.2.7/32"),
		netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("192.0.2.8/32"),
	}, c.ProxyNetworks())
}

func TestGitHub(t *testing.T) {
	t.Parallel()
	c, err := Load(
		"",
		[]string{
			"SAFEDELIVR_PUBLIC_URL=https://mail.example.com",
			"SAFEDELIVR_GITHUB_CLIENT_ID=id",
			"SAFEDELIVR_GITHUB_CLIENT_SECRET=s",
			"SAFEDELIVR_GITHUB_OPERATORS=ann, bob",
			"SAFEDELIVR_GITHUB_ORGS=acme",
			"SAFEDELIVR_GITHUB_BASE_URL=https://ghe.example.com",
		},
	)
	require.NoError(t, err)
	require.Equal(
		t,
		GitHub{
			ClientID:     "id",
			ClientSecret: "s",
			Operators:    []string{"ann", "bob"},
			Orgs:         []string{"acme"},
			BaseURL:      "https://ghe.example.com",
		},
		c.GitHub,
	)
	require.Equal(t, "https://mail.example.com", c.PublicURL)

	_, err = Load(
		"",
		[]string{
			"SAFEDELIVR_GITHUB_CLIENT_ID=id",
			"SAFEDELIVR_GITHUB_BASE_URL=ftp://x",
			"SAFEDELIVR_GITHUB_LOGINS=a b",
			"SAFEDELIVR_GITHUB_API_URL=https://u:p@h",
		},
	)
	for _, want := range []string{
		"github.client_secret",
		"public_url",
		"github.base_url",
		"github.api_url",
		`"a b" is neither a GitHub name nor id: and a number`,
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = Load("", []string{"SAFEDELIVR_PUBLIC_URL=mail", "SAFEDELIVR_GITHUB_CLIENT_SECRET=topsecret"})
	require.ErrorContains(t, err, "public_url")
	require.ErrorContains(t, err, "github.client_id")
	require.NotContains(t, err.Error(), "topsecret")
}

// TestSplitRolesNeedServices: roles can be split only with Cassandra and RabbitMQ.
func TestSplitRolesNeedServices(t *testing.T) {
	t.Parallel()
	_, err := Load("", []string{"SAFEDELIVR_ROLES=worker"})
	require.ErrorContains(t, err, "SAFEDELIVR_CASSANDRA_HOSTS")
}
