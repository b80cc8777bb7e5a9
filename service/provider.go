package service

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/flow"
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

	// EventsSeen has when events of each kind came in during the last 30 days, to an hour.
	EventsSeen map[models.EventKind]time.Time `json:"events_seen_at,omitempty"`
}

// Providers returns all providers with what the workers report of them. If workers
// disagree about the health of a provider, it returns the worst. Only operators see the
// refused senders, because they may belong to any user.
func (s *Service) Providers(ctx context.Context, who Caller) ([]Provider, error) {
	out := make([]Provider, 0, len(s.providers))
	byName := map[string]*Provider{}
	for i := range s.providers {
		p := &s.providers[i]
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
	workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
	if err != nil {
		return nil, storeError("read providers", err)
	}
	for _, w := range workers {
		for i := range w.Providers {
			if p := byName[w.Providers[i].Name]; p != nil {
				p.merge(&w.Providers[i])
			}
		}
	}
	received, err := reportsOf[time.Time](ctx, s, telemetry.LastReceived)
	if err != nil {
		return nil, storeError("read providers", err)
	}
	for name, at := range received {
		if p := byName[name]; p != nil {
			p.LastWebhook = at
		}
	}
	seen, err := reportsOf[time.Time](ctx, s, telemetry.EventSeen)
	if err != nil {
		return nil, storeError("read providers", err)
	}
	for name, at := range seen {
		k := telemetry.ParseSeenKind(name)
		if p := byName[k.Provider]; p != nil {
			if p.EventsSeen == nil {
				p.EventsSeen = map[models.EventKind]time.Time{}
			}
			p.EventsSeen[k.Kind] = at
		}
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i].Health != nil {
			mode := rules.Provider(out[i].Name)
			*out[i].Health = out[i].Health.Commanded(mode.Mode, mode.Since, mode.Why)
		}
		if out[i].Health != nil && !who.May(models.ScopeOperate) {
			out[i].Health.Senders = nil
		}
	}
	return out, nil
}

// merge adds a worker's report of the provider.
func (p *Provider) merge(w *telemetry.ProviderState) {
	failed, lastError := w.Health.Failures, w.Health.LastError
	if p.Health != nil && p.Health.Failures > failed {
		failed, lastError = p.Health.Failures, p.Health.LastError
	}
	if p.Health == nil || severity(&w.Health) > severity(p.Health) {
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

// commandProvider checks a command about a provider and calls do, once for a repeated
// request.
func (s *Service) commandProvider(
	ctx context.Context,
	who Caller,
	c *models.Command,
	r Repeat,
	do func(ctx context.Context) (ControlResult, error),
) (ControlResult, bool, error) {
	if err := who.operates(); err != nil {
		return ControlResult{}, false, err
	}
	if err := CheckWhy(c.Why); err != nil {
		return ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (ControlResult, error) {
		if !s.known[c.Provider] {
			return ControlResult{}, noSuch("provider")
		}
		return do(ctx)
	})
}

// ControlProvider takes a provider offline, brings it online, or drains it.
func (s *Service) ControlProvider(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	provider, why string,
	r Repeat,
) (ControlResult, bool, error) {
	c := models.Command{Kind: do, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (ControlResult, error) {
		changed, err := s.appendCommand(ctx, who, &c, func(rules *control.Rules) bool {
			return rules.Provider(provider).Mode != do
		})
		return ControlResult{Name: provider, Command: do, Changed: changed}, err
	})
}

// ProbeProvider makes workers forget their findings about a provider that is suspended,
// and try it with one message. Each call has an effect. It returns an error if the
// provider is offline.
func (s *Service) ProbeProvider(
	ctx context.Context,
	who Caller,
	provider, why string,
	r Repeat,
) (ControlResult, bool, error) {
	c := models.Command{Kind: models.ProviderProbe, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (ControlResult, error) {
		offline := false
		changed, err := s.appendCommand(ctx, who, &c, func(rules *control.Rules) bool {
			offline = rules.Provider(provider).Mode == models.ProviderOffline
			return !offline
		})
		if err == nil && offline {
			return ControlResult{}, Fail(Conflict, "provider_offline",
				"The provider is offline, so it cannot be probed. Bring it online first.")
		}
		return ControlResult{Name: provider, Command: models.ProviderProbe, Changed: changed}, err
	})
}

// ProviderModes returns for each provider whether it is online, draining or offline, and
// by which command.
func (s *Service) ProviderModes(ctx context.Context) (map[string]control.ProviderMode, error) {
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]control.ProviderMode{}
	for name := range s.known {
		out[name] = rules.Provider(name)
	}
	return out, nil
}

// Worker is a process that hands mail over to providers.
type Worker struct {
	Name    string    `json:"name"`
	Started time.Time `json:"started,omitzero"`
	Share   float64   `json:"share"` // of every provider's rate and concurrency; 0 while it may use none
}

// Workers returns the workers that reported lately, by name.
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

// failedCalls returns when calls failed, by provider, as all workers found it; at most a
// second old.
func (s *Service) failedCalls(ctx context.Context) (map[string][]flow.Health, error) {
	return s.failed.get(time.Second, func() (map[string][]flow.Health, error) {
		reports, err := reportsOf[telemetry.FailedCallsOf](ctx, s, telemetry.FailedCallsReport)
		if err != nil || len(reports) == 0 {
			return nil, err
		}
		workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
		if err != nil {
			return nil, err
		}
		out := map[string][]flow.Health{}
		for name, report := range reports {
			state, running := workers[name[:max(0, strings.LastIndexByte(name, '/'))]]
			for provider, calls := range report {
				for _, c := range calls {
					now := running && !c.From.Before(state.Started) // else an earlier start of this worker found it
					out[provider] = append(out[provider], flow.Health{FailedCalls: c, Now: now})
				}
			}
		}
		return out, nil
	})
}

// reportsOf returns all reports of a kind by name. It leaves out reports that it cannot
// decode.
func reportsOf[T any](ctx context.Context, s *Service, kind string) (map[string]T, error) {
	reports, err := s.store.Transients(ctx, kind)
	if err != nil {
		return nil, err
	}
	out := make(map[string]T, len(reports))
	for name, raw := range reports {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			s.log.Warn("cannot decode a report", "kind", kind, "name", name, "err", err)
			continue
		}
		out[name] = v
	}
	return out, nil
}

// Warnings in the results of commands.
const (
	mayDoubleWarning = "It is unknown whether the providers accepted this mail, so it may arrive twice."
	inFlightWarning  = "Calls in flight cannot be stopped, but no new call starts."
	uncountedWarning = "The recipients could not be counted."
	noneFailed       = "No mail of this batch has failed that can be sent again without the risk of a second copy."
	noneHeld         = "No mail of this batch is held."
	lateWarning      = "The command is in effect, but the mail may not go out by itself: " +
		"repeat the command if nothing moves within a minute."
)

// warnOfWaiting adds a warning if mail of a batch still waits for something after a
// command that should let it go out.
func (s *Service) warnOfWaiting(rules *control.Rules, b *models.Batch, out *BatchControlResult) {
	if waits := s.waitsFor(rules, b); len(waits) > 0 {
		out.Waits = true
		out.warn("Nothing goes out yet. It will when " + strings.Join(waits, ", and ") + ".")
	}
}

// waitsFor returns what must happen before mail of a batch can go out. It ignores block
// rules for a provider or for a recipient's domain, which affect only some of the mail.
func (s *Service) waitsFor(rules *control.Rules, b *models.Batch) []string {
	var out []string
	if rules.StoppedBy(b.ID) != "" {
		out = append(out, "the batch is resumed")
	}
	if rules.Paused(b.User) {
		out = append(out, "the user is resumed")
	}
	if slices.ContainsFunc(rules.Holds(), func(h models.Command) bool { return b.Created().Before(h.Before) }) {
		out = append(out, "an operator lifts the hold that followed a restore")
	}
	if slices.ContainsFunc(rules.Blocks(), func(bl models.Block) bool { return !bl.Fail && bl.Meets(b, "", "") }) {
		out = append(out, "the block rule for it is removed")
	}
	if s.allOffline(rules, b) {
		out = append(out, "a provider that it may use is online")
	}
	return out
}

// allOffline reports whether every provider that a batch may use is offline.
func (s *Service) allOffline(rules *control.Rules, b *models.Batch) bool {
	for i := range s.providers {
		name := s.providers[i].Name
		if (len(b.Providers) == 0 || slices.Contains(b.Providers, name)) &&
			rules.Provider(name).Mode != models.ProviderOffline {
			return false
		}
	}
	return len(s.providers) > 0
}

// countInFlight sets the number of recipients in flight: of the chunk if the command was
// about a log, otherwise of the batch. For a command that changes which recipients are sent
// for the first time, it also sets the number of those. If they cannot be counted, it adds
// a warning.
func (s *Service) countInFlight(ctx context.Context, b *models.Batch, out *BatchControlResult) {
	byState := !sendsAgain(out.Command)
	n, err := s.countUnfinished(ctx, b, out.LogID, byState && out.Changed)
	if err != nil {
		s.log.Warn("cannot count the recipients of a command", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n.inFlight
	if byState {
		out.Recipients = new(int)
		if out.Changed {
			*out.Recipients = n.unsent
		}
	}
}
