// Package config reads the configuration from the environment and an optional file. It reports all mistakes together.
package config

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
)

// Prefix is the prefix of all environment variables. SAFEDELIVR_PROVIDERS_SG_API_KEY sets providers.sg.api_key.
const Prefix = "SAFEDELIVR_"

// The comments of the fields below are the text of docs/configuration.md, in Markdown; see internal/site. Package
// settings explains their tags.

// Config is the whole configuration.
type Config struct {
	// address of API, webhooks and dashboard, as `host:port`; an empty host means all addresses of the machine
	Listen string `koanf:"listen" default:"127.0.0.1:8080"`
	// URL for browsers and providers; `https://` makes cookies Secure, and so does a request over TLS. If it is not set,
	// it is `http://` and the listen address, and mail has no links to unsubscribe
	PublicURL string `koanf:"public_url"`
	// networks or addresses of reverse proxies, separated by commas; see [behind a reverse proxy](proxy.md)
	TrustedProxies []string `koanf:"trusted_proxies"`
	// networks or addresses that posts to users' endpoints may reach although they are private, separated by commas
	EndpointNetworks []string `koanf:"endpoint_networks"`
	// use PostgreSQL as store and broker: a `postgres://` URL with user, password, hosts, database and `sslmode`. Of
	// several hosts the one that can write is used. If it is not set, the embedded store is used, or Cassandra
	Store string `koanf:"store"`
	// folder of the embedded store and of the spool for large requests
	DataDir string `koanf:"data_dir" default:"safedelivr-data"`
	// what this process does, separated by commas; separate processes need PostgreSQL, or Cassandra and RabbitMQ
	Roles []string `koanf:"roles" oneof:"api,webhooks,worker" default:"api,webhooks,worker"`
	// APIs of other services that applications may speak, separated by commas; see [switch](switch.md)
	Dialects []string `koanf:"dialects" oneof:"mailgun,sendgrid,resend,postmark"`
	// name of this process; must be unique. If it is not set, it is the host name and the process ID
	Worker string `koanf:"worker"`
	// lowest level of the lines of the log
	Log string `koanf:"log" oneof:"debug,info,warn,error" default:"info"`
	// log as JSON
	LogJSON bool `koanf:"log_json"`
	// currency of the prices of all providers, as three letters (ISO 4217) like `EUR`; dry runs and the dashboard then say
	// what a batch costs
	Currency string `koanf:"currency"`

	TLS       TLS                 `koanf:"tls"`
	SMTP      SMTP                `koanf:"smtp"`
	SMTPS     SMTPS               `koanf:"smtps"`
	Metrics   Metrics             `koanf:"metrics"`
	Traces    Traces              `koanf:"traces"`
	GitHub    GitHub              `koanf:"github"`
	Postgres  Postgres            `koanf:"postgres"`
	Cassandra Cassandra           `koanf:"cassandra"`
	AMQP      AMQP                `koanf:"amqp"`
	Limits    settings.Limits     `koanf:"limits"`
	Quotas    Quotas              `koanf:"quotas"`
	Times     settings.Times      `koanf:"times"`
	Providers map[string]Provider `koanf:"providers"`

	names names
}

// TLS makes the HTTP server speak TLS. It is on if Cert is set.
type TLS struct {
	// file of a certificate with its chain (PEM): `LISTEN` then speaks TLS 1.2 and newer. A new file is used within a
	// second, without losing a connection
	Cert string `koanf:"cert"`
	// file of the key of the certificate (PEM)
	Key string `koanf:"key"`
}

// SMTP takes mail from applications by SMTP. It is on if Listen is set, or that of SMTPS.
type SMTP struct {
	// addresses at which processes with the role `api` take mail by SMTP, separated by commas, as `host:port`, like
	// `:587,:2525`; see [switch](switch.md#smtp). Clients begin TLS by STARTTLS. Without a certificate only clients on the
	// same machine can log in
	Listen []string `koanf:"listen"`
	// connections of `TRUSTED_PROXIES` to the ports of SMTP and SMTPS must begin with a header of the PROXY protocol,
	// version 1 or 2; see [behind a proxy](proxy.md#smtp). It names the client. Other connections have none
	ProxyProtocol bool `koanf:"proxy_protocol"`
	// file of a certificate with its chain (PEM) for SMTP. If it is not set, it is `TLS_CERT`. A new file is used within a
	// second
	TLSCert string `koanf:"tls_cert"`
	// file of the key of the certificate (PEM). If it is not set, it is `TLS_KEY`
	TLSKey string `koanf:"tls_key"`
}

// SMTPS is SMTP in TLS from the first byte.
type SMTPS struct {
	// addresses at which processes with the role `api` take mail by SMTP in TLS from the first byte, separated by commas,
	// as `host:port`, like `:465`; they need a certificate
	Listen []string `koanf:"listen"`
}

// Traces configures tracing. It is on if Endpoint is set.
type Traces struct {
	// OpenTelemetry collector (OTLP over HTTP), like `http://collector:4318`; a batch's ID is the ID of its trace
	Endpoint string `koanf:"endpoint"`
	// share of batches that are traced
	Ratio float64 `koanf:"ratio" range:"0..1" default:"1"`
}

// Postgres configures PostgreSQL. It is used if Config.Store is set.
type Postgres struct {
	// schema that holds all tables: up to 40 lower-case letters, digits and _
	Schema string `koanf:"schema" default:"safedelivr"`
	// the highest number of connections of this process for the store. The broker has as many
	Connections int `koanf:"connections" range:"2..1000" default:"16"`
	// how long a call of the store tries
	Timeout time.Duration `koanf:"timeout" range:">0" default:"20s"`
	// `serve` creates schema and tables
	Migrate bool `koanf:"migrate" default:"true"`
}

// Cassandra configures the store in Cassandra. It is used if Hosts is set.
type Cassandra struct {
	// use Cassandra: `host:port`, separated by commas
	Hosts []string `koanf:"hosts"`
	// keyspace: a letter, then a-z, 0-9 and _
	Keyspace string `koanf:"keyspace" default:"safedelivr"`
	// user name
	Username string `koanf:"username"`
	// password
	Password string `koanf:"password"`
	// local data centre
	LocalDC string `koanf:"local_dc"`
	// CQL map for creating the keyspace
	Replication string `koanf:"replication" default:"{'class': 'SimpleStrategy', 'replication_factor': 1}"`
	// consistency of reads and writes; checked at start against the keyspace
	Consistency string `koanf:"consistency" oneof:"ONE,LOCAL_ONE,TWO,THREE,QUORUM,LOCAL_QUORUM,EACH_QUORUM,ALL" default:"LOCAL_QUORUM"`
	// consistency of compare-and-set; checked at start against the keyspace
	Serial string `koanf:"serial_consistency" oneof:"SERIAL,LOCAL_SERIAL" default:"LOCAL_SERIAL"`
	// time limit of a statement
	Timeout time.Duration `koanf:"timeout" range:">0" default:"10s"`
	// `serve` applies migrations
	Migrate bool `koanf:"migrate" default:"true"`
	// file of the CA that signed the nodes' certificates (PEM): use TLS. The certificates must have the names in `HOSTS`
	// and the addresses by which the nodes know each other
	TLSCA string `koanf:"tls_ca"`
	// file of this client's certificate (PEM), read again for each connection
	TLSCert string `koanf:"tls_cert"`
	// file of the key of this client's certificate (PEM)
	TLSKey string `koanf:"tls_key"`
}

// AMQP configures RabbitMQ as the broker. It is used if URL is set.
type AMQP struct {
	// use RabbitMQ: an `amqp://` or `amqps://` URL; for a cluster, one for each node, separated by commas
	URL string `koanf:"url"`
	// prefix of exchange and queue names: 1 to 40 letters, digits, _ and -
	Prefix string `koanf:"prefix" default:"sd"`
	// for `amqps://` URLs: file of the CA that signed the nodes' certificates (PEM). If it is not set, the system's CAs
	// are used
	TLSCA string `koanf:"tls_ca"`
	// file of this client's certificate (PEM), read again for each connection
	TLSCert string `koanf:"tls_cert"`
	// file of the key of this client's certificate (PEM)
	TLSKey string `koanf:"tls_key"`
}

// GitHub configures the login to the dashboard through GitHub. It is on if ClientID is set.
type GitHub struct {
	// client ID of the OAuth app: users log in through GitHub
	ClientID string `koanf:"client_id"`
	// client secret of the OAuth app
	ClientSecret string `koanf:"client_secret"`
	// operators, separated by commas: a login, or `id:` and the number of the account, which `curl
	// https://api.github.com/users/LOGIN` shows
	Operators []string `koanf:"operators"`
	// users, likewise. A login belongs to the account that first used it here
	Logins []string `koanf:"logins"`
	// organisations whose members are users; needs the scope `read:org`. The membership is checked again every 30 minutes
	Orgs []string `koanf:"orgs"`
	// URL of a GitHub Enterprise Server. If it is not set, it is `https://github.com`
	BaseURL string `koanf:"base_url"`
	// URL of the API. If it is not set, it is `https://api.github.com`, or `BASE_URL` with `/api/v3`
	APIURL string `koanf:"api_url"`
}

// Metrics are served at an address of their own, because they say much about all users.
type Metrics struct {
	// address of `/metrics`, as `host:port`, or `off`; in a container, `:9464`
	Listen string `koanf:"listen" default:"127.0.0.1:9464"`
	// serve profiles at `/debug/pprof/` of that address
	Pprof bool `koanf:"pprof"`
}

// Quotas bounds what each user may ask for, unless an operator sets other limits for the user. 0 means no limit.
type Quotas struct {
	// requests to the API, and as many to the dashboard; as many at once after a pause
	RequestsPerSecond int64 `koanf:"requests_per_second" range:"0.." unit:"requests/s" default:"200"`
	// requests to the API that run at the same time, and as many to the dashboard
	RequestsAtOnce int64 `koanf:"requests_at_once" range:"0.." unit:"requests" default:"32"`
	// recipients of the batches accepted in a UTC hour
	RecipientsPerHour int64 `koanf:"recipients_per_hour" range:"0.." unit:"recipients" default:"5000000"`
	// recipients of the batches accepted in a UTC day
	RecipientsPerDay int64 `koanf:"recipients_per_day" range:"0.." unit:"recipients" default:"20000000"`
	// recipients of urgent batches that may leave in a UTC hour. A batch over it is accepted as bulk
	UrgentRecipientsPerHour int64 `koanf:"urgent_recipients_per_hour" range:"0.." unit:"recipients" default:"10000"`
	// batches accepted in a UTC day
	BatchesPerDay int64 `koanf:"batches_per_day" range:"0.." unit:"batches" default:"5000000"`
	// batches that are stored, until they are removed `KEEP_LOGS` after they were accepted
	StoredBatches int64 `koanf:"stored_batches" range:"0.." unit:"batches" default:"100000000"`
	// content, recipients and attachments of the stored batches, before they are compressed, until they are removed
	// `KEEP_CONTENT` after the batch was accepted
	StoredBytes int64 `koanf:"stored_bytes" range:"0.." unit:"bytes" default:"107374182400"`
	// recipients and attachments of the requests that are being read, on disk. The processes divide it
	SpoolBytes int64 `koanf:"spool_bytes" range:"0.." unit:"bytes" default:"4294967296"`
}

// Limits returns the quotas by the names of the limits.
func (q *Quotas) Limits() models.Limits {
	return models.Limits{
		models.RequestsPerSecond: q.RequestsPerSecond,
		models.RequestsAtOnce:    q.RequestsAtOnce,
		models.RecipientsPerHour: q.RecipientsPerHour,
		models.RecipientsPerDay:  q.RecipientsPerDay,
		models.BatchesPerDay:     q.BatchesPerDay,
		models.StoredBatches:     q.StoredBatches,
		models.StoredBytes:       q.StoredBytes,
		models.SpoolBytes:        q.SpoolBytes,

		models.UrgentRecipientsPerHour: q.UrgentRecipientsPerHour,
	}
}

// Provider configures a provider: a kind with credentials.
type Provider struct {
	// kind of provider, like `sendgrid`: [one of these](capabilities.md); required
	Kind string `koanf:"kind"`
	// API key; required, but for Amazon SES, SMTP and LMTP
	APIKey        string `koanf:"api_key"`
	settings.Pair `koanf:",squash"`
	// sending domain; required for Mailgun, which sends for one
	Domain string `koanf:"domain"`
	// API of another region, or a simulator. If it is not set, it is that of the kind
	BaseURL string `koanf:"base_url"`
	// verifies webhooks: a public key, a signing key, or a secret in their header ([which](webhooks.md)). For SMTP and
	// LMTP a secret that signs the addresses of [reports](smtp.md#reports)
	WebhookKey string `koanf:"webhook_key"`
	// verifies webhooks, too, while the key is being changed
	WebhookKeyOld    string `koanf:"webhook_key_old"`
	settings.Server  `koanf:",squash"`
	settings.OAuth   `koanf:",squash"`
	settings.Bounces `koanf:",squash"`
	settings.Amazon  `koanf:",squash"`
	// `none` if the provider cannot reach this server: mail that it accepted counts as delivered, marked `unconfirmed`
	Events string `koanf:"events" oneof:"webhook,none" default:"webhook"`
	// share of the mail, relative to the other providers
	Weight int `koanf:"weight" range:"1..1000" default:"1"`
	// concurrent calls of all workers
	Concurrency int `koanf:"concurrency" range:"1..1000" unit:"calls" default:"16"`
	// limit of all workers; 0: none. In w seconds at most `RATE` × w plus a burst of `RATE`, or of one per worker if that
	// is more
	Rate float64 `koanf:"rate" range:"0.." unit:"recipients/s"`
	// limit of all workers; 0: none
	CallRate float64 `koanf:"call_rate" range:"0.." unit:"calls/s"`
	// recipients per call
	ChunkLimit int `koanf:"chunk_limit" range:"1..1000" unit:"recipients" default:"1000"`
	// time limit of a call
	Timeout time.Duration `koanf:"timeout" range:">0" default:"30s"`
	// how long an unknown outcome waits for evidence. If it is not set, it is `TIMES_EVIDENCE_WINDOW`; if that is not set
	// either, that and the lag of the logs of a provider that can be queried, like `25m` for SendGrid
	Evidence time.Duration `koanf:"evidence_window" range:"0.."`
	// what 1,000 messages cost in the currency of `CURRENCY`, like `0.85`; required if that is set
	Price string `koanf:"price"`
}

// Prices returns what 1,000 messages cost at each provider. It is empty if no currency is set.
func (c *Config) Prices() map[string]float64 {
	out := map[string]float64{}
	for name, p := range c.Providers {
		if price, err := strconv.ParseFloat(p.Price, 64); err == nil && c.Currency != "" {
			out[name] = price
		}
	}
	return out
}

// ProviderNames returns the sorted names of the providers.
func (c *Config) ProviderNames() []string { return slices.Sorted(maps.Keys(c.Providers)) }

// Has reports whether the process has a role.
func (c *Config) Has(role string) bool { return slices.Contains(c.Roles, role) }
