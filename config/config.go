// Package config reads the configuration from the environment and an optional file. It
// reports all mistakes together.
package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/safedelivr/safedelivr/models"
)

// Prefix is the prefix of all environment variables. SAFEDELIVR_PROVIDERS_SG_API_KEY sets
// providers.sg.api_key.
const Prefix = "SAFEDELIVR_"

// Config is the whole configuration.
type Config struct {
	Listen  string   `koanf:"listen"`   // address of the HTTP server
	DataDir string   `koanf:"data_dir"` // directory of the embedded store and of large requests
	Roles   []string `koanf:"roles"`    // api, webhooks, worker
	Log     string   `koanf:"log"`      // debug, info, warn, error
	LogJSON bool     `koanf:"log_json"` // write log lines as JSON
	Worker  string   `koanf:"worker"`   // name of this process; default: host name and process ID

	TLS     TLS     `koanf:"tls"`
	Metrics Metrics `koanf:"metrics"`
	Traces  Traces  `koanf:"traces"`

	PublicURL string `koanf:"public_url"` // URL for browsers and providers; default: http:// and the listen address

	TrustedProxies []string `koanf:"trusted_proxies"` // networks or addresses; see ProxyNetworks

	Cassandra Cassandra           `koanf:"cassandra"`
	AMQP      AMQP                `koanf:"amqp"`
	GitHub    GitHub              `koanf:"github"`
	Limits    Limits              `koanf:"limits"`
	Quotas    Quotas              `koanf:"quotas"`
	Times     Times               `koanf:"times"`
	Providers map[string]Provider `koanf:"providers"`
}

// TLS makes the HTTP server speak TLS. It is on if Cert is set.
type TLS struct {
	Cert string `koanf:"cert"` // file of the certificate, followed by those of its issuers (PEM)
	Key  string `koanf:"key"`  // file of its key (PEM)
}

// Traces configures tracing. It is on if Endpoint is set.
type Traces struct {
	Endpoint string  `koanf:"endpoint"` // OTLP endpoint over HTTP, like http://collector:4318
	Ratio    float64 `koanf:"ratio"`    // share of batches that are traced, 0 to 1
}

// Cassandra configures the store in Cassandra. It is used if Hosts is set.
type Cassandra struct {
	Hosts       []string      `koanf:"hosts"`
	Keyspace    string        `koanf:"keyspace"`
	Username    string        `koanf:"username"`
	Password    string        `koanf:"password"`
	LocalDC     string        `koanf:"local_dc"`
	Replication string        `koanf:"replication"` // CQL map; used if the keyspace is created
	Consistency string        `koanf:"consistency"`
	Serial      string        `koanf:"serial_consistency"`
	Timeout     time.Duration `koanf:"timeout"`
	Migrate     bool          `koanf:"migrate"` // apply migrations when serve starts
	TLSCA       string        `koanf:"tls_ca"`  // file of the CA that signs the nodes' certificates; "": no TLS
	TLSCert     string        `koanf:"tls_cert"`
	TLSKey      string        `koanf:"tls_key"`
}

// AMQP configures RabbitMQ as the broker. It is used if URL is set.
type AMQP struct {
	URL    string `koanf:"url"`    // of each node of a cluster, separated by commas
	Prefix string `koanf:"prefix"` // of exchange and queue names

	TLSCA   string `koanf:"tls_ca"` // for amqps:// URLs; "": the CAs of the system
	TLSCert string `koanf:"tls_cert"`
	TLSKey  string `koanf:"tls_key"`
}

// GitHub configures the login to the dashboard through GitHub. It is on if ClientID is set.
type GitHub struct {
	ClientID     string   `koanf:"client_id"`
	ClientSecret string   `koanf:"client_secret"`
	BaseURL      string   `koanf:"base_url"`  // of a GitHub Enterprise Server; default: https://github.com
	APIURL       string   `koanf:"api_url"`   // default: the API of base_url
	Operators    []string `koanf:"operators"` // logins of users who may do everything
	Logins       []string `koanf:"logins"`    // logins of other users who may log in
	Orgs         []string `koanf:"orgs"`      // organisations whose members may log in
}

// DefaultMetrics is the default address of the metrics.
const DefaultMetrics = "127.0.0.1:9464"

// Metrics are served at an address of their own, because they tell much about all users.
type Metrics struct {
	Listen string `koanf:"listen"` // "off" for none
	Pprof  bool   `koanf:"pprof"`  // serve profiles at /debug/pprof/, too
}

// Limits bounds requests, connections and retries.
type Limits struct {
	Recipients int   `koanf:"recipients"`   // of a batch
	Content    int64 `koanf:"content"`      // bytes of everything in a batch but the recipients
	Body       int64 `koanf:"body"`         // bytes of a request
	Retries    int   `koanf:"retries"`      // of a recipient
	UrgentUpTo int   `koanf:"urgent_up_to"` // batches of at most this many recipients are urgent by default

	Connections        int `koanf:"connections"`         // open HTTP connections
	AddressConnections int `koanf:"address_connections"` // open HTTP connections of one address

	DiskReserve int64 `koanf:"disk_reserve"` // free bytes below which batches are refused; 0: none
}

// Quotas bounds what each user may ask for, unless an operator sets other limits for the user. 0 means no limit.
type Quotas struct {
	RequestsPerSecond int64 `koanf:"requests_per_second"`
	RequestsAtOnce    int64 `koanf:"requests_at_once"`
	RecipientsPerHour int64 `koanf:"recipients_per_hour"`
	RecipientsPerDay  int64 `koanf:"recipients_per_day"`
	BatchesPerDay     int64 `koanf:"batches_per_day"`
	SpoolBytes        int64 `koanf:"spool_bytes"` // of the requests that a process is reading
}

// Limits returns the quotas by the names of the limits.
func (q *Quotas) Limits() models.Limits {
	return models.Limits{
		models.RequestsPerSecond: q.RequestsPerSecond,
		models.RequestsAtOnce:    q.RequestsAtOnce,
		models.RecipientsPerHour: q.RecipientsPerHour,
		models.RecipientsPerDay:  q.RecipientsPerDay,
		models.BatchesPerDay:     q.BatchesPerDay,
		models.SpoolBytes:        q.SpoolBytes,
	}
}

// Times holds durations. One of them bounds each state of a log.
type Times struct {
	Deadline       time.Duration `koanf:"deadline"`
	EvidenceWindow time.Duration `koanf:"evidence_window"`
	FinalEvent     time.Duration `koanf:"final_event"`
	Recheck        time.Duration `koanf:"recheck"`
	StartBy        time.Duration `koanf:"start_by"`
	IntakeGrace    time.Duration `koanf:"intake_grace"`
	Hold           time.Duration `koanf:"hold"`
	BreakerOpen    time.Duration `koanf:"breaker_open"`
	Silence        time.Duration `koanf:"silence"` // shortest time without events after which a provider counts as silent
	InboxKeep      time.Duration `koanf:"inbox_keep"`
	StopGrace      time.Duration `koanf:"stop_grace"`
	Idempotency    time.Duration `koanf:"idempotency"`  // how long idempotency keys are kept
	KeepContent    time.Duration `koanf:"keep_content"` // how long content and addresses are kept after acceptance
	KeepLogs       time.Duration `koanf:"keep_logs"`    // how long batches, logs and commands are kept
}

// Provider configures a provider: a kind with credentials.
type Provider struct {
	Kind          string        `koanf:"kind"` // sendgrid, mailgun
	APIKey        string        `koanf:"api_key"`
	Domain        string        `koanf:"domain"`          // of Mailgun: the sending domain
	BaseURL       string        `koanf:"base_url"`        // default: that of the kind
	WebhookKey    string        `koanf:"webhook_key"`     // of SendGrid: public key; of Mailgun: webhook signing key
	WebhookKeyOld string        `koanf:"webhook_key_old"` // verifies webhooks too, while the key is changed
	Events        string        `koanf:"events"`          // webhook or none
	Weight        int           `koanf:"weight"`
	Concurrency   int           `koanf:"concurrency"`
	Rate          float64       `koanf:"rate"`      // recipients/s of all workers; 0: no limit
	CallRate      float64       `koanf:"call_rate"` // calls/s of all workers; 0: no limit
	ChunkLimit    int           `koanf:"chunk_limit"`
	Timeout       time.Duration `koanf:"timeout"`
	Evidence      time.Duration `koanf:"evidence_window"` // 0: that of the kind, or times.evidence_window
}

// DefaultEvidence is the default of times.evidence_window.
const DefaultEvidence = 15 * time.Minute

func defaults() Config {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return Config{
		Listen:  "127.0.0.1:8080",
		DataDir: "safedelivr-data",
		Roles:   []string{"api", "webhooks", "worker"},
		Log:     "info",
		Worker:  fmt.Sprintf("%s-%d", host, os.Getpid()),
		Cassandra: Cassandra{
			Keyspace:    "safedelivr",
			Replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}",
			Consistency: "LOCAL_QUORUM",
			Serial:      "LOCAL_SERIAL",
			Timeout:     10 * time.Second,
			Migrate:     true,
		},
		AMQP:    AMQP{Prefix: "sd"},
		Metrics: Metrics{Listen: DefaultMetrics},
		Traces:  Traces{Ratio: 1},
		Limits: Limits{
			Recipients:         1_000_000,
			Content:            5 << 20,
			Body:               1 << 30,
			Retries:            10,
			UrgentUpTo:         100,
			Connections:        4096,
			AddressConnections: 1024,
			DiskReserve:        256 << 20,
		},
		Quotas: Quotas{
			RequestsPerSecond: 200,
			RequestsAtOnce:    32,
			RecipientsPerHour: 5_000_000,
			RecipientsPerDay:  20_000_000,
			BatchesPerDay:     5_000_000,
			SpoolBytes:        4 << 30,
		},
		Times: Times{
			Deadline:       7 * 24 * time.Hour,
			EvidenceWindow: DefaultEvidence,
			FinalEvent:     100 * time.Hour,
			Recheck:        time.Minute,
			StartBy:        10 * time.Second,
			IntakeGrace:    time.Hour,
			Hold:           5 * time.Minute,
			BreakerOpen:    5 * time.Second,
			Silence:        time.Minute,
			InboxKeep:      7 * 24 * time.Hour,
			StopGrace:      35 * time.Second,
			Idempotency:    24 * time.Hour,
			KeepContent:    90 * 24 * time.Hour,
			KeepLogs:       400 * 24 * time.Hour,
		},
	}
}

func providerDefaults(a Provider) Provider {
	if a.Events == "" {
		a.Events = "webhook"
	}
	if a.Weight == 0 {
		a.Weight = 1
	}
	if a.Concurrency == 0 {
		a.Concurrency = 16
	}
	if a.ChunkLimit == 0 {
		a.ChunkLimit = 1000
	}
	if a.Timeout == 0 {
		a.Timeout = 30 * time.Second
	}
	return a
}

// Load reads the file at path and then the environment, which overrides it. An empty path
// means no file, and a nil environ means os.Environ. The error joins all mistakes.
func Load(path string, environ []string) (Config, error) {
	if environ == nil {
		environ = os.Environ()
	}
	k := koanf.New(".")
	var mistakes []error
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			mistakes = append(mistakes, fmt.Errorf("configuration file %s: %w", path, err))
		}
	}
	opt := env.Opt{Prefix: Prefix, TransformFunc: fromEnv, EnvironFunc: func() []string { return environ }}
	if err := k.Load(env.Provider(".", opt), nil); err != nil {
		mistakes = append(mistakes, fmt.Errorf("environment: %w", err))
	}
	mistakes = append(mistakes, readSecrets(k)...)
	for _, key := range k.Keys() {
		if !known(key) {
			mistakes = append(mistakes, fmt.Errorf("%s: there is no setting with this name", key))
		}
	}
	c := defaults()
	if err := k.Unmarshal("", &c); err != nil {
		mistakes = append(mistakes, tidy(err)...)
	}
	for name, a := range c.Providers {
		c.Providers[name] = providerDefaults(a)
	}
	mistakes = append(mistakes, c.check()...)
	return c, errors.Join(mistakes...)
}

// lists holds the settings that have several values, separated by commas.
var lists = []string{"roles", "trusted_proxies", "cassandra.hosts", "github.operators", "github.logins", "github.orgs"}

// fromEnv maps SAFEDELIVR_LOG_JSON to log_json, SAFEDELIVR_CASSANDRA_LOCAL_DC to
// cassandra.local_dc, and SAFEDELIVR_PROVIDERS_SG_EU_API_KEY to
// providers.sg-eu.api_key.
func fromEnv(name, value string) (string, any) {
	name = strings.TrimPrefix(name, Prefix)
	if strings.HasPrefix(name, "TEST_") || strings.HasPrefix(name, "SERVICES_") || name == "CONFIG" {
		return "", nil // used by the test scripts and the command line
	}
	key := envKey(strings.ToLower(name))
	if slices.Contains(lists, key) {
		var out []string
		for v := range strings.SplitSeq(value, ",") {
			if v = strings.TrimSpace(v); v != "" {
				out = append(out, v)
			}
		}
		return key, out
	}
	return key, value
}

// envKey returns the setting that a variable sets, given its name in lower case without the
// prefix.
func envKey(name string) string {
	if known(name) {
		return name
	}
	if secret, ok := strings.CutSuffix(name, fileSuffix); ok && isSecret(envKey(secret)) {
		return envKey(secret) + fileSuffix
	}
	section, rest, _ := strings.Cut(name, "_")
	if section != "providers" {
		return section + "." + rest
	}
	t := reflect.TypeFor[Provider]()
	for i := range t.NumField() {
		f := t.Field(i).Tag.Get("koanf")
		if provider, ok := strings.CutSuffix(rest, "_"+f); ok && provider != "" && !longer(t, rest, f) {
			return section + "." + strings.ReplaceAll(provider, "_", "-") + "." + f
		}
	}
	return section + "." + strings.ReplaceAll(rest, "_", "-")
}

// longer reports whether the variable also ends with a longer field name: call_rate ends
// with rate, too.
func longer(t reflect.Type, rest, than string) bool {
	for i := range t.NumField() {
		if f := t.Field(i).Tag.Get("koanf"); len(f) > len(than) && strings.HasSuffix(rest, "_"+f) {
			return true
		}
	}
	return false
}

// tidy splits the error of the decoder into one error for each setting.
func tidy(err error) []error {
	var out []error
	for line := range strings.SplitSeq(err.Error(), "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "*"))
		if line != "" && !strings.HasSuffix(line, "error(s) decoding:") && !strings.HasPrefix(line, "decoding failed") {
			out = append(out, errors.New(line))
		}
	}
	return out
}
