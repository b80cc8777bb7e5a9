package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
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
	require.Equal(t, Metrics{Listen: "127.0.0.1:9464"}, c.Metrics, "for this machine only, and without profiles")
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
		"SAFEDELIVR_METRICS_LISTEN=:99999",
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
	require.Equal(t, []string{
		`SAFEDELIVR_NO_SUCH: no such setting`,
		`SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY: "MAYBE" must be one of SERIAL, LOCAL_SERIAL`,
		`SAFEDELIVR_LIMITS_RETRIES: must be from 0 to 1000`,
		`SAFEDELIVR_LOG: "loud" must be one of debug, info, warn, error`,
		`SAFEDELIVR_PROVIDERS_SG_WEIGHT: "0x" is not a whole number`,
		`SAFEDELIVR_ROLES: "baker" must be one of api, webhooks, worker`,
		`SAFEDELIVR_TIMES_RECHECK: "soon" is not a duration: a number with its unit, like 90s, 15m or 168h`,
		`SAFEDELIVR_LISTEN: "nowhere" must have the form host:port, like 127.0.0.1:8080`,
		`SAFEDELIVR_METRICS_LISTEN: "99999" is not a port: a number from 0 to 65535`,
		`SAFEDELIVR_TRUSTED_PROXIES: "proxy.example.com" is neither a network like 192.0.2.0/24 nor an address`,
		`SAFEDELIVR_CASSANDRA_KEYSPACE: "Bad-Name" is not a keyspace name (a letter, then a-z, 0-9 and _)`,
		`SAFEDELIVR_AMQP_URL: must be an amqp:// or amqps:// URL, or several, separated by commas`,
		`SAFEDELIVR_PROVIDERS_LOG_KIND: a provider's name has 1 to 32 characters a-z, 0-9 and -, begins with a letter, ` +
			`and is not batch, log, event or feed; this one is "log"`,
		`SAFEDELIVR_PROVIDERS_MG_KIND: required`,
	}, lines(err))
	require.NotContains(t, err.Error(), "topsecret")
}

// lines returns the mistakes in an error, one a line.
func lines(err error) []string { return strings.Split(err.Error(), "\n") }

// TestNearMisses: the error about a setting that does not exist has the name that was typed, and the one that was
// meant.
func TestNearMisses(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"SAFEDELIVR_LISTN":                       "SAFEDELIVR_LISTEN",
		"SAFEDELIVR_LITSEN":                      "SAFEDELIVR_LISTEN",
		"SAFEDELIVR_DATADIR":                     "SAFEDELIVR_DATA_DIR",
		"SAFEDELIVR_PROVIDERS_SG_APIKEY":         "SAFEDELIVR_PROVIDERS_SG_API_KEY",
		"SAFEDELIVR_PROVIDERS_SG_EU_APIKEY":      "SAFEDELIVR_PROVIDERS_SG_EU_API_KEY",
		"SAFEDELIVR_PROVIDERS_SG_API_KEYFILE":    "SAFEDELIVR_PROVIDERS_SG_API_KEY_FILE",
		"SAFEDELIVR_PROVIDER_SG_KIND":            "SAFEDELIVR_PROVIDERS_SG_KIND",
		"SAFEDELIVR_LIMIT_RECIPIENTS":            "SAFEDELIVR_LIMITS_RECIPIENTS",
		"SAFEDELIVR_TIMES_KEEPLOGS":              "SAFEDELIVR_TIMES_KEEP_LOGS",
		"SAFEDELIVR_GITHUB_CLIENT_SECRETS_FILE":  "SAFEDELIVR_GITHUB_CLIENT_SECRET_FILE",
		"SAFEDELIVR_PROVIDERS_SG":                "",
		"SAFEDELIVR_FOO":                         "",
		"SAFEDELIVR_ACCOUNTS_SG_SENDING_ADDRESS": "",
	} {
		_, err := Load("", []string{typed + "=topsecret", "SAFEDELIVR_LOG=loud"})
		if want = typed + ": no such setting; did you mean " + want + "?"; strings.HasSuffix(want, "mean ?") {
			want = typed + ": no such setting"
		}
		require.Equal(t, []string{want, `SAFEDELIVR_LOG: "loud" must be one of debug, info, warn, error`}, lines(err))
	}
}

// TestFileMistakes: the error about a mistake in a file has the name of the setting there.
func TestFileMistakes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
listn: ":1"
log: [info, debug]
amqp:
limits: {retries: 3.5, disk_reserve: -1}
times: {recheck: 60, hold: 5m}
providers:
  sg: {kind: sendgrid, apikey: topsecret, weight: 0}
  mg: {api_key: topsecret}
traces: {ratio: 2}
`), 0o600))
	c, err := Load(path, []string{"SAFEDELIVR_TRACES_RATIO=.nan"})
	require.Equal(t, []string{
		`listn: no such setting; did you mean listen?`,
		`providers.sg.apikey: no such setting; did you mean providers.sg.api_key?`,
		`limits.disk_reserve: must be 0 or more`,
		`limits.retries: "3.5" is not a whole number`,
		`log: must be one value, and not 2`,
		`providers.sg.weight: must be from 1 to 1000`,
		`times.recheck: "60" is not a duration: a number with its unit, like 90s, 15m or 168h`,
		`SAFEDELIVR_TRACES_RATIO: ".nan" is not a number`,
		`providers.mg.kind: required`,
	}, lines(err))
	require.Equal(t, 5*time.Minute, c.Times.Hold)
}

// TestTab requires that a tab in a configuration file is named with its line, wherever it is.
func TestTab(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	for text, want := range map[string]string{
		"log: info\nproviders:\n\tsg:\n\t\tkind: sendgrid\n": "line 3 begins with a tab; YAML wants spaces",
		"providers:\n  \tsg: {kind: x\n":                     "line 2 begins with a tab; YAML wants spaces",
		"log: [info\n":                                       "did not find expected ',' or ']'",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(path, nil)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.WriteFile(path, []byte("log: warn\t\n \t\n"), 0o600))
	c, err := Load(path, []string{})
	require.NoError(t, err)
	require.Equal(t, "warn", c.Log)
}

// TestRangesOfModels: the ranges in the tags are those of the models.
func TestRangesOfModels(t *testing.T) {
	t.Parallel()
	limit := func(setting string) string {
		f, ok := settingType(setting)
		require.True(t, ok)
		return f.Tag.Get("range")
	}
	require.Equal(t, fmt.Sprintf("1..%d", models.MaxChunks*models.MaxChunkRecipients), limit("limits.recipients"))
	require.Equal(t, fmt.Sprintf("1..%d", models.MaxChunkRecipients), limit("providers.x.chunk_limit"))
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
		"SAFEDELIVR_GITHUB_CLIENT_SECRET: required if SAFEDELIVR_GITHUB_CLIENT_ID is set",
		"SAFEDELIVR_PUBLIC_URL: required",
		"SAFEDELIVR_GITHUB_BASE_URL: must be",
		"SAFEDELIVR_GITHUB_API_URL: must be",
		`"a b" is neither a GitHub name nor id: and a number`,
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = Load("", []string{"SAFEDELIVR_PUBLIC_URL=mail", "SAFEDELIVR_GITHUB_CLIENT_SECRET=topsecret"})
	require.ErrorContains(t, err, "SAFEDELIVR_PUBLIC_URL: must be")
	require.ErrorContains(t, err, "SAFEDELIVR_GITHUB_CLIENT_ID: required")
	require.NotContains(t, err.Error(), "topsecret")
}

// TestSplitRolesNeedServices: roles can be split only with Cassandra and RabbitMQ.
func TestSplitRolesNeedServices(t *testing.T) {
	t.Parallel()
	_, err := Load("", []string{"SAFEDELIVR_ROLES=worker"})
	require.ErrorContains(t, err, "SAFEDELIVR_CASSANDRA_HOSTS")
}

// TestPrices: prices need a currency, and a currency needs the price of every provider.
func TestPrices(t *testing.T) {
	t.Parallel()
	env := []string{"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid", "SAFEDELIVR_PROVIDERS_MG_KIND=mailgun"}
	load := func(more ...string) (Config, error) { return Load("", slices.Concat(env, more)) }
	c, err := load()
	require.NoError(t, err)
	require.Empty(t, c.Prices())
	c, err = load("SAFEDELIVR_CURRENCY=EUR", "SAFEDELIVR_PROVIDERS_SG_PRICE=0.85", "SAFEDELIVR_PROVIDERS_MG_PRICE=0")
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"sg": 0.85, "mg": 0}, c.Prices())
	for text, more := range map[string][]string{
		"SAFEDELIVR_CURRENCY: required if SAFEDELIVR_PROVIDERS_SG_PRICE is set": {"SAFEDELIVR_PROVIDERS_SG_PRICE=1"},
		"SAFEDELIVR_PROVIDERS_MG_PRICE: required if SAFEDELIVR_CURRENCY is set": {
			"SAFEDELIVR_CURRENCY=EUR", "SAFEDELIVR_PROVIDERS_SG_PRICE=1"},
		`"euro" is not a currency`: {"SAFEDELIVR_CURRENCY=euro"},
		`"1,5" is not a price`:     {"SAFEDELIVR_CURRENCY=EUR", "SAFEDELIVR_PROVIDERS_SG_PRICE=1,5"},
	} {
		_, err := load(more...)
		require.ErrorContains(t, err, text)
	}
}
