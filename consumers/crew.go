package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// The workers of one installation are a crew: each gets its share of every
// provider's rate and concurrency, and hears how the others find the providers.
//
// A worker writes a beat into the store and reads those of the others. No
// clocks are compared: another's beat counts as long as it changes, seen by
// one's own clock. On doubt everybody sends less:
//
//   - who could not write and read for fence, by its own clock, sends nothing;
//   - who joins, or comes back after that, waits for joinWait, which is longer
//     than fence: by then everybody else has seen it or sends nothing;
//   - who is silent counts for memberTime, which is longer than fence: by then
//     it sends nothing.
//
// So the shares in use never add up to more than the whole.
type crew struct {
	cfg      *Config
	store    reportStore
	health   func() map[string]Ailment                    // how this worker finds the providers
	hear     func(worker string, ails map[string]Ailment) // what another says
	lost     func(worker string)                          // Nothing more is heard of another
	flow     func() map[string]map[int64]Flow             // what went through this worker
	hearFlow func(worker string, said map[string]map[int64]Flow)
	running  func() map[string]int // Calls of this worker, by provider
	gone     func()                // somebody has left, or is silent
	kick     chan struct{}         // asks for a beat now

	mu      sync.Mutex
	beat    int64
	others  map[string]*mate
	good    time.Time // when the newest round that succeeded began
	useFrom time.Time // when the share may be used
	joined  int64     // how often it joined
	size    int
	rank    int
	members []string // sorted; rank is this worker's place
}

// mate is another worker, as it was seen last.
type mate struct {
	beat crewBeat
	seen time.Time // when its beat changed last
}

// crewBeat is what a worker writes.
type crewBeat struct {
	Beat    int64              `json:"beat"`
	Life    string             `json:"life"` // of this start of the worker
	Started time.Time          `json:"started"`
	Ails    map[string]Ailment `json:"ails,omitempty"`
	Size    int                `json:"size,omitempty"` // of the crew, as it knew
	Running map[string]int     `json:"running,omitempty"`

	// By provider and bucket; only in every flowBeats-th beat.
	Flow map[string]map[int64]Flow `json:"flow,omitempty"`
}

// Ailment is what keeps a worker from using a provider.
type Ailment struct {
	State string        `json:"state"`
	Why   string        `json:"why,omitempty"`
	Left  time.Duration `json:"left"` // how much longer, from when it was written

	Silent bool `json:"silent,omitempty"` // it took mail and reported nothing

	// Senders whose mail it refuses, by domain, and how much longer each is kept
	// away; the provider may be healthy beside.
	Senders map[string]time.Duration `json:"senders,omitempty"`

	// Probe is the newest order to try the provider again that the worker obeyed
	// before it found this out.
	Probe int `json:"probe,omitempty"`
}

// The times of a crew, in beats.
const (
	fenceBeats  = 4
	joinBeats   = 5
	memberBeats = 10
	flowBeats   = 5
	keepBeats   = 60 // how long the store keeps a beat
	crewKind    = "crew"
)

// reportStore is the part of models.Store that a crew needs.
type reportStore interface {
	PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error
	Transients(ctx context.Context, kind string) (map[string][]byte, error)
}

func newCrew(store reportStore, cfg *Config) *crew {
	return &crew{cfg: cfg, store: store, others: map[string]*mate{}, size: 1, kick: make(chan struct{}, 1),
		health: func() map[string]Ailment { return nil }, hear: func(string, map[string]Ailment) {}, lost: func(string) {},
		flow: func() map[string]map[int64]Flow { return nil }, hearFlow: func(string, map[string]map[int64]Flow) {}, gone: func() {},
		running: func() map[string]int { return nil }}
}

// share is a worker's part of the limits.
type share struct {
	size, rank int
	epoch      int64 // changes when the worker joined anew: nothing saved up before counts
}

// share returns this worker's part, and false while it may not use it.
func (c *crew) share() (share, bool) {
	if c.cfg.Sole {
		return share{size: 1}, true
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := share{c.size, c.rank, c.joined}
	return s, !c.good.IsZero() && !c.fenced(now) && !now.Before(c.useFrom)
}

// fenced reports whether the newest round is too old to go by. Both clocks
// count: the monotonic one does not run while the machine sleeps.
func (c *crew) fenced(now time.Time) bool {
	fence := fenceBeats * c.cfg.Beat
	return now.Sub(c.good) >= fence || now.Round(0).Sub(c.good.Round(0)) >= fence
}

// run beats until ctx ends, and then leaves.
func (c *crew) run(ctx context.Context) {
	if c.cfg.Sole {
		<-ctx.Done()
		return
	}
	t := time.NewTicker(c.cfg.Beat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.kick:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = c.store.PutTransient(last, crewKind, c.name(), nil, 0) // the others wait a little longer otherwise
			return
		}
		within, cancel := context.WithTimeout(ctx, fenceBeats*c.cfg.Beat)
		if err := c.round(within); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Warn("the other workers could not be asked; limits are not used up meanwhile", "err", err)
		}
		cancel()
	}
}

// first is the round before anything else.
func (c *crew) first(ctx context.Context) error {
	if c.cfg.Sole {
		return nil
	}
	return c.round(ctx)
}

// now asks for a beat at once.
func (c *crew) now() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// name is that of this life of the worker: nobody else writes under it.
func (c *crew) name() string { return c.cfg.Worker + "/" + c.cfg.life }

// round writes a beat and reads those of the others.
func (c *crew) round(ctx context.Context) error {
	began := time.Now()
	c.mu.Lock()
	c.beat++
	mine := crewBeat{Beat: c.beat, Life: c.cfg.life, Started: c.cfg.started, Ails: c.health(), Size: c.size, Running: c.running()}
	c.mu.Unlock()
	if mine.Beat%flowBeats == 0 {
		mine.Flow = c.flow()
	}
	raw, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	if err := c.store.PutTransient(ctx, crewKind, c.name(), raw, keepBeats*c.cfg.Beat); err != nil {
		return err
	}
	written := time.Now()
	all, err := c.store.Transients(ctx, crewKind)
	if err != nil {
		return err
	}
	// A write under a time that is past, as after a clock was set back, changes
	// nothing: the others do not know of this worker then.
	var read crewBeat
	if err := json.Unmarshal(all[c.name()], &read); err != nil || read.Beat != mine.Beat {
		return errors.New("this worker's beat was written and cannot be read")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(all)
	if c.good.IsZero() || c.fenced(began) {
		c.joined++
		c.useFrom = written
		if len(c.others) > 0 {
			c.useFrom = written.Add(joinBeats * c.cfg.Beat)
		}
	}
	c.good = began
	return nil
}

// see takes in what stands in the store.
func (c *crew) see(all map[string][]byte) {
	now := time.Now()
	for name, raw := range all {
		var b crewBeat
		if name == c.name() || json.Unmarshal(raw, &b) != nil {
			continue
		}
		m := c.others[name]
		if m == nil || m.beat.Beat != b.Beat || m.beat.Life != b.Life {
			if m != nil && strings.HasPrefix(name, c.cfg.Worker+"/") {
				c.cfg.Logger.Error("two workers that run have one name: give each its own SAFEDELIVR_WORKER", "worker", c.cfg.Worker)
			}
			c.others[name] = &mate{b, now}
			c.hear(name, b.Ails)
			if b.Flow != nil {
				c.hearFlow(name, b.Flow)
			}
		}
	}
	members := []string{c.name()}
	for name, m := range c.others {
		switch _, there := all[name]; {
		case !there:
			delete(c.others, name)
			c.lost(name)
			c.hearFlow(name, nil)
			c.gone()
		case now.Sub(m.seen) < memberBeats*c.cfg.Beat:
			members = append(members, name)
		default:
			c.lost(name)
			c.gone()
		}
	}
	slices.Sort(members)
	if c.size != len(members) {
		c.cfg.Logger.Info("workers that share the limits", "workers", len(members))
	}
	c.size, c.rank, c.members = len(members), slices.Index(members, c.name()), members
}

// Calls is how many of n calls of a provider this worker may have running: its part,
// less what others have running beyond theirs, because they had a larger part when
// those calls began. Who joins waits for them.
func (c *crew) calls(provider string, n int, mine share) int {
	part := portion(n, mine)
	if c.cfg.Sole {
		return part
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left := part
	for rank, name := range c.members {
		m := c.others[name]
		if m == nil {
			continue // this worker itself
		}
		theirs, running := portion(n, share{size: c.size, rank: rank}), m.beat.Running[provider]
		if m.beat.Size > 0 && m.beat.Size < c.size { // it may begin more until it knows
			running = max(running, (n+m.beat.Size-1)/m.beat.Size)
		}
		if over := running - theirs; over > 0 && n > theirs {
			left -= (over*part + n - theirs - 1) / (n - theirs) // each gives way by its part
		}
	}
	return max(0, left)
}
