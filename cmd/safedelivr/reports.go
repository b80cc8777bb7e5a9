package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// Workers tell the store how they see the accounts, so that the API can tell it
// wherever it runs.
const (
	reportKind  = "accounts"
	reportEvery = time.Second
	reportTTL   = 15 * time.Second
)

// report writes this worker's view of the accounts until ctx ends.
func (a *app) report(ctx context.Context) {
	t := time.NewTicker(reportEvery)
	defer t.Stop()
	last := ""
	written := time.Time{}
	for {
		if raw, err := json.Marshal(viewsOf(a.engine.Reports())); err == nil && (string(raw) != last || time.Since(written) > reportTTL/3) {
			if err := a.store.PutReport(ctx, reportKind, a.cfg.Worker, raw, reportTTL); err == nil {
				last, written = string(raw), time.Now()
			} else if ctx.Err() == nil {
				a.log.Warn("account health not reported", "err", err)
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// viewsOf turns the engine's view into what is told.
func viewsOf(reports []consumers.Report) []service.Account {
	out := make([]service.Account, 0, len(reports))
	for _, r := range reports {
		c, h := counters(r.Counters), service.Health(r.Health)
		out = append(out, service.Account{Name: r.Account.Name, Kind: r.Account.Kind, Weight: r.Account.Weight, Concurrency: r.Account.Concurrency,
			Rate: r.Account.Rate, ChunkLimit: r.Account.ChunkLimit, Events: r.Account.Events, Health: &h, Worker: &c,
			RateUsed: r.Rate, AnswerMS: milliseconds(r.Answers), ReportedMS: milliseconds(r.Reported)})
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func counters(c consumers.Counters) service.Counters {
	return service.Counters{Calls: c.Calls, Accepted: c.Accepted, Refused: c.Refused, Unknown: c.Unknown, Delivered: c.Delivered,
		Failures: c.Failures, Inflight: c.Inflight}
}

// reports tells of all accounts: from the configuration, with the health that
// the workers report, and when each posted last. Of several workers' views the
// worst is shown.
func (a *app) reports(ctx context.Context) ([]service.Account, error) {
	byName := map[string]*service.Account{}
	var out []service.Account
	for _, acc := range a.accounts {
		out = append(out, service.Account{Name: acc.Name, Kind: acc.Kind, Weight: acc.Weight, Concurrency: acc.Concurrency, Rate: acc.Rate,
			ChunkLimit: acc.ChunkLimit, Events: acc.Events})
	}
	for i := range out {
		byName[out[i].Name] = &out[i]
	}
	views, err := a.workerViews(ctx)
	if err != nil {
		return nil, err
	}
	heard, err := a.store.Reports(ctx, models.HeardReport)
	if err != nil {
		return nil, err
	}
	for name, raw := range heard {
		if mine := byName[name]; mine != nil {
			if err := json.Unmarshal(raw, &mine.LastWebhook); err != nil {
				a.log.Warn("time of the last webhook cannot be read", "provider", name, "err", err)
			}
		}
	}
	for _, v := range views {
		mine := byName[v.Name]
		if mine == nil || v.Health == nil || v.Worker == nil {
			continue
		}
		if mine.Health == nil || worse(v.Health.State, mine.Health.State) {
			mine.Health = v.Health
		}
		if mine.Worker == nil {
			mine.Worker = &service.Counters{}
		}
		add(mine.Worker, v.Worker)
		mine.RateUsed += v.RateUsed
		mine.AnswerMS, mine.ReportedMS = max(mine.AnswerMS, v.AnswerMS), max(mine.ReportedMS, v.ReportedMS)
	}
	return out, nil
}

func (a *app) workerViews(ctx context.Context) ([]service.Account, error) {
	if a.engine != nil && storeName(a.cfg) == "sqlite" {
		return viewsOf(a.engine.Reports()), nil // the only worker there is
	}
	raw, err := a.store.Reports(ctx, reportKind)
	if err != nil {
		return nil, err
	}
	var out []service.Account
	for worker, b := range raw {
		var v []service.Account
		if err := json.Unmarshal(b, &v); err != nil {
			a.log.Warn("report of a worker cannot be read", "worker", worker, "err", err)
			continue
		}
		out = append(out, v...)
	}
	slices.SortFunc(out, func(x, y service.Account) int { return strings.Compare(x.Name, y.Name) })
	return out, nil
}

func worse(a, b string) bool {
	order := []string{consumers.Healthy, consumers.HalfOpen, consumers.Slowed, consumers.Tripped, consumers.Shut}
	return slices.Index(order, a) > slices.Index(order, b)
}

func add(to, c *service.Counters) {
	to.Calls += c.Calls
	to.Accepted += c.Accepted
	to.Refused += c.Refused
	to.Unknown += c.Unknown
	to.Delivered += c.Delivered
	to.Failures += c.Failures
	to.Inflight += c.Inflight
}

// workers lists all workers.
func (a *app) workers(ctx context.Context) ([]service.Worker, error) {
	if a.engine != nil && storeName(a.cfg) == "sqlite" {
		return []service.Worker{{Name: a.cfg.Worker, Share: 1}}, nil // the only one there is
	}
	return workersOf(ctx, a.store)
}

// crewReports is the kind of the reports by which workers share the limits.
const crewReports = "crew"

// workersOf lists the workers that have such a report in the store. Every one
// has the same share.
func workersOf(ctx context.Context, store models.Store) ([]service.Worker, error) {
	raw, err := store.Reports(ctx, crewReports)
	if err != nil {
		return nil, err
	}
	out := make([]service.Worker, 0, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		w := service.Worker{Name: name, Share: 1 / float64(len(raw))}
		if err := json.Unmarshal(raw[name], &w); err != nil {
			return nil, fmt.Errorf("report of worker %s: %w", name, err)
		}
		w.Name = name
		out = append(out, w)
	}
	return out, nil
}

// newestCheck is what the workers found when they recounted last.
func (a *app) newestCheck(ctx context.Context) (out service.Check, err error) {
	raw, err := a.store.Report(ctx, consumers.CheckReport, "newest")
	if err != nil {
		return out, err
	}
	var c consumers.CheckResult
	if err := json.Unmarshal(raw, &c); err != nil {
		return out, fmt.Errorf("report of the newest check: %w", err)
	}
	return service.Check{At: c.At, Users: c.Users, Batches: c.Batches, Chunks: c.Chunks, Recipients: c.Recipients, Days: c.Days,
		Differences: c.Differences, Repaired: c.Repaired}, nil
}
