package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/postgres"
	"github.com/safedelivr/safedelivr/postgres/queue"
	"github.com/safedelivr/safedelivr/providers"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/sqlite"
	"github.com/safedelivr/safedelivr/store"
)

// OpenStore opens the store that the configuration names. It returns sqlite.ErrInUse if another process has the data
// folder.
func OpenStore(ctx context.Context, cfg *config.Config, log *slog.Logger) (models.Store, error) {
	if cfg.Store != "" {
		return orNil[models.Store](postgres.Open(ctx, PostgresConfig(cfg, log)))
	}
	if len(cfg.Cassandra.Hosts) == 0 {
		return orNil[models.Store](sqlite.Open(cfg.DataDir, sqlite.Options{Options: storeOptions(cfg)}))
	}
	c, err := CassandraConfig(cfg, log)
	if err != nil {
		return nil, err
	}
	return orNil[models.Store](cassandra.Open(ctx, c))
}

// storeOptions returns the settings that stores over shapes share.
func storeOptions(cfg *config.Config) store.Options {
	return store.Options{InboxKeep: cfg.Times.InboxKeep}
}

// OpenBroker opens the broker that the configuration names.
func OpenBroker(ctx context.Context, cfg *config.Config, log *slog.Logger) (models.Broker, error) {
	if cfg.Store != "" && cfg.AMQP.URL == "" {
		return orNil[models.Broker](queue.Open(ctx, QueueConfig(cfg, log)))
	}
	if cfg.AMQP.URL == "" {
		return orNil[models.Broker](inproc.New(cfg.ProviderNames(), log))
	}
	c, err := RabbitConfig(cfg, log)
	if err != nil {
		return nil, err
	}
	return orNil[models.Broker](rabbit.Open(ctx, c))
}

// orNil returns what a constructor returned as an interface, which is nil if there was an error. A nil pointer in an
// interface would not be nil.
func orNil[I any, T any](v T, err error) (out I, _ error) {
	if err != nil {
		return out, err
	}
	out, _ = any(v).(I) // the packages of the constructors assert it
	return out, nil
}

// RabbitConfig returns the settings of RabbitMQ.
func RabbitConfig(cfg *config.Config, log *slog.Logger) (rabbit.Config, error) {
	c := &cfg.AMQP
	secure, err := clientTLS("amqp", c.TLSCA, c.TLSCert, c.TLSKey)
	return rabbit.Config{
		URL:       c.URL,
		Prefix:    c.Prefix,
		Providers: cfg.ProviderNames(),
		TLS:       secure,
		Logger:    log,
	}, err
}

// PostgresConfig returns the settings of the store in PostgreSQL.
func PostgresConfig(cfg *config.Config, log *slog.Logger) postgres.Config {
	c := &cfg.Postgres
	return postgres.Config{
		URL:         cfg.Store,
		Schema:      c.Schema,
		Connections: c.Connections,
		Migrate:     c.Migrate,
		Timeout:     c.Timeout,
		Logger:      log,
		Options:     storeOptions(cfg),
	}
}

// QueueConfig returns the settings of the broker in PostgreSQL.
func QueueConfig(cfg *config.Config, log *slog.Logger) queue.Config {
	return queue.Config{
		URL:       cfg.Store,
		Schema:    cfg.Postgres.Schema,
		Providers: cfg.ProviderNames(),
		MaxConns:  cfg.Postgres.Connections,
		Logger:    log,
	}
}

// CassandraConfig returns the settings of Cassandra.
func CassandraConfig(cfg *config.Config, log *slog.Logger) (cassandra.Config, error) {
	c := &cfg.Cassandra
	var secure *tls.Config
	if c.TLSCA != "" {
		var err error
		if secure, err = clientTLS("cassandra", c.TLSCA, c.TLSCert, c.TLSKey); err != nil {
			return cassandra.Config{}, err
		}
	}
	return cassandra.Config{
		Hosts:       c.Hosts,
		Keyspace:    c.Keyspace,
		Username:    c.Username,
		Password:    c.Password,
		LocalDC:     c.LocalDC,
		Replication: c.Replication,
		Consistency: c.Consistency,
		Serial:      c.Serial,
		Timeout:     c.Timeout,
		Migrate:     c.Migrate,
		TLS:         secure,
		Logger:      log,
		Options:     storeOptions(cfg),
	}, nil
}

// OpenProviders opens the adapters of the configured providers. Its error joins all mistakes.
func OpenProviders(cfg *config.Config, log *slog.Logger) ([]provider.Spec, error) {
	var out []provider.Spec
	var mistakes []error
	for _, name := range cfg.ProviderNames() {
		if wrong := checkProvider(cfg, providerSettings(cfg, name)); len(wrong) > 0 {
			mistakes = append(mistakes, wrong...)
			continue
		}
		p, err := openProvider(cfg, name, log)
		if err != nil {
			mistakes = append(mistakes, err)
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(mistakes...)
}

func openProvider(cfg *config.Config, name string, log *slog.Logger) (provider.Spec, error) {
	c := cfg.Providers[name]
	adapter, err := providers.New(providerSettings(cfg, name))
	if err != nil {
		return provider.Spec{}, err
	}
	events := eventsOf(c)
	if s := providerSettings(cfg, name); events == models.EventsWebhook && !s.Verifiable() {
		verifier := "webhook_key"
		if k, _ := providers.Find(c.Kind); k.Region {
			verifier = "topics"
		}
		log.Warn("provider has no webhook key: its webhooks are answered 503 and its mail gets no final event; set "+
			cfg.Name("providers."+name+"."+verifier)+", or "+cfg.Name("providers."+name+".events")+
			" to none if it cannot reach this server", "provider", name)
	}
	return provider.Spec{Adapter: adapter, Provider: models.Provider{
		Name:           name,
		Kind:           c.Kind,
		Weight:         c.Weight,
		Concurrency:    c.Concurrency,
		Rate:           c.Rate,
		CallRate:       c.CallRate,
		ChunkLimit:     min(c.ChunkLimit, adapter.MaxRecipients()),
		Timeout:        c.Timeout,
		Events:         events,
		EvidenceWindow: evidenceWindow(cfg, c, adapter),
		KeyLifetime:    keyLifetime(adapter),
		Carries:        carries(c.Kind),
	}}, nil
}

// keyLifetime returns how long the provider of an adapter answers a repeated call as it answered the first one.
func keyLifetime(a models.Adapter) time.Duration {
	if keyed, ok := a.(interface{ KeyLifetime() time.Duration }); ok {
		return keyed.KeyLifetime()
	}
	return 0
}

// eventsOf returns whether a provider reports events. A kind without webhooks never does.
func eventsOf(c config.Provider) models.EventSource {
	if k, _ := providers.Find(c.Kind); k.Server {
		return models.EventsNone
	}
	return models.EventSource(c.Events)
}

// carries returns what a kind of provider carries.
func carries(kind string) models.Capabilities {
	k, _ := providers.Find(kind) // the adapter was made from it
	return k.Carries
}

// providerSettings returns the settings of a provider's adapter.
func providerSettings(cfg *config.Config, name string) providers.Settings {
	c := cfg.Providers[name]
	s := providers.Settings{
		Name:          name,
		Kind:          c.Kind,
		APIKey:        c.APIKey,
		Pair:          c.Pair,
		Domain:        c.Domain,
		BaseURL:       c.BaseURL,
		WebhookKey:    c.WebhookKey,
		WebhookKeyOld: c.WebhookKeyOld,
		Events:        eventsOf(c),
		Timeout:       c.Timeout,
		MaxConns:      c.Concurrency,
		Server:        c.Server,
		OAuth:         c.OAuth,
		Bounces:       c.Bounces,
		Amazon:        c.Amazon,
	}
	if !s.Verifiable() {
		s.Events = models.EventsNone // posts that cannot be verified are answered 503
	}
	return s
}

// CloseProviders closes the adapters.
func CloseProviders(providers []provider.Spec) {
	for i := range providers {
		if providers[i].Adapter != nil {
			providers[i].Adapter.Close()
		}
	}
}

// evidenceWindow returns how long an unknown outcome at a provider waits for evidence; 0 is the window of all
// providers. If nothing is configured, a provider whose events can be looked up also gets the time until it knows
// them.
func evidenceWindow(cfg *config.Config, c config.Provider, adapter models.Adapter) time.Duration {
	l, ok := adapter.(models.EventLookup)
	usual := config.Defaults().Times.EvidenceWindow
	if ok && c.Evidence == 0 && cfg.Times.EvidenceWindow == usual {
		return usual + l.LookupLag()
	}
	return c.Evidence
}

// EngineConfig returns the settings of a worker.
func EngineConfig(cfg *config.Config, log *slog.Logger) consumers.Config {
	c := consumers.Config{
		Worker: cfg.Worker,
		Times:  cfg.Times,
		Limits: cfg.Limits,
		Pace:   settings.Default[settings.Pace](),
		Logger: log,
	}
	c.InboxAge = min(c.InboxAge, c.Recheck)
	c.EndpointClient = outbound.New(cfg.AllowedEndpoints())
	c.Sole = SoleProcess(cfg)
	return c
}

// SoleProcess reports whether no other process can use the store. Only one process can open the data folder of the
// embedded store.
func SoleProcess(cfg *config.Config) bool { return StoreName(cfg) == "sqlite" }

// StoreName returns sqlite, postgres or cassandra.
func StoreName(cfg *config.Config) string {
	if cfg.Store != "" {
		return "postgres"
	}
	if len(cfg.Cassandra.Hosts) > 0 {
		return "cassandra"
	}
	return "sqlite"
}

// BrokerName returns in-process, postgres or rabbitmq.
func BrokerName(cfg *config.Config) string {
	switch {
	case cfg.AMQP.URL != "":
		return "rabbitmq"
	case cfg.Store != "":
		return "postgres"
	}
	return "in-process"
}
