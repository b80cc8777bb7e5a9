package quota

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// A process reports itself every heartbeat. It is counted until reportTTL after its last report.
const (
	heartbeat  = 2 * time.Second
	reportTTL  = 10 * time.Second
	reportKind = "api-process"
)

// Processes counts the processes that share the limits. The zero value counts one.
//
// A process that starts beside others joins for a heartbeat, until they count it. Meanwhile
// they admit all of the limits, so it admits as little as it can. A process that ended is
// counted for reportTTL, in which the others admit less than they may.
type Processes struct {
	live    atomic.Int64
	joining atomic.Bool
}

// Count returns the number of processes, at least 1.
func (p *Processes) Count() int64 { return max(1, p.live.Load()) }

// Joining reports whether the other processes may not count this one yet.
func (p *Processes) Joining() bool { return p.joining.Load() }

// Run reports the process by name and counts all until ctx ends. If the store fails, the last count stays.
func (p *Processes) Run(ctx context.Context, store Store, name string, failed func(error)) {
	p.joining.Store(true)
	p.round(ctx, store, name, failed)
	p.joining.Store(p.live.Load() != 1) // 0: the store failed
	for range models.Every(ctx, heartbeat) {
		reported := p.live.Load() > 0
		p.round(ctx, store, name, failed)
		p.joining.Store(!reported)
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
