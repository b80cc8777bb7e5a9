package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/sqlite"
)

// Commands work on the store and the broker of the configuration. If another process holds the embedded ones, it runs
// the command.

// server is what a handed-over command uses of the process that runs it.
type server struct {
	cfg     config.Config
	store   models.Store
	service *service.Service
	engine  *consumers.Engine // nil without the role worker
}

func serverOf(a *app.App) *server {
	return &server{cfg: a.Config(), store: a.Store(), service: a.Service(), engine: a.Engine()}
}

// opened is what a command has opened.
type opened struct {
	cfg   *config.Config
	log   *slog.Logger
	store models.Store
}

// onStore opens the store, runs f and closes the store, or hands the command over. A server runs f on its own store.
// Only init makes a data folder: a command in the wrong folder must not begin a second installation.
func (c *cli) onStore(ctx context.Context, create bool, f func(context.Context, *opened) error) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if c.server != nil {
		return f(ctx, &opened{cfg: &cfg, log: c.logger(&cfg), store: c.server.store})
	}
	if !create && app.StoreName(&cfg) == "sqlite" {
		if _, err := os.Stat(cfg.DataDir); errors.Is(err, fs.ErrNotExist) {
			return exitWith(exitUnreachable, noDataFolder(cfg.DataDir))
		}
	}
	o := &opened{cfg: &cfg, log: c.logger(&cfg)}
	o.store, err = app.OpenStore(ctx, o.cfg, o.log)
	if errors.Is(err, sqlite.ErrInUse) {
		return c.handOver(ctx, o.cfg)
	}
	if err != nil {
		return exitWith(exitUnreachable, err)
	}
	err = f(ctx, o)
	return errors.Join(err, o.store.Close())
}

// noDataFolder says which data folder was looked for, and how to name another one.
func noDataFolder(folder string) error {
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs
	}
	return fmt.Errorf("there is no data folder %s. To use an installation elsewhere, run this in its folder, name its "+
		"configuration with -c FILE, or its data folder with SAFEDELIVR_DATA_DIR. To begin one here, run safedelivr init or "+
		"safedelivr serve", folder)
}

// handOver has the process that holds the data folder run the command.
func (c *cli) handOver(ctx context.Context, cfg *config.Config) error {
	folder, err := os.Getwd()
	if err != nil {
		return err
	}
	code, err := app.HandOver(ctx, cfg.DataDir, app.Command{
		Args:   withoutConfig(c.args),
		RanBy:  c.person(),
		Folder: folder,
		Out:    c.out,
		Err:    c.err,
	})
	if err == nil && code != 0 {
		err = exitCode(code)
	}
	return exitWith(exitUnreachable, err)
}

// withoutConfig drops the flag that names the configuration: the server has read its own.
func withoutConfig(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-c" || a == "--config":
			i++
		case strings.HasPrefix(a, "--config=") || strings.HasPrefix(a, "-c="):
		default:
			out = append(out, a)
		}
	}
	return out
}

// withBroker runs f on the configured broker.
func (o *opened) withBroker(ctx context.Context, f func(models.Broker) error) error {
	broker, err := app.OpenBroker(ctx, o.cfg, o.log)
	if err != nil {
		return exitWith(exitUnreachable, err)
	}
	err = f(broker)
	return errors.Join(err, broker.Close())
}

// withStore runs f on the store.
func (c *cli) withStore(ctx context.Context, f func(context.Context, models.Store) error) error {
	return c.onStore(ctx, false, func(ctx context.Context, o *opened) error { return f(ctx, o.store) })
}

// withService runs f on the use cases.
func (c *cli) withService(ctx context.Context, f func(context.Context, *service.Service) error) error {
	if c.server != nil {
		return explain(f(ctx, c.server.service))
	}
	return c.onStore(ctx, false, func(ctx context.Context, o *opened) error { return o.withUseCases(ctx, f) })
}

// withUseCases runs f on the use cases of an opened store.
func (o *opened) withUseCases(ctx context.Context, f func(context.Context, *service.Service) error) error {
	return o.withBroker(ctx, func(broker models.Broker) error {
		deps := service.Deps{
			Store:  o.store,
			Broker: broker,
			Config: service.Config{
				Recheck:   o.cfg.Times.Recheck,
				InboxKeep: o.cfg.Times.InboxKeep,
				Quotas:    o.cfg.Quotas.Limits(),
				Sole:      app.SoleProcess(o.cfg),
			},
		}
		var specs []provider.Spec
		for _, name := range o.cfg.ProviderNames() {
			c := o.cfg.Providers[name]
			p := models.Provider{Name: name, Kind: c.Kind, EvidenceWindow: c.Evidence}
			deps.Providers, specs = append(deps.Providers, p), append(specs, provider.Spec{Provider: p})
		}
		// A provider whose settings have mistakes is left out: most commands need none.
		open, _ := app.OpenProviders(o.cfg, slog.New(slog.DiscardHandler))
		defer app.CloseProviders(open)
		deps.Lists = app.ProviderLists(open)
		workers := app.EngineConfig(o.cfg, o.log)
		deps.Policy = consumers.PolicyFor(specs, &workers)
		svc := service.New(deps)
		defer svc.Close()
		return explain(f(ctx, svc))
	})
}

// withEngine runs f on the engine of the server, or on one that is not started.
func (c *cli) withEngine(ctx context.Context, f func(context.Context, *consumers.Engine) error) error {
	if c.server != nil {
		if c.server.engine == nil {
			return errors.New("the process that holds the data folder does not have the role worker")
		}
		return f(ctx, c.server.engine)
	}
	return c.onStore(ctx, false, func(ctx context.Context, o *opened) error {
		providers, err := app.OpenProviders(o.cfg, o.log)
		defer app.CloseProviders(providers)
		if err != nil {
			return err
		}
		return o.withBroker(ctx, func(broker models.Broker) error {
			engine, err := consumers.New(o.store, broker, providers, app.EngineConfig(o.cfg, o.log))
			if err != nil {
				return err
			}
			return f(ctx, engine)
		})
	})
}
