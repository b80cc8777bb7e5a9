package operate

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Provider is a provider as it is shown.
type Provider struct {
	Name        string              `json:"name"`
	Kind        string              `json:"kind"`
	Weight      int                 `json:"weight"`
	Concurrency int                 `json:"concurrency"`
	Rate        float64             `json:"rate_per_second,omitempty"`
	ChunkLimit  int                 `json:"chunk_limit"`
	Events      models.EventSource  `json:"events"`
	Health      *telemetry.Health   `json:"health"` // nil if no worker has reported
	Worker      *telemetry.Counters `json:"worker,omitempty"`
	RateUsed    float64             `json:"rate_used"`                    // recipients accepted per second, lately
	AnswerMS    float64             `json:"answer_ms,omitempty"`          // usual duration of a call; 0 if unknown
	ReportedMS  float64             `json:"reported_within_ms,omitempty"` // p90 of the time to an event; 0 if unknown
	LastWebhook time.Time           `json:"last_webhook_at,omitzero"`     // last verified post, to ten seconds

	// Refused says since when webhook posts are refused; nil: they are not.
	Refused *client.RefusedWebhooks `json:"webhooks_refused,omitempty"`

	// Lists says how the provider's own suppression lists are read; nil: it keeps none.
	Lists *client.ListsRead `json:"lists,omitempty"`

	// EventsSeen has when events of each kind came in during the last 30 days, to an hour.
	EventsSeen map[models.EventKind]time.Time `json:"events_seen_at,omitempty"`
}

// Providers returns all providers with what the workers report of them. If workers disagree about the health of a
// provider, it returns the worst. Only operators see the refused senders, because they may belong to any user.
func (s *Installation) Providers(ctx context.Context, who caller.Caller) ([]Provider, error) {
	out := make([]Provider, 0, len(s.Configured))
	byName := map[string]*Provider{}
	for i := range s.Configured {
		p := &s.Configured[i]
		out = append(out, Provider{
			Name:        p.Name,
			Kind:        p.Kind,
			Weight:      p.Weight,
			Concurrency: p.Concurrency,
			Rate:        p.Rate,
			ChunkLimit:  p.ChunkLimit,
			Events:      p.Events,
		})
		byName[p.Name] = &out[i] // out never grows beyond its capacity
	}
	if err := s.addReports(ctx, byName); err != nil {
		return nil, problem.FromStore("read providers", err)
	}
	if err := s.addLists(ctx, byName); err != nil {
		return nil, err
	}
	conditions, err := s.Conditions(ctx)
	if err != nil {
		return nil, err
	}
	for i := range conditions {
		if c := &conditions[i]; c.Kind == condition.WebhooksRefused && byName[c.Provider] != nil {
			byName[c.Provider].Refused = &client.RefusedWebhooks{Since: c.Since, Posts: c.Posts}
		}
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	for i := range out {
		mode := rules.Provider(out[i].Name)
		switch {
		case out[i].Health != nil:
			*out[i].Health = out[i].Health.Commanded(mode.Mode, mode.Since, mode.Why)
		case mode.Mode == models.ProviderOffline:
			h := telemetry.Health{}.Commanded(mode.Mode, mode.Since, mode.Why)
			out[i].Health = &h
		}
		if out[i].Health != nil && !who.May(models.ScopeOperate) {
			out[i].Health.Senders = nil
		}
	}
	return out, nil
}

// addReports adds what workers and receivers of webhooks report of the providers.
func (s *Installation) addReports(ctx context.Context, byName map[string]*Provider) error {
	workers, err := telemetry.Reports[telemetry.WorkerState](ctx, s.Store, telemetry.WorkerReport)
	if err != nil {
		return err
	}
	for _, w := range workers {
		for i := range w.Providers {
			if p := byName[w.Providers[i].Name]; p != nil {
				p.merge(&w.Providers[i])
			}
		}
	}
	received, err := telemetry.Reports[time.Time](ctx, s.Store, telemetry.LastReceived)
	if err != nil {
		return err
	}
	for name, at := range received {
		if p := byName[name]; p != nil {
			p.LastWebhook = at
		}
	}
	seen, err := telemetry.Reports[time.Time](ctx, s.Store, telemetry.EventSeen)
	for name, at := range seen {
		k := telemetry.ParseSeenKind(name)
		if p := byName[k.Provider]; p != nil {
			if p.EventsSeen == nil {
				p.EventsSeen = map[models.EventKind]time.Time{}
			}
			p.EventsSeen[k.Kind] = at
		}
	}
	return err
}

// merge adds a worker's report of the provider.
func (p *Provider) merge(w *telemetry.ProviderState) {
	failed, lastError := w.Health.Failures, w.Health.LastError
	if p.Health != nil && p.Health.Failures > failed {
		failed, lastError = p.Health.Failures, p.Health.LastError
	}
	if p.Health == nil || w.Health.Severity() > p.Health.Severity() {
		p.Health = &w.Health
	}
	p.Health.Failures, p.Health.LastError = failed, lastError
	if p.Worker == nil {
		p.Worker = &telemetry.Counters{}
	}
	p.Worker.Add(w.Counters)
	p.RateUsed += w.Rate
	p.AnswerMS, p.ReportedMS = max(p.AnswerMS, milliseconds(w.Answers)), max(p.ReportedMS, milliseconds(w.Reported))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// commandProvider checks a command about a provider and calls do, once for a repeated request.
func (s *Installation) commandProvider(
	ctx context.Context,
	who caller.Caller,
	c *models.Command,
	r idempotency.Repeat,
	do func(ctx context.Context) (client.ControlResult, error),
) (client.ControlResult, bool, error) {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(c.Why)); err != nil {
		return client.ControlResult{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
			if !s.Known[c.Provider] {
				return client.ControlResult{}, problem.NoSuch("provider")
			}
			return do(ctx)
		})
}

// ControlProvider takes a provider offline, brings it online, or drains it.
func (s *Installation) ControlProvider(
	ctx context.Context, who caller.Caller, do models.CommandKind, provider, why string, r idempotency.Repeat,
) (client.ControlResult, bool, error) {
	c := models.Command{Kind: do, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (client.ControlResult, error) {
		changed, err := s.Audit.Append(ctx, who, &c, func(rules *control.Rules) bool {
			return rules.Provider(provider).Mode != do
		})
		return client.ControlResult{Name: provider, Command: string(do), Changed: changed}, err
	})
}

// ProbeProvider makes workers forget their findings about a provider that is suspended, and try it with one message.
// Each call has an effect. It returns an error if the provider is offline.
func (s *Installation) ProbeProvider(
	ctx context.Context, who caller.Caller, provider, why string, r idempotency.Repeat,
) (client.ControlResult, bool, error) {
	c := models.Command{Kind: models.ProviderProbe, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (client.ControlResult, error) {
		offline := false
		changed, err := s.Audit.Append(ctx, who, &c, func(rules *control.Rules) bool {
			offline = rules.Provider(provider).Mode == models.ProviderOffline
			return !offline
		})
		if err == nil && offline {
			return client.ControlResult{}, problem.New(problem.Conflict, "provider_offline",
				"The provider is offline, so it cannot be probed. Bring it online first.")
		}
		return client.ControlResult{Name: provider, Command: string(models.ProviderProbe), Changed: changed}, err
	})
}

// ProviderModes returns for each provider whether it is online, draining or offline, and by which command.
func (s *Installation) ProviderModes(ctx context.Context) (map[string]control.ProviderMode, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]control.ProviderMode{}
	for name := range s.Known {
		out[name] = rules.Provider(name)
	}
	return out, nil
}

// Workers returns the workers that reported lately, by name.
func (s *Installation) Workers(ctx context.Context, who caller.Caller) ([]client.Worker, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	workers, err := telemetry.Reports[telemetry.WorkerState](ctx, s.Store, telemetry.WorkerReport)
	if err != nil {
		return nil, problem.FromStore("read workers", err)
	}
	out := []client.Worker{}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		out = append(out, client.Worker{Name: name, Started: workers[name].Started, Share: workers[name].Share})
	}
	return out, nil
}

// addLists adds how the lists of the providers are read.
func (s *Installation) addLists(ctx context.Context, providers map[string]*Provider) error {
	if len(s.ByProvider) == 0 {
		return nil
	}
	states, err := drift.States(ctx, s.Store)
	if err != nil {
		return problem.FromStore("read how the lists of providers were read", err)
	}
	for name, api := range s.ByProvider {
		if p, st := providers[name], states[name]; p != nil {
			p.Lists = &client.ListsRead{ReadAt: st.Read, Error: st.Error, Refused: st.Refused(api.Lists())}
		}
	}
	return nil
}

// LastCheck returns the newest recount that a worker made of recently accepted batches.
// It returns a NotFound error if no worker has made one lately.
func (s *Installation) LastCheck(ctx context.Context, who caller.Caller) (out telemetry.Recount, err error) {
	if err := who.NeedOperator(); err != nil {
		return out, err
	}
	raw, err := s.Store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
	if errors.Is(err, models.ErrNotFound) {
		return out, problem.New(problem.NotFound, "not_found", "No worker has recounted the sums lately.")
	}
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return out, problem.FromStore("read the newest recount", err)
	}
	return out, nil
}
