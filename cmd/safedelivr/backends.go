package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/sqlite"
)

// Commands work on the store and broker of the configuration. Where a process
// holds the embedded ones, it runs the command, on its own.

// opened is what a command has opened for itself.
type opened struct {
	cfg   *config.Config
	log   *slog.Logger
	store models.Store
}

// onStore opens the store, runs f and closes it; or hands the command over. A
// command that looks for something finds an embedded store, or says so: one in the
// wrong folder would find an empty one that it has just made.
func (c *cli) onStore(ctx context.Context, looks bool, f func(context.Context, *opened) error) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if looks && storeName(&cfg) == "sqlite" {
		if _, err := os.Stat(cfg.DataDir); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no data folder %s: say where it is with SAFEDELIVR_DATA_DIR, or with -c and the server's configuration", cfg.DataDir)
		}
	}
	o := &opened{cfg: &cfg, log: c.logger(&cfg)}
	o.store, err = openStore(ctx, o.cfg, o.log)
	if errors.Is(err, sqlite.ErrInUse) {
		return c.handOver(ctx, o.cfg)
	}
	if err != nil {
		return err
	}
	err = f(ctx, o)
	return errors.Join(err, o.store.Close())
}

// withBroker runs f on the configured broker.
func (o *opened) withBroker(ctx context.Context, f func(models.Broker) error) error {
	broker, err := openBroker(ctx, o.cfg, o.log)
	if err != nil {
		return err
	}
	err = f(broker)
	return errors.Join(err, broker.Close())
}

// withStore runs f on the store; looks is as onStore has it.
func (c *cli) withStore(ctx context.Context, looks bool, f func(context.Context, models.Store) error) error {
	if c.app != nil {
		return f(ctx, c.app.store)
	}
	return c.onStore(ctx, looks, func(ctx context.Context, o *opened) error { return f(ctx, o.store) })
}

// withService runs f on the use cases.
func (c *cli) withService(ctx context.Context, f func(context.Context, *service.Service) error) error {
	if c.app != nil {
		return told(f(ctx, c.app.service))
	}
	return c.onStore(ctx, true, func(ctx context.Context, o *opened) error {
		return o.withBroker(ctx, func(broker models.Broker) error {
			deps := service.Deps{Store: o.store, Broker: broker, Config: service.Config{Recheck: o.cfg.Times.Recheck, Sole: soleProcess(o.cfg)}}
			for _, name := range o.cfg.ProviderNames() {
				deps.Providers = append(deps.Providers, models.Provider{Name: name, Kind: o.cfg.Providers[name].Kind})
			}
			svc := service.New(deps)
			defer svc.Close()
			return told(f(ctx, svc))
		})
	})
}

// withEngine runs f on an engine: that of the process that serves, or one that is
// not started.
func (c *cli) withEngine(ctx context.Context, f func(context.Context, *consumers.Engine) error) error {
	if c.app != nil {
		if c.app.engine == nil {
			return errors.New("the process that holds the data folder has not the role worker")
		}
		return f(ctx, c.app.engine)
	}
	return c.onStore(ctx, true, func(ctx context.Context, o *opened) error {
		providers, err := openProviders(o.cfg, o.log)
		defer closeProviders(providers)
		if err != nil {
			return err
		}
		return o.withBroker(ctx, func(broker models.Broker) error {
			engine, err := consumers.New(o.store, broker, providers, engineConfig(o.cfg, o.log))
			if err != nil {
				return err
			}
			return f(ctx, engine)
		})
	})
}
