package service

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/flow"
	"github.com/safedelivr/safedelivr/service/intake"
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

	// Lists tells how the provider's own suppression lists are read; nil: it keeps none.
	Lists *ListsRead `json:"lists,omitempty"`

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
	if err := s.addReports(ctx, byName); err != nil {
		return nil, storeError("read providers", err)
	}
	if err := s.addLists(ctx, byName); err != nil {
		return nil, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	conditions, err := Conditions(ctx, s)
	if err != nil {
		return nil, err
	}
	for i := range conditions {
		if c := &conditions[i]; c.Kind == condition.WebhooksRefused && byName[c.Provider] != nil {
			byName[c.Provider].Refused = &client.RefusedWebhooks{Since: c.Since, Posts: c.Posts}
		}
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
func (s *Service) addReports(ctx context.Context, byName map[string]*Provider) error {
	workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
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
	received, err := reportsOf[time.Time](ctx, s, telemetry.LastReceived)
	if err != nil {
		return err
	}
	for name, at := range received {
		if p := byName[name]; p != nil {
			p.LastWebhook = at
		}
	}
	seen, err := reportsOf[time.Time](ctx, s, telemetry.EventSeen)
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
	do func(ctx context.Context) (client.ControlResult, error),
) (client.ControlResult, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.ControlResult{}, false, err
	}
	if err := checkWhy(c.Why); err != nil {
		return client.ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
		if !s.known[c.Provider] {
			return client.ControlResult{}, noSuch("provider")
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
) (client.ControlResult, bool, error) {
	c := models.Command{Kind: do, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (client.ControlResult, error) {
		changed, err := s.appendCommand(ctx, who, &c, func(rules *control.Rules) bool {
			return rules.Provider(provider).Mode != do
		})
		return client.ControlResult{Name: provider, Command: string(do), Changed: changed}, err
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
) (client.ControlResult, bool, error) {
	c := models.Command{Kind: models.ProviderProbe, Provider: provider, Why: why}
	return s.commandProvider(ctx, who, &c, r, func(ctx context.Context) (client.ControlResult, error) {
		offline := false
		changed, err := s.appendCommand(ctx, who, &c, func(rules *control.Rules) bool {
			offline = rules.Provider(provider).Mode == models.ProviderOffline
			return !offline
		})
		if err == nil && offline {
			return client.ControlResult{}, Fail(Conflict, "provider_offline",
				"The provider is offline, so it cannot be probed. Bring it online first.")
		}
		return client.ControlResult{Name: provider, Command: string(models.ProviderProbe), Changed: changed}, err
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

// Workers returns the workers that reported lately, by name.
func (s *Service) Workers(ctx context.Context, who Caller) ([]client.Worker, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	workers, err := reportsOf[telemetry.WorkerState](ctx, s, telemetry.WorkerReport)
	if err != nil {
		return nil, storeError("read workers", err)
	}
	out := []client.Worker{}
	for _, name := range slices.Sorted(maps.Keys(workers)) {
		out = append(out, client.Worker{Name: name, Started: workers[name].Started, Share: workers[name].Share})
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

// ListsRead tells how the suppression lists of a provider are read.
type ListsRead struct {
	ReadAt  time.Time `json:"read_at,omitzero"`  // when all were last read without an error; zero: never
	Error   string    `json:"error,omitempty"`   // of the last reading
	Refused []string  `json:"refused,omitempty"` // lists that the provider's key may not read
}

// addLists adds how the lists of the providers are read.
func (s *Service) addLists(ctx context.Context, providers map[string]*Provider) error {
	if len(s.lists) == 0 {
		return nil
	}
	states, err := drift.States(ctx, s.store)
	if err != nil {
		return storeError("read how the lists of providers were read", err)
	}
	for name, api := range s.lists {
		if p, st := providers[name], states[name]; p != nil {
			p.Lists = &ListsRead{ReadAt: st.Read, Error: st.Error, Refused: st.Refused(api.Lists())}
		}
	}
	return nil
}

// ProviderSuppressions returns a page of what a provider suppresses and we do not, as it was last read, in an order that
// means nothing.
func (s *Service) ProviderSuppressions(
	ctx context.Context, who Caller, provider string, p Page,
) (out client.ProviderSuppressionPage, err error) {
	if _, err := s.listsOf(who, provider); err != nil {
		return out, err
	}
	var q query
	list := "listed at " + provider
	n, after := q.limit(p), q.after(p, list)
	if err := q.err(); err != nil {
		return out, err
	}
	key := ""
	if p.Cursor != "" {
		key = drift.KeyOf(after.Hash, after.Category, string(after.Reason))
	}
	found, last, err := drift.Show(ctx, s.store, provider, key, n)
	if err != nil {
		return out, storeError("read what a provider suppresses", err)
	}
	out.Suppressions = make([]client.ProviderSuppression, 0, len(found))
	for i := range found {
		e := &found[i]
		v := client.ProviderSuppression{
			Email: e.Email, List: e.List, Reason: string(e.Reason), Category: e.Category, Text: e.Text, At: e.At,
		}
		if e.Removed != nil {
			v.RemovedBy, v.RemovedWhy = e.Removed.By, e.Removed.Why
		}
		out.Suppressions = append(out.Suppressions, v)
	}
	if last != "" {
		k := models.SuppressionKey{}
		var reason string
		k.Hash, k.Category, reason = drift.ParseKey(last)
		k.Reason = models.SuppressionReason(reason)
		out.Next = afterCursor(list, k)
	}
	return out, nil
}

// listsOf returns the suppression lists of a provider to an operator.
func (s *Service) listsOf(who Caller, provider string) (models.ProviderLists, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	switch api := s.lists[provider]; {
	case !s.known[provider]:
		return nil, noSuch("provider")
	case api == nil:
		return nil, Fail(Conflict, "no_provider_lists", "This kind of provider keeps no suppression lists that can be read.")
	default:
		return api, nil
	}
}

// ClearProviderSuppression removes an address from a suppression list of a provider, or from all if list is empty.
// It is no error if they do not have it.
func (s *Service) ClearProviderSuppression(ctx context.Context, who Caller, provider, email, list, why string) error {
	if err := errors.Join(who.NeedOperator(), checkWhy(why)); err != nil {
		return err
	}
	api, err := s.listsOf(who, provider)
	if err != nil {
		return err
	}
	a, err := intake.ParseAddress(email)
	if err != nil {
		return noSuch("suppression")
	}
	lists := slices.DeleteFunc(api.Lists(), func(l models.ProviderList) bool { return list != "" && l.Name != list })
	if len(lists) == 0 {
		var q query
		q.bad("list", "The provider has no list %s.", Quote(list))
		return q.err()
	}
	hash := models.HashAddress(a.Email)
	c := models.Command{Kind: models.ProviderUnlist, Provider: provider, Subject: hex.EncodeToString(hash[:]), Why: why}
	if _, err := s.appendCommand(ctx, who, &c, nil); err != nil {
		return err
	}
	for _, l := range lists {
		if err := api.Unlist(ctx, l.Name, a.Email); errors.Is(err, models.ErrNoLists) {
			return Fail(Conflict, "provider_lists_refused",
				"The key of this provider may not change its suppression lists. Give it the permission at the provider.").
				Because(err)
		} else if err != nil {
			return Fail(Unavailable, "provider_unavailable", "The provider did not remove the address: %s.", err).After(30)
		}
	}
	err = drift.Forget(ctx, s.store, a.Email, func(e *drift.Entry) bool {
		return e.Provider == provider && (list == "" || e.List == list)
	})
	return storeError("forget what a provider suppresses", err)
}

// noteListed stores that a provider still suppresses the address of an entry of everyone's list that came from
// there and is being removed.
func (s *Service) noteListed(ctx context.Context, e *models.Suppression) error {
	if e.Origin != models.FromProvider || e.Email == "" {
		return nil
	}
	list, text, _ := strings.Cut(e.Why, ": ")
	err := drift.Note(ctx, s.store, &drift.Entry{
		Email:    e.Email,
		Provider: e.By,
		List:     list,
		Category: e.Category,
		Reason:   e.Reason,
		Text:     text,
		At:       e.At,
		Seen:     time.Now().UTC(),
	})
	return storeError("note what a provider suppresses", err)
}
