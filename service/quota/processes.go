package quota

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A process reports itself every heartbeat. It is counted until reportTTL after its last
// report.
const (
	heartbeat  = 2 * time.Second
	reportTTL  = 10 * time.Second
	reportKind = "api-process"
)

// Processes counts the processes that share the limits. The zero value counts one.
//
// A process that starts is not counted by the others for a heartbeat. Meanwhile they admit
// their old shares beside its own. A process that ended is counted for reportTTL, in which
// the others admit less than they may.
type Processes struct{ live atomic.Int64 }

// Count returns the number of processes, at least 1.
func (p *Processes) Count() int64 { return max(1, p.live.Load()) }

// Run reports the process by name and counts all until ctx ends. If the store fails, the
// last count stays.
func (p *Processes) Run(ctx context.Context, store Store, name string, failed func(error)) {
	p.round(ctx, store, name, failed)
	for range models.Every(ctx, heartbeat) {
		p.round(ctx, store, name, failed)
	}
	gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeat)
	defer cancel()
	_ = store.PutTransient(gone, reportKind, name, nil, 0) // else it ends by itself
}

func (p *Processes) round(ctx context.Context, store Store, name string, failed func(error)) {
	err := store.PutTransient(ctx, reportKind, name, []byte{1}, reportTTL)
	if err == nil {
		var all map[string][]byte
		if all, err = store.Transients(ctx, reportKind); err == nil {
			p.live.Store(int64(len(all)))
		}
	}
	if err != nil && ctx.Err() == nil {
		failed(err)
	}
}
