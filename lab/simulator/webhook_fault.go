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
type faultCounts struct{ doubled, overtaken, late int }

// count adds an event that is sent the given number of times.
func (c *faultCounts) count(times int, late bool) {
	if times > 1 {
		c.doubled++
	}
	if times > 0 && late {
		c.late++
	}
}

// faultCounts returns what faults did to a post of one event.
func (p *post) faultCounts() (c faultCounts) {
	if p.repeat {
		c.doubled++
	}
	if p.behind {
		c.overtaken++
	}
	return c
}

// An eventKey identifies an event of a copy.
type eventKey struct {
	serial uint64 // of the batch
	copy   uint32
	stage  uint8
}

// overtaken calls f with the index of each event that is sent after a later event
// of the same copy.
func overtaken(order []eventKey, f func(i int)) {
	latest := make(map[eventKey]uint8, len(order))
	for i, k := range order {
		c := eventKey{serial: k.serial, copy: k.copy}
		if k.stage < latest[c] {
			f(i)
		}
		latest[c] = max(latest[c], k.stage)
	}
}

// plan applies the faults in force to each event of p.
func (ob *outbox) plan(p *post) {
	fs := &ob.s.faults
	list := fs.inForce(ob.a.name, func(f *fault) bool {
		return f.Mode == ModeEventsDuplicate || f.Mode == ModeEventsShuffle || f.mutesUntilChanged()
	})
	if len(list) == 0 {
		return
	}
	if p.more == nil {
		p.more = &further{}
	}
	p.more.plan = make([]treatment, p.events())
	for _, f := range list {
		if f.mutesUntilChanged() || p.concerns(f) && fs.take(f) {
			ob.planFault(p, f)
		}
	}
}

// planFault applies one fault to each event of p that it concerns.
func (ob *outbox) planFault(p *post, f *fault) {
	i := 0
	p.segments(func(s segment) {
		st := s.stage()
		s.each(func(c *message.Copy) bool {
			if f.pattern.Match(c.Address) && f.events.Has(st.Event, st.Kind) {
				switch f.Mode {
				case ModeEventsOff:
					p.more.plan[i] = mute
				case ModeEventsDuplicate:
					if p.more.plan[i] != mute {
						p.more.plan[i] = sendTwice
					}
				case ModeEventsShuffle:
					p.more.shuffle = ob.shuffleSeed(s.batch.Serial, uint64(s.Stage), uint64(c.Index)) | 1
				}
			}
			i++
			return true
		})
	})
}

func (ob *outbox) shuffleSeed(parts ...uint64) uint64 {
	return ob.a.provider.IDs.Mix(provider.ForShuffle, parts...)
}

// planSingle applies the faults in force to a post of one event. The event goes to
// each of the URLs, so planSingle enqueues a post for each further one. It reports
// false if the event has no webhook.
func (ob *outbox) planSingle(p *post, urls int) bool {
	if ob.mutes(p) {
		p.muted = 1
		return false
	}
	if p.url > 0 || p.repeat {
		return true
	}
	for i := 1; i < urls; i++ {
		ob.enqueue(post{segment: p.segment, planned: true, url: uint8(i)}, true)
	}
	duplicates := func(f *fault) bool { return f.Mode == ModeEventsDuplicate }
	for _, f := range ob.s.faults.inForce(ob.a.name, duplicates) {
		if p.concerns(f) && ob.s.faults.take(f) {
			ob.enqueue(post{segment: p.segment, planned: true, repeat: true}, true)
			break
		}
	}
	return true
}

// mutes reports whether the single event of p has no webhook.
func (ob *outbox) mutes(p *post) bool {
	return p.quiet() || slices.ContainsFunc(ob.s.faults.inForce(ob.a.name, (*fault).mutesUntilChanged), p.concerns)
}

// forged reports whether a fault wants the signature of this request to be wrong.
func (ob *outbox) forged(p *post) bool {
	forges := func(f *fault) bool { return f.Mode == ModeBadSignature }
	for _, f := range ob.s.faults.inForce(ob.a.name, forges) {
		if p.concerns(f) && ob.s.faults.take(f) {
			return true
		}
	}
	return false
}

// mixUp moves waiting single events to the posts if there is a fault that puts
// them out of order, and reports whether there is one. It takes them from all
// scheduled events alike, so that events of one copy change places too. The outbox
// is locked.
func (ob *outbox) mixUp() bool {
	faults := ob.s.faults.inForce(ob.a.name, func(f *fault) bool { return f.Mode == ModeEventsShuffle })
	if len(faults) == 0 {
		return false
	}
	var list []post
	for len(list) < maxMixUp && ob.waiting > 0 {
		e := pop(&ob.ready)
		list = append(list, post{segment: e.take(1)})
		ob.waiting--
		if e.left > 0 {
			ob.ready = append(ob.ready, e)
		}
	}
	if slices.ContainsFunc(faults, func(f *fault) bool {
		return slices.ContainsFunc(list, func(p post) bool { return p.concerns(f) }) && ob.s.faults.take(f)
	}) {
		seed := ob.shuffleSeed(list[0].batch.Serial, uint64(list[0].from))
		rng := rand.New(rand.NewPCG(seed, seed))
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		order := make([]eventKey, len(list))
		for i, p := range list {
			order[i] = eventKey{p.batch.Serial, p.first().Index, p.Stage}
		}
		overtaken(order, func(i int) { list[i].behind = true })
	}
	ob.posts = append(ob.posts, list...)
	return true
}

// A batching is how the events of an account are collected and framed.
type batching struct{ provider.Batching }

// shuffle puts the events of the body, which end at ends, into another order, and
// their keys along with them.
func (b *batching) shuffle(body []byte, ends []int, keys []eventKey, seed uint64) []byte {
	out := append(make([]byte, 0, cap(body)), b.Open...)
	rng := rand.New(rand.NewPCG(seed, seed))
	old := slices.Clone(keys)
	for n, i := range rng.Perm(len(ends)) {
		keys[n] = old[i]
		if n > 0 {
			out = append(out, b.Separator...)
		}
		begin := len(b.Open)
		if i > 0 {
			begin = ends[i-1] + len(b.Separator)
		}
		out = append(out, body[begin:ends[i]]...)
	}
	return out
}
