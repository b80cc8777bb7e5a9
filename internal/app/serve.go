package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// shutdownTime is how long requests have to end when the process stops.
const shutdownTime = 10 * time.Second

// Serve works until ctx ends or a part fails. It then stops in reverse order: what accepts requests, calls in flight,
// the broker and the store. It closes the App.
func (a *App) Serve(ctx context.Context) error {
	failed := make(chan error, 4)
	go a.serveHTTP(failed)
	a.mailbox.serve(failed)
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	a.pressure.follow(work)
	var running sync.WaitGroup
	running.Go(func() { a.runEngine(work, failed) })
	running.Go(func() { a.sweep(work) })
	running.Go(func() { a.serveAdmin(work) })
	running.Go(func() { a.serveMetrics(work) })
	running.Go(func() { a.watchWebhooks(work) })
	running.Go(func() { a.watchCertificates(work) })
	running.Go(func() { a.watchDisk(work) })
	running.Go(func() { a.countProcesses(work) })
	a.log.Info("serving", "listen", a.Addr(), "roles", strings.Join(a.cfg.Roles, ","),
		"providers", strings.Join(a.cfg.ProviderNames(), ","), "store", StoreName(a.cfg), "broker", BrokerName(a.cfg),
		"version", Version())
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	a.log.Info("stopping: requests first, then calls in flight")
	a.stopRequests(ctx)
	stopWork()
	running.Wait()
	a.Close()
	a.log.Info("stopped")
	return err
}

func (a *App) serveHTTP(failed chan<- error) {
	serve := a.http.Serve
	if a.certs != nil {
		serve = func(l net.Listener) error { return a.http.ServeTLS(l, "", "") }
	}
	if err := serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
		failed <- fmt.Errorf("http: %w", err)
	}
}

func (a *App) runEngine(ctx context.Context, failed chan<- error) {
	if a.engine == nil {
		return
	}
	if err := a.engine.Run(ctx, a.cfg.Times.StopGrace); err != nil {
		failed <- fmt.Errorf("consumers: %w", err)
	}
}

func (a *App) watchWebhooks(ctx context.Context) {
	if a.hooks != nil {
		a.hooks.Watch(ctx, a.store, a.cfg.Worker)
	}
}

// countProcesses counts the processes that accept batches, which share the limits of users.
func (a *App) countProcesses(ctx context.Context) {
	if a.cfg.Has("api") {
		a.service.Limits.Process(ctx, a.cfg.Worker)
	}
}

// stopRequests accepts no more requests and waits for those that are running.
func (a *App) stopRequests(ctx context.Context) {
	if a.dashboard != nil {
		a.dashboard.Close() // live pages never end by themselves
	}
	a.service.Updates.Close() // nor do requests that wait for updates, for long
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	var submissions sync.WaitGroup
	submissions.Go(func() { a.mailbox.stop(ctx) })
	if err := a.http.Shutdown(ctx); err != nil {
		_ = a.http.Close() // breaks the requests that did not end
	}
	submissions.Wait()
	a.service.Close()
	if a.hooks != nil {
		a.hooks.Close()
	}
}

// sweep removes expired rows from a store that does not do so itself, once a minute.
func (a *App) sweep(ctx context.Context) {
	store, ok := a.store.(interface {
		Sweep(ctx context.Context) error
	})
	if !ok {
		return
	}
	for range models.Every(ctx, time.Minute) {
		if err := store.Sweep(priority.WithLow(ctx)); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot remove expired data", "err", err)
		}
	}
}

// Close closes what New opened, for an App that is not served.
func (a *App) Close() {
	if a.dashboard != nil {
		a.dashboard.Close()
	}
	if a.service != nil {
		a.service.Close()
	}
	CloseProviders(a.providers)
	if a.broker != nil {
		if err := a.broker.Close(); err != nil {
			a.log.Warn("broker not closed cleanly", "err", err)
		}
	}
	if a.standby != nil {
		_ = a.standby.Close() // it returns no error
	}
	if a.store != nil {
		if err := a.store.Close(); err != nil {
			a.log.Warn("store not closed cleanly", "err", err)
		}
	}
	if a.listener != nil {
		_ = a.listener.Close() // after Serve it is closed already
	}
	a.mailbox.close()
	if a.metricsListener != nil {
		_ = a.metricsListener.Close()
	}
}
