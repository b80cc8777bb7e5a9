package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/sqlite"
)

// setUp is what failures are rehearsed on: the services of the configuration,
// and nothing else of it.
type setUp struct {
	cfg       config.Config
	log       *slog.Logger
	addresses *addresses // of all its drills
}

func (c *cli) setUp() (setUp, error) {
	cfg, err := c.load()
	return setUp{cfg, slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: slog.LevelError})), &addresses{given: map[string]bool{}}}, err
}

func (s *setUp) store() string  { return storeName(&s.cfg) }
func (s *setUp) broker() string { return brokerName(&s.cfg) }

// own reports whether broker and store live in the process itself.
func (s *setUp) ownStore() bool  { return len(s.cfg.Cassandra.Hosts) == 0 }
func (s *setUp) ownBroker() bool { return s.cfg.AMQP.URL == "" }

// place is room on the backends that belongs to a rehearsal alone: a folder, a
// keyspace, a prefix of names.
type place struct {
	*setUp
	dir, name string
}

// newPlace makes a place, with its schema.
func (s *setUp) newPlace(ctx context.Context) (*place, error) {
	dir, err := os.MkdirTemp("", "safedelivr-rehearse-")
	if err != nil {
		return nil, err
	}
	p := &place{setUp: s, dir: dir, name: "rehearse_" + models.NewUserID()}
	err = p.withStore(ctx, func(models.Store) error { return nil })
	if err != nil {
		return nil, errors.Join(err, p.remove(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// environ is the configuration of the processes that work here: the services of
// the user's own, and what a rehearsal needs.
func (p *place) environ(more ...string) []string {
	c := &p.cfg.Cassandra
	out := []string{
		"SAFEDELIVR_DATA_DIR=" + filepath.Join(p.dir, "data"),
		"SAFEDELIVR_CASSANDRA_HOSTS=" + strings.Join(c.Hosts, ","), "SAFEDELIVR_CASSANDRA_KEYSPACE=" + p.name,
		"SAFEDELIVR_CASSANDRA_USERNAME=" + c.Username, "SAFEDELIVR_CASSANDRA_PASSWORD=" + c.Password,
		"SAFEDELIVR_CASSANDRA_LOCAL_DC=" + c.LocalDC, "SAFEDELIVR_CASSANDRA_REPLICATION=" + c.Replication,
		"SAFEDELIVR_CASSANDRA_CONSISTENCY=" + c.Consistency, "SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY=" + c.Serial,
		"SAFEDELIVR_CASSANDRA_TIMEOUT=" + c.Timeout.String(),
		"SAFEDELIVR_AMQP_URL=" + p.cfg.AMQP.URL, "SAFEDELIVR_AMQP_PREFIX=" + p.name,
	}
	return append(out, more...)
}

// configured loads the configuration of the place.
func (p *place) configured(more ...string) (config.Config, error) {
	return config.Load("", p.environ(more...))
}

// withStore runs f on the store of the place, which no process may hold.
func (p *place) withStore(ctx context.Context, f func(models.Store) error) error {
	cfg, err := p.configured()
	if err != nil {
		return err
	}
	var store models.Store
	err = poll(ctx, 10*time.Second, "the data folder is free", func() (bool, error) {
		// A process that is being started holds what was open, for an instant.
		store, err = openStore(ctx, &cfg, p.log)
		return err == nil, unless(err, sqlite.ErrInUse)
	})
	if err != nil {
		return err
	}
	return errors.Join(f(store), store.Close())
}

// unless is err, or nil if it is the one that is expected.
func unless(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// withBroker runs f on the names of the place in RabbitMQ.
func (p *place) withBroker(ctx context.Context, f func(*rabbit.Broker) error) error {
	cfg, err := p.configured()
	if err != nil {
		return err
	}
	b, err := rabbit.Open(ctx, rabbit.Config{URL: cfg.AMQP.URL, Prefix: cfg.AMQP.Prefix, Providers: drillProviders, Logger: p.log})
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.Close())
}

// newUser makes a user and returns a key of its own, which may do everything.
func (p *place) newUser(ctx context.Context) (user models.User, secret string, err error) {
	user = models.User{ID: models.NewUserID(), Created: time.Now().UTC()}
	user.Name = "rehearse-" + user.ID
	key, secret := models.NewKey(user.ID, "rehearse", time.Now())
	key.Scopes = []models.Scope{models.ScopeSend, models.ScopeRead, models.ScopeOperate} // it looks at queues, and gives orders
	return user, secret, p.withStore(ctx, func(s models.Store) error {
		if err := s.CreateUser(ctx, user); err != nil {
			return err
		}
		return s.CreateKey(ctx, key)
	})
}

// remove takes everything away again that the place made.
func (p *place) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	var errs []error
	if !p.ownBroker() {
		if err := p.withBroker(ctx, func(b *rabbit.Broker) error { return b.Remove(ctx) }); err != nil {
			errs = append(errs, fmt.Errorf("queues and exchanges %s.* stay behind: %w", p.name, err))
		}
	}
	if !p.ownStore() {
		cfg, err := p.configured()
		if err == nil {
			err = cassandra.Drop(ctx, cassandraConfig(&cfg, p.log))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("keyspace %s stays behind: %w", p.name, err))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}
