package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/tracing"
)

func serveCommand(c *cli) *cobra.Command {
	var roles string
	var restored bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run Safedelivr: API, webhooks and workers",
		Long: `Run Safedelivr. By default everything runs in this process, on SQLite and an in-process broker.
SAFEDELIVR_STORE=postgres://… switches to PostgreSQL, and SAFEDELIVR_CASSANDRA_HOSTS with SAFEDELIVR_AMQP_URL to
Cassandra and RabbitMQ. Roles can then run apart.
SIGHUP makes it read keys, the lists of GitHub, the log level and the certificate again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			with := *c
			with.configFile = c.configPath()
			if roles != "" {
				with.environ = append(slices.Clone(c.env()), "SAFEDELIVR_ROLES="+roles)
			}
			cfg, err := config.Load(with.configFile, with.env())
			if err = app.Check(cmd.Context(), &cfg, err); err != nil {
				return mistakes(err)
			}
			return serve(cmd.Context(), &with, &cfg, restored)
		},
	}
	cmd.Flags().StringVar(&roles, "roles", "",
		"what this process does, separated by commas: api, webhooks, worker (default: all)")
	cmd.Flags().BoolVar(&restored, "after-restore", false,
		"hold all mail accepted before now, because the backup does not know which mail was sent since")
	return cmd
}

func serve(ctx context.Context, c *cli, cfg *config.Config, restored bool) error {
	level := new(slog.LevelVar)
	level.Set(logLevel(cfg))
	log := c.loggerWith(cfg, &slog.HandlerOptions{Level: level})
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // before anything takes time: without it the signal ends the process
	defer signal.Stop(hup)
	if len(cfg.Providers) == 0 {
		log.Warn("no provider is configured: batches are accepted and nothing can be sent")
	}
	app.LimitMemory(cfg)
	endTraces, err := startTraces(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer endTraces()
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		return err
	}
	if restored {
		operator := service.Caller{By: "cli:" + c.person(), Operator: true}
		if err := a.Service().Operate.HoldOld(ctx, operator, "restored from a backup"); err != nil {
			a.Close()
			return fmt.Errorf("nothing was started: cannot hold the mail that was accepted before: %w", err)
		}
		log.Warn("mail accepted before now is held: cancel mail that was sent already, then run safedelivr hold lift")
	}
	if link, err := a.LoginLink(ctx, login.LocalUser()); err != nil {
		log.Warn("cannot make a link to log in to the dashboard", "err", err)
	} else if link != "" {
		fmt.Fprintln(c.out, "dashboard (log in once, within 15 minutes):", link)
	}
	ctx, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	begun := onTerminal() // read before it serves: the terminal may close at once
	reloads.Go(func() {
		defer stop()
		reloadOn(ctx, c, hup, begun, a, level, log)
	})
	defer reloads.Wait()
	defer stop()
	return a.Serve(ctx)
}

func onTerminal() bool { return isatty.IsTerminal(os.Stdin.Fd()) }

// reloadOn reads the configuration again at each signal until ctx ends or the terminal is closed, which sends the same
// signal. If the configuration has mistakes, the one in use stays.
func reloadOn(
	ctx context.Context, c *cli,
	signals <-chan os.Signal,
	begun bool, // on a terminal
	a *app.App,
	level *slog.LevelVar,
	log *slog.Logger,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if begun && !onTerminal() {
			log.Info("the terminal was closed")
			return
		}
		cfg, err := c.load()
		if err == nil {
			err = a.Reload(&cfg)
		}
		if err != nil {
			log.Error("configuration not reloaded; the one before stays in use", "err", err)
			continue
		}
		level.Set(logLevel(&cfg))
	}
}

// startTraces exports traces if that is configured. The function that it returns sends the last ones.
func startTraces(ctx context.Context, cfg *config.Config, log *slog.Logger) (func(), error) {
	if cfg.Traces.Endpoint == "" {
		return func() {}, nil
	}
	end, err := tracing.Setup(ctx, cfg.Traces.Endpoint, cfg.Traces.Ratio, app.Version())
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := end(ctx); err != nil {
			log.Warn("cannot send the last traces", "err", err)
		}
	}, nil
}
