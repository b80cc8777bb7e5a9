// Package config reads the configuration from the environment and an optional file. It
// reports all mistakes together.
package config

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Prefix is the prefix of all environment variables. SAFEDELIVR_PROVIDERS_SG_API_KEY sets
// providers.sg.api_key.
const Prefix = "SAFEDELIVR_"

// The comments of the fields below are the text of docs/configuration.md, in Markdown; see internal/site. The tag range
// has the numbers that a setting may have, the tag oneof its words, and the tag unit what a number counts.

// Config is the whole configuration.
type Config struct {
	// address of API, webhooks and dashboard, as `host:port`; an empty host means all addresses of the machine
	Listen string `koanf:"listen"`
	// URL for browsers and providers; `https://` makes cookies Secure, and so does a request over TLS. If it is not set,
	// it is `http://` and the listen address, and mail has no links to unsubscribe
	PublicURL string `koanf:"public_url"`
	// networks or addresses of reverse proxies, separated by commas; see [behind a reverse proxy](proxy.md)
	TrustedProxies []string `koanf:"trusted_proxies"`
	// networks or addresses that posts to users' endpoints may reach although they are private, separated by commas
	EndpointNetworks []string `koanf:"endpoint_networks"`
	// use PostgreSQL as store and broker: a `postgres://` URL with user, password, hosts, database and `sslmode`. Of several
	// hosts the one that can write is used. If it is not set, the embedded store is used, or Cassandra
	Store string `koanf:"store"`
	// folder of the embedded store and of the spool for large requests
	DataDir string `koanf:"data_dir"`
	// what this process does, separated by commas; separate processes need PostgreSQL, or Cassandra and RabbitMQ
	Roles []string `koanf:"roles" oneof:"api,webhooks,worker"`
	// name of this process; must be unique. If it is not set, it is the host name and the process ID
	Worker string `koanf:"worker"`
	// lowest level of the lines of the log
	Log string `koanf:"log" oneof:"debug,info,warn,error"`
	// log as JSON
	LogJSON bool `koanf:"log_json"`
	// currency of the prices of all providers, as three letters (ISO 4217) like `EUR`; dry runs and the dashboard then say
	// what a batch costs
	Currency string `koanf:"currency"`

	TLS       TLS                 `koanf:"tls"`
	Metrics   Metrics             `koanf:"metrics"`
	Traces    Traces              `koanf:"traces"`
	GitHub    GitHub              `koanf:"github"`
	Postgres  Postgres            `koanf:"postgres"`
	Cassandra Cassandra           `koanf:"cassandra"`
	AMQP      AMQP                `koanf:"amqp"`
	Limits    Limits              `koanf:"limits"`
	Quotas    Quotas              `koanf:"quotas"`
	Times     Times               `koanf:"times"`
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

// Traces configures tracing. It is on if Endpoint is set.
type Traces struct {
	// OpenTelemetry collector (OTLP over HTTP), like `http://collector:4318`; a batch's ID is the ID of its trace
	Endpoint string `koanf:"endpoint"`
	// share of batches that are traced
	Ratio float64 `koanf:"ratio" range:"0..1"`
}

// Postgres configures PostgreSQL. It is used if Config.Store is set.
type Postgres struct {
	// schema that holds all tables: up to 40 lower-case letters, digits and _
	Schema string `koanf:"schema"`
	// the highest number of connections of this process for the store. The broker has as many
	Connections int `koanf:"connections" range:"2..1000"`
	// how long a call of the store tries
	Timeout time.Duration `koanf:"timeout" range:">0"`
	// `serve` creates schema and tables
	Migrate bool `koanf:"migrate"`
}

// Cassandra configures the store in Cassandra. It is used if Hosts is set.
type Cassandra struct {
	// use Cassandra: `host:port`, separated by commas
	Hosts []string `koanf:"hosts"`
	// keyspace: a letter, then a-z, 0-9 and _
	Keyspace string `koanf:"keyspace"`
	// user name
	Username string `koanf:"username"`
	// password
	Password string `koanf:"password"`
	// local data centre
	LocalDC string `koanf:"local_dc"`
	// CQL map for creating the keyspace
	Replication string `koanf:"replication"`
	// consistency of reads and writes; checked at start against the keyspace
	Consistency string `koanf:"consistency" oneof:"ONE,LOCAL_ONE,TWO,THREE,QUORUM,LOCAL_QUORUM,EACH_QUORUM,ALL"`
	// consistency of compare-and-set; checked at start against the keyspace
	Serial string `koanf:"serial_consistency" oneof:"SERIAL,LOCAL_SERIAL"`
	// time limit of a statement
	Timeout time.Duration `koanf:"timeout" range:">0"`
	// `serve` applies migrations
	Migrate bool `koanf:"migrate"`
	// file of the CA that signed the nodes' certificates (PEM): use TLS. The certificates must have the names in `HOSTS`
	// and the addresses that the nodes tell each other
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
	Prefix string `koanf:"prefix"`
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
	// operators, separated by commas: a login, or `id:` and the number of the account, which
	// `curl https://api.github.com/users/LOGIN` shows
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

// DefaultMetrics is the default address of the metrics.
const DefaultMetrics = "127.0.0.1:9464"

// Metrics are served at an address of their own, because they tell much about all users.
type Metrics struct {
	// address of `/metrics`, as `host:port`, or `off`; in a container, `:9464`
	Listen string `koanf:"listen"`
	// serve profiles at `/debug/pprof/` of that address
	Pprof bool `koanf:"pprof"`
}

// Limits bounds requests, connections and retries.
type Limits struct {
	// size of a batch
	Recipients int `koanf:"recipients" range:"1..1048576000" unit:"recipients"`
	// size of subject, text and HTML of a batch
	Content int64 `koanf:"content" range:">0" unit:"bytes"`
	// size of a request
	Body int64 `koanf:"body" range:">0" unit:"bytes"`
	// memory of a worker for the attachments of its calls, which take three times their size; each provider has an equal
	// part, and at least 75 MB
	AttachmentMemory int64 `koanf:"attachment_memory" range:">0" unit:"bytes"`
	// retries per recipient. Mail that all its providers refuse for a temporary reason waits beyond that, until it
	// expires
	Retries int `koanf:"retries" range:"0..1000" unit:"attempts"`
	// share of a batch's recipients that may fail because the mailbox does not exist. If there are more, the batch is
	// stopped once, when at least 100 were tried; its user or an operator may resume it. 0: it is never stopped
	Bounces float64 `koanf:"bounces" range:"0..100" unit:"percent"`
	// highest complaint rate of a user's mail that was accepted on a UTC day and delivered. Above it, operators get the
	// notice `complaints.high`, once for the user and day. 0: they never do
	Complaints float64 `koanf:"complaints" range:"0..100" unit:"percent"`
	// mails of a user and day that must be delivered before there is such a notice
	ComplaintsFrom int64 `koanf:"complaints_from" range:">0" unit:"mails"`
	// mails in a row that no provider could deliver to an address, because its mailbox is full or its server does not take
	// them. Then the address is suppressed for `TIMES_SOFT_BOUNCE_EXPIRY`. 0: it never is
	SoftBounces int `koanf:"soft_bounces" range:"0..100" unit:"mails"`
	// a batch of up to this size is urgent
	UrgentUpTo int `koanf:"urgent_up_to" range:">0" unit:"recipients"`
	// open HTTP connections; more wait
	Connections int `koanf:"connections" range:">0" unit:"connections"`
	// open HTTP connections of one address; more are closed. Of a client behind a trusted proxy: open requests
	AddressConnections int `koanf:"address_connections" range:">0" unit:"connections"`
	// while the disk of `DATA_DIR` has less free space, batches, imports, templates and drafts are refused (503), and all
	// that was accepted goes on. With less than four times as much, the users are refused who have stored more than is
	// free above the reserve. 0: no reserve
	DiskReserve int64 `koanf:"disk_reserve" range:"0.." unit:"bytes"`
}

// Quotas bounds what each user may ask for, unless an operator sets other limits for the user. 0 means no limit.
type Quotas struct {
	// requests to the API, and as many to the dashboard; as many at once after a pause
	RequestsPerSecond int64 `koanf:"requests_per_second" range:"0.." unit:"requests/s"`
	// requests to the API that run at the same time, and as many to the dashboard
	RequestsAtOnce int64 `koanf:"requests_at_once" range:"0.." unit:"requests"`
	// recipients of the batches accepted in a UTC hour
	RecipientsPerHour int64 `koanf:"recipients_per_hour" range:"0.." unit:"recipients"`
	// recipients of the batches accepted in a UTC day
	RecipientsPerDay int64 `koanf:"recipients_per_day" range:"0.." unit:"recipients"`
	// recipients of urgent batches that may leave in a UTC hour. A batch over it is accepted as bulk
	UrgentRecipientsPerHour int64 `koanf:"urgent_recipients_per_hour" range:"0.." unit:"recipients"`
	// batches accepted in a UTC day
	BatchesPerDay int64 `koanf:"batches_per_day" range:"0.." unit:"batches"`
	// batches that are stored, until they are removed `KEEP_LOGS` after they were accepted
	StoredBatches int64 `koanf:"stored_batches" range:"0.." unit:"batches"`
	// content, recipients and attachments of the stored batches, before they are compressed, until they are removed
	// `KEEP_CONTENT` after the batch was accepted
	StoredBytes int64 `koanf:"stored_bytes" range:"0.." unit:"bytes"`
	// recipients and attachments of the requests that are being read, on disk. The processes divide it
	SpoolBytes int64 `koanf:"spool_bytes" range:"0.." unit:"bytes"`
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

// Times holds durations. One of them bounds each state of a log.
type Times struct {
	// mail that is not sent within this time after acceptance fails as `expired`
	ExpireAfter time.Duration `koanf:"expire_after" range:">0"`
	// a call must begin within this time after it was recorded
	StartBy time.Duration `koanf:"start_by" range:">0"`
	// how long an unknown outcome waits for evidence, from its answer or the latest end of its call
	EvidenceWindow time.Duration `koanf:"evidence_window" range:">0"`
	// how long accepted mail waits for a final event
	FinalEvent time.Duration `koanf:"final_event" range:">0"`
	// interval at which the agenda reconciles unfinished work
	Recheck time.Duration `koanf:"recheck" range:">0"`
	// pause after a rejected key or quota
	Hold time.Duration `koanf:"hold" range:">0"`
	// first pause after failed calls. It doubles with each failed probe, up to 3× (calls refused), 12× (time-outs, no
	// other provider) or 360× (time-outs, others available)
	BreakerOpen time.Duration `koanf:"breaker_open" range:">0"`
	// minimum time without any report before a provider that accepts mail is suspended
	Silence time.Duration `koanf:"silence" range:">0"`
	// age at which chunks of an unfinished upload are removed; storing one may take a quarter of it
	IntakeGrace time.Duration `koanf:"intake_grace" range:">0"`
	// how long idempotency keys and their answers are kept
	Idempotency time.Duration `koanf:"idempotency" range:">0"`
	// how long content and recipients are kept at least. They are removed when the batch has expired and the wait for
	// final events is over, too. States and timelines stay, without addresses
	KeepContent time.Duration `koanf:"keep_content" range:">0"`
	// how long batches, logs and commands are kept, at least `KEEP_CONTENT`. Then batches answer 404, and only the sums of
	// days stay
	KeepLogs time.Duration `koanf:"keep_logs" range:">0"`
	// how long updates can be read from `GET /v1/updates`
	KeepUpdates time.Duration `koanf:"keep_updates" range:">0"`
	// how long raw webhooks are kept (embedded store)
	InboxKeep time.Duration `koanf:"inbox_keep" range:">0"`
	// how often the suppression lists that the providers keep are read; 0: never
	ProviderLists time.Duration `koanf:"provider_lists" range:"0.."`
	// how long an address is suppressed after `LIMITS_SOFT_BOUNCES`, from the newest bounce on
	SoftBounceExpiry time.Duration `koanf:"soft_bounce_expiry" range:">0"`
	// how long a shutdown waits for calls in flight
	StopGrace time.Duration `koanf:"stop_grace" range:">0"`
}

// Provider configures a provider: a kind with credentials.
type Provider struct {
	// `sendgrid` or `mailgun`; required
	Kind string `koanf:"kind"`
	// API key; required
	APIKey string `koanf:"api_key"`
	// sending domain; required for Mailgun, others have none
	Domain string `koanf:"domain"`
	// API of another region, or a simulator. If it is not set, it is that of the kind
	BaseURL string `koanf:"base_url"`
	// verifies webhooks: SendGrid's public key, Mailgun's signing key
	WebhookKey string `koanf:"webhook_key"`
	// verifies webhooks, too, while the key is being changed
	WebhookKeyOld string `koanf:"webhook_key_old"`
	// `none` if the provider cannot reach this server: mail that it accepted counts as delivered, marked `unconfirmed`
	Events string `koanf:"events" oneof:"webhook,none"`
	// share of the mail, relative to the other providers
	Weight int `koanf:"weight" range:"1..1000"`
	// concurrent calls of all workers
	Concurrency int `koanf:"concurrency" range:"1..1000" unit:"calls"`
	// limit of all workers; 0: none. In w seconds at most `RATE` × w plus a burst of `RATE`, or of one per worker if that
	// is more
	Rate float64 `koanf:"rate" range:"0.." unit:"recipients/s"`
	// limit of all workers; 0: none
	CallRate float64 `koanf:"call_rate" range:"0.." unit:"calls/s"`
	// recipients per call
	ChunkLimit int `koanf:"chunk_limit" range:"1..1000" unit:"recipients"`
	// time limit of a call
	Timeout time.Duration `koanf:"timeout" range:">0"`
	// how long an unknown outcome waits for evidence. If it is not set, it is `TIMES_EVIDENCE_WINDOW`; if that is not set
	// either, `25m` for SendGrid and `45m` for Mailgun, whose logs are queried meanwhile
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
