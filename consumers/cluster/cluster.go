// Package cluster tracks the workers of an installation by heartbeats. It gives each its
// share of the limits, and carries what workers report of the providers.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
)

// Cluster is this worker's membership of the cluster: all workers of one installation.
// Each member gets its share of every provider's rate and concurrency, and merges the
// other members' reports on the providers.
//
// A member writes a heartbeat into the store and reads those of its peers. It compares no
// clocks: a peer's heartbeat counts as long as it changes, by the reader's own clock. If
// in doubt, members send less:
//
//   - A member that has not written and read for fence, by its own clock, sends nothing.
//   - A member that joins, or returns after that, waits for the join delay, which is
//     longer than fence. By then every peer has seen it or sends nothing.
//   - A member whose heartbeat does not change counts for memberTime, which is longer
//     than fence. By then it sends nothing.
//
// So the shares in use never add up to more than the whole.
type Cluster struct {
	cfg       Config
	store     TransientStore
	providers *provider.Set
	flows     *provider.Flows
	wake      chan struct{} // asks for a heartbeat now
	lastGone  atomic.Int64  // unix ms: when a member was last found gone, or this one began

	mu      sync.Mutex
	beat    int64
	others  map[string]*member
	good    time.Time // when the newest round that succeeded began
	useFrom time.Time // when the share may be used
	joined  int64     // how often this member joined
	size    int
	rank    int
	members []string // sorted; rank is this worker's place
}

// member is a peer, as it was last seen.
type member struct {
	beat heartbeat
	seen time.Time // when its heartbeat last changed
}

// heartbeat is what a member writes.
type heartbeat struct {
	Beat     int64                       `json:"beat"`
	Life     string                      `json:"life"` // of this start of the worker
	Started  time.Time                   `json:"started"`
	Findings map[string]provider.Finding `json:"findings,omitempty"`
	Size     int                         `json:"size,omitempty"` // of the cluster, as far as it knew
	Running  map[string]int              `json:"running,omitempty"`

	Recovered map[string]provider.SharedRecovery `json:"recovered,omitempty"`

	// By provider and bucket; only in every flowBeats-th heartbeat.
	Flow map[string]map[int64]provider.Flow `json:"flow,omitempty"`
}

// The times of the cluster, in heartbeats.
const (
	fenceBeats  = 4
	joinBeats   = 5
	memberBeats = 10
	flowBeats   = 5
	keepBeats   = 60 // how long the store keeps a heartbeat
	memberKind  = "member"
)

// TransientStore is the part of models.Store that the cluster needs.
type TransientStore interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

// New returns a member that knows no peers yet.
func New(store TransientStore, cfg Config) *Cluster {
	c := &Cluster{cfg: cfg, store: store, others: map[string]*member{}, size: 1, wake: make(chan struct{}, 1)}
	c.providers, c.flows = &provider.Set{}, provider.NewFlows()
	return c
}

// Carry makes heartbeats carry the health of the providers and the counts of f. It is
// called once, before the first heartbeat.
func (c *Cluster) Carry(ps *provider.Set, f *provider.Flows) {
	c.providers, c.flows = ps, f
}

// NoteGone records that a member is gone, or that this one takes over from one.
func (c *Cluster) NoteGone(now time.Time) { c.lastGone.Store(now.UnixMilli()) }

// GoneSince returns when a member was last found gone, or when this one began.
func (c *Cluster) GoneSince() time.Time { return time.UnixMilli(c.lastGone.Load()) }

// Share returns this member's share of the limits, and false while it may not use it.
func (c *Cluster) Share() (provider.Share, bool) {
	if c.cfg.Sole {
		return provider.Share{Size: 1}, true
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := provider.Share{Size: c.size, Rank: c.rank, Epoch: c.joined}
	return s, !c.good.IsZero() && !c.fenced(now) && !now.Before(c.useFrom)
}

// fenced reports whether the newest round is too old to rely on. It checks the wall
// clock, too: the monotonic clock stops while the machine sleeps.
func (c *Cluster) fenced(now time.Time) bool {
	fence := fenceBeats * c.cfg.Heartbeat
	return now.Sub(c.good) >= fence || now.Round(0).Sub(c.good.Round(0)) >= fence
}

// Run sends heartbeats until ctx ends, and then leaves the cluster.
func (c *Cluster) Run(ctx context.Context) {
	if c.cfg.Sole {
		<-ctx.Done()
		return
	}
	t := time.NewTicker(c.cfg.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.wake:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = c.store.PutTransient(last, memberKind, c.Name(), nil, 0) // otherwise peers wait until it expires
			return
		}
		within, cancel := context.WithTimeout(ctx, fenceBeats*c.cfg.Heartbeat)
		if err := c.round(within); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("cannot exchange heartbeats; this worker stops sending if that lasts", "err", err)
		}
		cancel()
	}
}

// Join makes the first round.
func (c *Cluster) Join(ctx context.Context) error {
	if c.cfg.Sole {
		return nil
	}
	return c.round(ctx)
}

// Wake asks for a heartbeat at once.
func (c *Cluster) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Name returns the name of this start of the worker. No other member writes under it.
func (c *Cluster) Name() string { return c.cfg.Worker + "/" + c.cfg.Life }

// workerOf returns the worker of a member's name.
func workerOf(member string) string {
	return member[:max(0, strings.LastIndexByte(member, '/'))]
}

// round writes a heartbeat and reads those of the peers.
func (c *Cluster) round(ctx context.Context) error {
	began := time.Now()
	c.mu.Lock()
	c.beat++
	mine := heartbeat{
		Beat:     c.beat,
		Life:     c.cfg.Life,
		Started:  c.cfg.Started,
		Findings: c.providers.Findings(),
		Size:     c.size,
		Running:  c.providers.Running(),

		Recovered: c.providers.Recovered(),
	}
	c.mu.Unlock()
	if mine.Beat%flowBeats == 0 {
		mine.Flow = c.flows.Snapshot()
	}
	raw, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if err := c.store.PutTransient(ctx, memberKind, c.Name(), raw, keepBeats*c.cfg.Heartbeat); err != nil {
		return err
	}
	written := time.Now()
	all, err := c.store.Transients(ctx, memberKind)
	if err != nil {
		return err
	}
	// A write with a time in the past, as after a clock was set back, changes
	// nothing. Peers do not see this member then.
	var read heartbeat
	if err := json.Unmarshal(all[c.Name()], &read); err != nil || read.Beat != mine.Beat {
		return errors.New("this worker's heartbeat was written but cannot be read")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(all)
	if c.good.IsZero() || c.fenced(began) {
		c.joined++
		c.useFrom = written
		if len(c.others) > 0 {
			c.useFrom = written.Add(joinBeats * c.cfg.Heartbeat)
		}
	}
	c.good = began
	return nil
}

// see updates the members from what the store holds.
func (c *Cluster) see(all map[string][]byte) {
	now := time.Now()
	for name, raw := range all {
		var b heartbeat
		if name == c.Name() || json.Unmarshal(raw, &b) != nil {
			continue
		}
		m := c.others[name]
		if m == nil || m.beat.Beat != b.Beat || m.beat.Life != b.Life {
			if m != nil && strings.HasPrefix(name, c.cfg.Worker+"/") {
				c.cfg.Logger.Error("two running workers have the same name; give each its own SAFEDELIVR_WORKER",
					"worker", c.cfg.Worker)
			}
			c.others[name] = &member{b, now}
			c.providers.Merge(name, b.Findings)
			c.providers.MergeRecovered(name, b.Recovered)
			if b.Flow != nil {
				c.flows.Merge(name, b.Flow)
			}
		}
	}
	members := []string{c.Name()}
	for name, m := range c.others {
		switch _, there := all[name]; {
		case !there:
			delete(c.others, name)
			c.providers.Forget(name)
			c.flows.Merge(name, nil)
			c.NoteGone(now)
		case now.Sub(m.seen) < memberBeats*c.cfg.Heartbeat:
			members = append(members, name)
		default:
			c.providers.Forget(name)
			c.NoteGone(now)
		}
	}
	slices.Sort(members)
	if c.size != len(members) {
		c.cfg.Logger.Info("workers that share the limits", "workers", len(members))
	}
	c.size, c.rank, c.members = len(members), slices.Index(members, c.Name()), members
}

// MaxCalls returns how many of a provider's n concurrent calls this worker may use:
// its share, minus calls that peers started under a larger share and have not
// finished.
func (c *Cluster) MaxCalls(name string, n int, mine provider.Share) int {
	part := provider.Portion(n, mine)
	if c.cfg.Sole {
		return part
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left := part
	for rank, peer := range c.members {
		m := c.others[peer]
		if m == nil {
			continue // this member
		}
		theirs, running := provider.Portion(n, provider.Share{Size: c.size, Rank: rank}), m.beat.Running[name]
		if m.beat.Size > 0 && m.beat.Size < c.size { // it may start more calls until it knows the new size
			running = max(running, (n+m.beat.Size-1)/m.beat.Size)
		}
		if over := running - theirs; over > 0 && n > theirs {
			left -= (over*part + n - theirs - 1) / (n - theirs) // each member gives way by its share
		}
	}
	return max(0, left)
}
