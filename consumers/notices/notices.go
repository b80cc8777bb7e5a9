// Package notices publishes in the feed of the installation what operators want to know: what
// workers find out about providers, unknown outcomes, and sums that differ.
package notices

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	poll         = time.Second
	leased       = 10 * time.Second
	calm         = 5 * time.Second // how long a provider must do well before something has ended
	unknownEvery = time.Minute
	unknownBack  = 24 // hours whose unknown outcomes are counted
)

// Store is the part of models.Store that a Watch needs.
type Store interface {
	models.FeedStore
	condition.Store
	Transient(ctx context.Context, kind, name string) ([]byte, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Watch compares the reports of the workers with the published state, and publishes the differences.
// One worker does so at a time. If two do, the feed decides which of them publishes it.
type Watch struct {
	worker    string
	providers []string
	store     Store
	rules     *control.Rules
	log       *slog.Logger

	seen    map[string]seen // by provider
	counted time.Time       // when unknown outcomes were counted

	conditions  []condition.Condition // of the newest round
	found, gone map[string]time.Time  // by condition.Condition.Key: since when it is there, and is not any more
}

// New returns a Watch of a worker with some providers. rules have what operators command.
func New(worker string, providers []string, store Store, rules *control.Rules, log *slog.Logger) *Watch {
	return &Watch{worker: worker, providers: providers, store: store, rules: rules, log: log, seen: map[string]seen{},
		gone: map[string]time.Time{}}
}

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	runner := jobs.Runner{Store: w.store, Worker: w.worker, Log: w.log}
	runner.Run(ctx, &jobs.Job{Lease: "notices", TTL: leased, Every: poll, Doing: "publish notices for operators",
		Round: w.round,
		Idle: func() {
			clear(w.seen) // it is out of date when this worker's turn comes again
			clear(w.found)
			clear(w.gone)
		}})
}

// round publishes what is new.
func (w *Watch) round(ctx context.Context, now time.Time) error {
	found, err := w.health(ctx)
	if err != nil {
		return err
	}
	checked, err := w.checked(ctx)
	if err != nil {
		return err
	}
	conditions, err := condition.Read(ctx, w.store, w.providers, w.rules, now)
	if err != nil {
		return err
	}
	w.noteConditions(conditions, now)
	queues, err := w.store.Transients(ctx, telemetry.StalledQueueReport)
	if err != nil {
		return err
	}
	due := now.Sub(w.counted) >= unknownEvery
	var unknown map[string]int64
	if due {
		if unknown, err = w.unknown(ctx, now); err != nil {
			return err
		}
	}
	var troubles []models.Notice
	err = feed.Announce(ctx, w.store, func(s *feed.Status) (out []models.Notice) {
		for _, name := range slices.Sorted(maps.Keys(found)) {
			out = append(out, w.healthChanges(s, name, found[name], now)...)
		}
		troubles = w.conditionNotices(s, now)
		out = append(out, troubles...)
		out = append(out, queueChanges(s, queues)...)
		if checked != nil {
			out = append(out, differenceChanges(s, checked)...)
		}
		if due {
			out = append(out, unknownChanges(s, unknown, telemetry.HistoryKind(hourBefore(now, unknownBack)))...)
		}
		return out
	})
	if err != nil {
		return err
	}
	for i := range troubles {
		w.log.Warn("notice to operators", "type", string(troubles[i].Kind), "text", troubles[i].Text())
	}
	if due {
		w.counted = now
	}
	w.remember(found, now)
	return nil
}

// health returns the worst health that a worker reports of each provider, and of several the
// one that lasts longest.
func (w *Watch) health(ctx context.Context) (map[string]telemetry.Health, error) {
	reports, err := w.store.Transients(ctx, telemetry.WorkerReport)
	if err != nil {
		return nil, err
	}
	out := map[string]telemetry.Health{}
	for name, raw := range reports {
		var worker telemetry.WorkerState
		if err := json.Unmarshal(raw, &worker); err != nil {
			w.log.Warn("cannot decode a worker's report", "worker", name, "err", err)
			continue
		}
		for i := range worker.Providers {
			p := &worker.Providers[i]
			if old, ok := out[p.Name]; !ok || worse(&p.Health, &old) {
				out[p.Name] = p.Health
			}
		}
	}
	return out, nil
}

func worse(a, b *telemetry.Health) bool {
	x, y := slices.Index(telemetry.HealthStates, a.State), slices.Index(telemetry.HealthStates, b.State)
	return x > y || x == y && a.Since.Before(b.Since)
}

// checked returns the result of the newest round of checks, or nil.
func (w *Watch) checked(ctx context.Context) (*telemetry.Recount, error) {
	raw, err := w.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	if errors.Is(err, models.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r telemetry.Recount
	if err := json.Unmarshal(raw, &r); err != nil || r.At.IsZero() {
		return nil, err
	}
	return &r, nil
}

func hourBefore(now time.Time, n int) time.Time { return now.Add(-time.Duration(n) * time.Hour) }

// unknown returns how many recipients were in calls that ended without an answer, by hour and
// provider. These counts only grow, and stay when their worker ends.
func (w *Watch) unknown(ctx context.Context, now time.Time) (map[string]int64, error) {
	out := map[string]int64{}
	for back := range unknownBack {
		hour := telemetry.HistoryKind(hourBefore(now, back))
		reports, err := w.store.Transients(ctx, hour)
		if err != nil {
			return nil, err
		}
		for name, raw := range reports {
			counts, err := telemetry.DecodeHistory(raw)
			if err != nil {
				w.log.Warn("cannot decode a worker's history of an hour", "worker", name, "err", err)
				continue
			}
			for provider, minutes := range counts {
				for _, t := range minutes {
					if t != nil && t.Unknown > 0 {
						out[hour+" "+provider] += t.Unknown
					}
				}
			}
		}
	}
	return out, nil
}
