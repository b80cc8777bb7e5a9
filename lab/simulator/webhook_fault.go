package simulator

import (
	"math/rand/v2"
	"slices"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// maxMixUp is how many single events are put out of order together.
const maxMixUp = 128

// faultCounts counts the events of a post that a fault sent twice, out of order or
// late.
type faultCounts struct{ doubled, overtaken, late int64 }

// shuffle puts the events into another order, and marks those that are sent after a
// later event of the same copy.
func (ob *outbox) shuffle(list []item) {
	e := &list[0]
	seed := ob.a.provider.IDs.Mix(provider.ForShuffle, e.batch.Serial, uint64(e.Stage), uint64(e.copy.Index))
	rng := rand.New(rand.NewPCG(seed, seed))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	latest := map[*message.Copy]uint8{}
	for i := range list {
		e := &list[i]
		e.behind = e.Stage < latest[e.copy]
		latest[e.copy] = max(latest[e.copy], e.Stage)
	}
}

// plan applies the faults in force to each event of p.
func (ob *outbox) plan(p *post) {
	for _, f := range ob.inForce(func(f *fault) bool {
		return f.Mode == ModeEventsDuplicate || f.Mode == ModeEventsShuffle && !ob.batching.Single || f.mutesUntilChanged()
	}) {
		if !f.mutesUntilChanged() && (!p.concerns(f) || !ob.s.faults.take(f)) {
			continue
		}
		if f.Mode == ModeEventsShuffle {
			ob.shuffle(p.items)
			continue
		}
		for i := range p.items {
			if e := &p.items[i]; e.concerned(f) {
				e.times = min(2*e.times, 2)
				if f.Mode == ModeEventsOff {
					e.times = 0
				}
			}
		}
	}
}

func (ob *outbox) inForce(want func(*fault) bool) []*fault {
	return ob.s.faults.inForce(ob.a.name, want)
}

// spread enqueues the other posts of a single event: one for each further URL, and one
// if a fault sends the event twice.
func (ob *outbox) spread(p *post, urls int) {
	e := &p.items[0]
	twice := e.times > 1
	if e.times = min(e.times, 1); e.times == 0 || e.quiet() {
		return
	}
	for i := 1; i < urls; i++ {
		ob.enqueue(post{items: p.items, planned: true, url: uint8(i)}, true)
	}
	if twice {
		ob.enqueue(post{items: p.items, planned: true, repeat: true}, true)
	}
}

// forged reports whether a fault wants the signature of this request to be wrong.
func (ob *outbox) forged(p *post) bool {
	return slices.ContainsFunc(ob.inForce(func(f *fault) bool { return f.Mode == ModeBadSignature }), func(f *fault) bool {
		return p.concerns(f) && ob.s.faults.take(f)
	})
}

// mixUp moves waiting single events to the posts if there is a fault that puts
// them out of order, and reports whether there is one. It takes them from all
// scheduled events alike, so that events of one copy change places too. The outbox
// is locked.
func (ob *outbox) mixUp() bool {
	faults := ob.inForce(func(f *fault) bool { return f.Mode == ModeEventsShuffle })
	if len(faults) == 0 {
		return false
	}
	var list []item
	for len(list) < maxMixUp && ob.waiting > 0 {
		e := pop(&ob.ready)
		list = e.take(list, 1)
		ob.waiting--
		if e.left > 0 {
			ob.ready = append(ob.ready, e)
		}
	}
	if slices.ContainsFunc(faults, func(f *fault) bool {
		return slices.ContainsFunc(list, func(i item) bool { return i.concerned(f) }) && ob.s.faults.take(f)
	}) {
		ob.shuffle(list)
	}
	for i := range list {
		ob.posts = append(ob.posts, post{items: list[i : i+1]})
	}
	return true
}
