package consumers

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/safedelivr/safedelivr/consumers/cluster"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// A worker tells how it is and how it finds the providers, for the API and the
// dashboard, wherever they run.

const (
	reportEvery = time.Second
	reportKept  = 15 * time.Second
)

// State is what this worker tells.
func (e *Engine) State() telemetry.WorkerState {
	out := telemetry.WorkerState{Started: e.cfg.started, Providers: make([]telemetry.ProviderState, 0, len(e.providers.All()))}
	if part, ok := e.crew.Share(); ok {
		out.Share = 1 / float64(part.Size)
	}
	for _, a := range e.providers.All() {
		s := a.State(time.Now())
		s.Health, s.Reported = e.state(a), e.flows.ReportTime(a.Name)
		out.Providers = append(out.Providers, s)
	}
	return out
}

// tell writes it down whenever something has changed, until ctx ends; then it
// takes it away.
func (e *Engine) tell(ctx context.Context) {
	t := time.NewTicker(reportEvery)
	defer t.Stop()
	var last []byte
	var written time.Time
	known := cluster.Persisted{}
	for {
		if err := e.crew.Persist(ctx, known); err != nil && ctx.Err() == nil {
			e.log.Warn("how this worker finds the providers is not written down", "err", err)
		}
		raw, err := json.Marshal(e.State())
		if err == nil && (!bytes.Equal(raw, last) || time.Since(written) > reportKept/3) {
			if err = e.store.PutTransient(ctx, telemetry.WorkerReport, e.cfg.Worker, raw, reportKept); err == nil {
				last, written = raw, time.Now()
			}
		}
		if err != nil && ctx.Err() == nil {
			e.log.Warn("what this worker sees is not written down", "err", err)
		}
		select {
		case <-t.C:
		case <-e.changed:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = e.crew.Persist(last, known)
			_ = e.store.PutTransient(last, telemetry.WorkerReport, e.cfg.Worker, nil, 0) // it ends by itself otherwise
			return
		}
	}
}

// healthChanged writes the state down at once.
func (e *Engine) healthChanged() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}
