package service

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Provider is what is told of a provider.
type Provider struct {
	Name        string              `json:"name"`
	Kind        string              `json:"kind"`
	Weight      int                 `json:"weight"`
	Concurrency int                 `json:"concurrency"`
	Rate        float64             `json:"rate_per_second,omitempty"`
	ChunkLimit  int                 `json:"chunk_limit"`
	Events      models.EventSource  `json:"events"`
	Health      *telemetry.Health   `json:"health"` // null where no worker has reported
	Worker      *telemetry.Counters `json:"worker,omitempty"`
	RateUsed    float64             `json:"rate_used"`                    // recipients accepted per second, over the last seconds
	AnswerMS    float64             `json:"answer_ms,omitempty"`          // how long calls usually take; 0: not known
	ReportedMS  float64             `json:"reported_within_ms,omitempty"` // nine of ten mails are delivered, or otherwise reported on, within it; 0: not known
	LastWebhook time.Time           `json:"last_webhook_at,omitzero"`     // when a verified post came last, to ten seconds
}

// Providers tells of all providers: how the workers find them, and when
// each posted last. Of several workers' views the worst is told. Which senders
// are not verified there is for operators: they are anybody's.
func (s *Service) Providers(ctx context.Context, who Caller) ([]Provider, error) {
	out := make([]Provider, 0, len(s.providers))
	byName := map[string]*Provider{}
	for i := range s.providers {
		a := &s.providers[i]
		out = append(
			out,
			Provider{
				Name:        a.Name,
				Kind:        a.Kind,
				Weight:      a.Weight,
				Concurrency: a.Concurrency,
				Rate:        a.Rate,
				ChunkLimit:  a.ChunkLimit,
				Events:      a.Events,
			},
		)
		byName[a.Name] = &out[i] // it has room for all
	}
	workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
	if err != nil {
		return nil, storeError("read providers", err)
	}
	for _, w := range workers {
		for i := range w.Providers {
			if a := byName[w.Providers[i].Name]; a != nil {
				a.see(&w.Providers[i])
			}
		}
	}
	heard, err := reportsOf[time.Time](ctx, s, telemetry.LastReceived)
	if err != nil {
		return nil, storeError("read providers", err)
	}
	for name, at := range heard {
		if a := byName[name]; a != nil {
			a.LastWebhook = at
		}
	}
	for i := range out {
		if out[i].Health != nil && !who.May(models.ScopeOperate) {
			out[i].Health.Senders = nil
		}
	}
	return out, nil
}

// see takes in what a worker says of the provider.
func (a *Provider) see(w *telemetry.ProviderState) {
	if a.Health == nil ||
		slices.Index(telemetry.HealthStates, w.Health.State) > slices.Index(telemetry.HealthStates, a.Health.State) {
		a.Health = &w.Health
	}
	if a.Worker == nil {
		a.Worker = &telemetry.Counters{}
	}
	a.Worker.Add(w.Counters)
	a.RateUsed += w.Rate
	a.AnswerMS, a.ReportedMS = max(a.AnswerMS, milliseconds(w.Answers)), max(a.ReportedMS, milliseconds(w.Reported))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Worker is one process that hands mail over.
type Worker struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started,omitzero"`
	Share   float64   `json:"share"` // of every provider's rate and concurrency; 0 while it may use none
}

// Workers lists the workers that reported lately, by name.
func (s *Service) Workers(ctx context.Context, who Caller) ([]Worker, error) {
	if err := who.operates(); err != nil {
		return nil, err
	}
	workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
	if err != nil {
		return nil, storeError("read workers", err)
	}
	out := []Worker{}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		out = append(out, Worker{Name: name, Started: workers[name].Started, Share: workers[name].Share})
	}
	return out, nil
}

// reportsOf reads all reports of a kind, by name. One that cannot be read is left
// out.
func reportsOf[T any](ctx context.Context, s *Service, kind string) (map[string]T, error) {
	reports, err := s.store.Transients(ctx, kind)
	if err != nil {
		return nil, err
	}
	out := make(map[string]T, len(reports))
	for name, raw := range reports {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			s.log.Warn("a report cannot be read", "kind", kind, "name", name, "err", err)
			continue
		}
		out[name] = v
	}
	return out, nil
}
