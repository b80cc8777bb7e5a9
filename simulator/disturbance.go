package simulator

// A disturbance is how many events of a post a fault sent otherwise than they
// happened.
type disturbance struct{ twice, overtaken, late int }

// disturbed counts what faults did to the events of a post that was made. A
// repetition of the post is counted no more.
func (a *account) disturbed(p *post, d disturbance) {
	if p.tries > 0 || d == (disturbance{}) {
		return
	}
	a.tally.Load().disturb(d)
	a.s.total.Load().disturb(d)
}

// A happening is an event of a copy, by its place among the events of that copy.
type happening struct {
	mailing uint64 // serial
	copy    uint32
	stage   uint8
}

// overtaken calls f with the place of each event, in the order in which events
// are sent, that stands after a later one of the same copy.
func overtaken(order []happening, f func(i int)) {
	latest := make(map[happening]uint8, len(order))
	for i, h := range order {
		who := happening{mailing: h.mailing, copy: h.copy}
		if h.stage < latest[who] {
			f(i)
		}
		latest[who] = max(latest[who], h.stage)
	}
}
