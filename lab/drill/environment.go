package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/postgres"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/sqlite"
)

// setup is what a run uses: the broker and the store of the configuration, and a program.
type setup struct {
	cfg     config.Config
	program string
	log     *slog.Logger
	pair    simulated.Pair
}

func newSetup(o Options) setup {
	if o.Providers[0].Name == "" {
		o.Providers = simulated.Usual
	}
	if o.Program == "" {
		o.Program, _ = os.Executable() // a start fails without it
	}
	return setup{
		cfg:     o.Config,
		program: o.Program,
		log:     o.Log,
		pair:    o.Providers,
	}
}

func (s *setup) store() string  { return app.StoreName(&s.cfg) }
func (s *setup) broker() string { return app.BrokerName(&s.cfg) }

// ownStore and ownBroker report whether the store and the broker are part of the process.
func (s *setup) ownStore() bool  { return s.store() == "sqlite" }
func (s *setup) ownBroker() bool { return s.broker() == "in-process" }

// environment is a folder, a keyspace or schema, and a prefix of queues that belong to one lane of a run.
type environment struct {
	*setup
	dir, name string
}

// newEnvironment makes an environment with its schema.
func (s *setup) newEnvironment(ctx context.Context) (*environment, error) {
	dir, err := os.MkdirTemp("", "safedelivr-rehearse-")
	if err != nil {
		return nil, err
	}
	e := &environment{setup: s, dir: dir, name: "rehearse_" + models.NewUserID()}
	err = e.withStore(ctx, func(models.Store) error { return nil })
	if err != nil {
		return nil, errors.Join(err, e.remove(context.WithoutCancel(ctx)))
	}
	return e, nil
}

// environ returns the settings of the processes that work here.
func (e *environment) environ(more ...string) []string {
	c, p := &e.cfg.Cassandra, &e.cfg.Postgres
	out := []string{
		"SAFEDELIVR_CONFIG=", // no file, also if there is one in this folder
		"SAFEDELIVR_DATA_DIR=" + filepath.Join(e.dir, "data"),
		"SAFEDELIVR_STORE=" + e.cfg.Store,
		"SAFEDELIVR_POSTGRES_SCHEMA=" + e.name,
		"SAFEDELIVR_POSTGRES_CONNECTIONS=" + strconv.Itoa(p.Connections),
		"SAFEDELIVR_POSTGRES_TIMEOUT=" + p.Timeout.String(),
		"SAFEDELIVR_CASSANDRA_HOSTS=" + strings.Join(c.Hosts, ","),
		"SAFEDELIVR_CASSANDRA_KEYSPACE=" + e.name,
		"SAFEDELIVR_CASSANDRA_USERNAME=" + c.Username,
		"SAFEDELIVR_CASSANDRA_PASSWORD=" + c.Password,
		"SAFEDELIVR_CASSANDRA_LOCAL_DC=" + c.LocalDC,
		"SAFEDELIVR_CASSANDRA_REPLICATION=" + c.Replication,
		"SAFEDELIVR_CASSANDRA_CONSISTENCY=" + c.Consistency,
		"SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY=" + c.Serial,
		"SAFEDELIVR_CASSANDRA_TIMEOUT=" + c.Timeout.String(),
		"SAFEDELIVR_CASSANDRA_TLS_CA=" + c.TLSCA,
		"SAFEDELIVR_CASSANDRA_TLS_CERT=" + c.TLSCert,
		"SAFEDELIVR_CASSANDRA_TLS_KEY=" + c.TLSKey,
		"SAFEDELIVR_AMQP_URL=" + e.cfg.AMQP.URL,
		"SAFEDELIVR_AMQP_PREFIX=" + e.name,
		"SAFEDELIVR_AMQP_TLS_CA=" + e.cfg.AMQP.TLSCA,
		"SAFEDELIVR_AMQP_TLS_CERT=" + e.cfg.AMQP.TLSCert,
		"SAFEDELIVR_AMQP_TLS_KEY=" + e.cfg.AMQP.TLSKey,
	}
	return append(out, more...)
}

func (e *environment) config() (config.Config, error) { return config.Load("", e.environ()) }

// withStore runs f on the store. It waits a while for a process that is ending to close an embedded store.
func (e *environment) withStore(ctx context.Context, f func(models.Store) error) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	var store models.Store
	err = poll(ctx, patience, "the data folder is free", func() (bool, error) {
		store, err = app.OpenStore(ctx, &cfg, e.log)
		if errors.Is(err, sqlite.ErrInUse) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

// withBroker runs f on the queues of the broker.
func (e *environment) withBroker(ctx context.Context, f func(models.Broker) error) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	cfg.Providers = map[string]config.Provider{}
	for _, name := range e.pair.Names() {
		cfg.Providers[name] = config.Provider{}
	}
	b, err := app.OpenBroker(ctx, &cfg, e.log)
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.Close())
}

// withRabbit runs f on the queues in RabbitMQ.
func (e *environment) withRabbit(ctx context.Context, f func(*rabbit.Broker) error) error {
	c, err := app.RabbitConfig(&e.cfg, e.log)
	if err != nil {
		return err
	}
	c.Prefix, c.Providers = e.name, e.pair.Names()
	b, err := rabbit.Open(ctx, c)
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.Close())
}

// removeTime is how long remove may take.
const removeTime = 6 * time.Minute

// remove removes everything that was created for the environment.
func (e *environment) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	var errs []error
	if e.broker() == "rabbitmq" {
		if err := e.withRabbit(ctx, func(b *rabbit.Broker) error { return b.Remove(ctx) }); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove the queues and exchanges %s.*: %w", e.name, err))
		}
	}
	if !e.ownStore() {
		if err := e.drop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove the data under the name %s: %w", e.name, err))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(e.dir))...)
}

// drop removes the keyspace or schema.
func (e *environment) drop(ctx context.Context) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	if e.store() == "postgres" {
		return postgres.Drop(ctx, app.PostgresConfig(&cfg, e.log))
	}
	c, err := app.CassandraConfig(&cfg, e.log)
	if err != nil {
		return err
	}
	return cassandra.Drop(ctx, c)
}
