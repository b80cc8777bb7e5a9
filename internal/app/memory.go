package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/config"
)

// The garbage collector's goal. A chunk on its way to a provider, with its request, takes about a megabyte. The base is
// for requests that are read and checked: with 48 MiB a hostile user kept the collector, and so the processors, busy.
const (
	memoryBase    = 256 << 20
	memoryPerCall = 1 << 20
)

// containerLimit is the file with the memory limit of a container (cgroup v2).
const containerLimit = "/sys/fs/cgroup/memory.max"

// LimitMemory sets a soft memory limit of what the configured calls need, but at most nine tenths of the container's
// limit. GOMEMLIMIT takes precedence.
func LimitMemory(cfg *config.Config) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(memoryBase)
	for _, p := range cfg.Providers {
		limit += int64(p.Concurrency) * memoryPerCall
	}
	debug.SetMemoryLimit(within(limit, containerLimit))
}

// within returns limit, or nine tenths of the limit in a file if that is less. The file may be missing, or hold "max".
func within(limit int64, file string) int64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return limit
	}
	container, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil || container <= 0 {
		return limit
	}
	return min(limit, container/10*9)
}

// While little of the heap is live, it may grow by as much until the next collection; by half of it if much is. So
// collections are rare when they bring little, and a large batch takes less memory.
const (
	littleLive = 20 << 20
	muchLive   = 40 << 20
)

// growth returns by how many percent of what is live the heap may grow, in steps of ten.
func growth(live uint64) int {
	over := min(max(live, littleLive), muchLive) - littleLive
	return 100 - 10*int(5*over/(muchLive-littleLive))
}

// A process is under pressure while clients ask for more than they may, and for pressureTime after that. The heap may
// then grow by pressedPercent of what is live.
const (
	pressingRequests = 5 // in a second; well-behaved clients make a few
	pressureTime     = 30 * time.Second
	pressedPercent   = 25
)

// pressure keeps the memory of a process small, above all while clients ask for more than they may.
type pressure struct {
	set   func(percent int) (before int) // debug.SetGCPercent
	usual *rate.Limiter                  // of requests that do not count

	mu     sync.Mutex
	until  time.Time // zero: there is no pressure
	before int       // percent without pressure
	last   int       // percent that follows from what was live; 0: not known
}

func newPressure() *pressure {
	return &pressure{set: debug.SetGCPercent, usual: rate.NewLimiter(pressingRequests, pressingRequests)}
}

// note notes a request of a client who asks for more than it may. The first one waits for the garbage collector.
func (p *pressure) note() {
	if p.usual.Allow() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.IsZero() {
		if p.before = p.set(pressedPercent); p.before < pressedPercent { // by GOGC; below 0: it is off
			p.set(p.before)
		}
		time.AfterFunc(pressureTime, p.end)
	}
	p.until = time.Now().Add(pressureTime)
}

// end lets the heap grow again when the pressure is over.
func (p *pressure) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left := time.Until(p.until); left > 0 {
		time.AfterFunc(left, p.end)
		return
	}
	p.until = time.Time{}
	p.set(p.before)
}

// collection is an object that nothing needs. That it is gone says that the heap was collected.
type collection struct{ of *pressure }

// follow decides anew by how much the heap may grow after each collection, until ctx ends. GOGC takes precedence.
func (p *pressure) follow(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		runtime.AddCleanup(&collection{p}, p.collected, ctx)
	}
}

// collected is called after a collection.
func (p *pressure) collected(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	defer p.follow(ctx)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	p.allow(growth(live[0].Value.Uint64()))
}

// allow lets the heap grow by so many percent of what is live, as soon as there is no pressure.
func (p *pressure) allow(percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.until.IsZero():
		p.before = percent
	case percent != p.last:
		p.set(percent)
	}
	p.last = percent
}
