package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

const (
	reportPoll = time.Second
	reportTTL  = 15 * time.Second
)

// ReporterDeps holds the dependencies of a Reporter. All are required.
type ReporterDeps struct {
	Store     TransientStore
	Cluster   *Cluster
	Follower  *control.Follower
	Providers *provider.Set
	Flows     *provider.Flows
	Worker    string
	Life      string // unique for each start
	Started   time.Time
	Logger    *slog.Logger
}

// Reporter writes the state of this worker and its providers into the store, for the API,
// the dashboard, and workers that start later.
type Reporter struct {
	ReporterDeps
	wake chan struct{}
}

// NewReporter returns a reporter that is not running.
func NewReporter(deps ReporterDeps) *Reporter {
	return &Reporter{ReporterDeps: deps, wake: make(chan struct{}, 1)}
}

// Wake asks for the state to be written now.
func (r *Reporter) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// State returns the state of this worker and its providers. It leaves out what operators
// command: readers know that sooner.
func (r *Reporter) State() telemetry.WorkerState {
	out := telemetry.WorkerState{Started: r.Started, Providers: make([]telemetry.ProviderState, 0, len(r.Providers.All()))}
	if share, ok := r.Cluster.Share(); ok {
		out.Share = 1 / float64(share.Size)
	}
	for _, p := range r.Providers.All() {
		s := p.State(time.Now())
		s.Health, s.Reported = r.healthUnder(p, control.ProviderMode{}), r.Flows.ReportTime(p.Name)
		out.Providers = append(out.Providers, s)
	}
	return out
}

// HealthOf returns a provider's health.
func (r *Reporter) HealthOf(p *provider.Provider) telemetry.Health {
	return r.healthUnder(p, r.Follower.Rules().Provider(p.Name))
}

func (r *Reporter) healthUnder(p *provider.Provider, mode control.ProviderMode) telemetry.Health {
	h := p.Health.Report(time.Now(), mode)
	h.Peer = workerOf(h.Peer)
	return h
}

// Run writes the state whenever it has changed, until ctx ends, and then removes it.
func (r *Reporter) Run(ctx context.Context) {
	t := time.NewTicker(reportPoll)
	defer t.Stop()
	var last, failed []byte
	var written time.Time
	findings := persisted{}
	for {
		raw, err := json.Marshal(r.State())
		// What the state says of failed calls is stored before it, also if the process is killed in between.
		var unsaved error
		if failed, unsaved = r.putFailedCalls(ctx, failed); unsaved != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot store the times of failed calls; will retry", "err", unsaved)
		}
		if err := r.Cluster.persist(ctx, findings); err != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot store findings about providers; will retry", "err", err)
		}
		if err == nil && unsaved == nil && (!bytes.Equal(raw, last) || time.Since(written) > reportTTL/3) {
			if err = r.Store.PutTransient(ctx, telemetry.WorkerReport, r.Worker, raw, reportTTL); err == nil {
				last, written = raw, time.Now()
			}
		}
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot store this worker's state; will retry", "err", err)
		}
		select {
		case <-t.C:
		case <-r.wake:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = r.Cluster.persist(last, findings)
			_, _ = r.putFailedCalls(last, failed)
			_ = r.Store.PutTransient(last, telemetry.WorkerReport, r.Worker, nil, 0) // otherwise it expires
			return
		}
	}
}

// putFailedCalls stores when calls failed, if that differs from what was written. It returns
// what is stored.
func (r *Reporter) putFailedCalls(ctx context.Context, written []byte) ([]byte, error) {
	all := telemetry.FailedCallsOf{}
	for _, p := range r.Providers.All() {
		if calls := p.Health.FailedCalls(); len(calls) > 0 {
			all[p.Name] = calls
		}
	}
	raw, err := json.Marshal(all)
	if err != nil || len(all) == 0 || bytes.Equal(raw, written) {
		return written, err
	}
	name := r.Worker + "/" + r.Life
	if err := r.Store.PutTransient(ctx, telemetry.FailedCallsReport, name, raw, telemetry.FailedCallsTTL); err != nil {
		return written, err
	}
	return raw, nil
}
