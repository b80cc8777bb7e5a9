package drill

import "time"

// incident is what broke in a drill, and when.
type incident struct {
	began    time.Time // the drill
	brokenAt time.Time
	healedAt time.Time
	killed   int         // processes, while they worked
	woken    []time.Time // when a frozen worker was woken
	heldUp   standstills
}

// broken notes that the fault has been injected.
func (i *incident) broken() {
	if i.killed == 0 { // kill has set it
		i.brokenAt = time.Now()
	}
}

// kill notes that a process is killed.
func (i *incident) kill() {
	if i.killed++; i.brokenAt.IsZero() {
		i.brokenAt = time.Now()
	}
}

// ran reports whether all processes ran all the time.
func (i *incident) ran() bool { return !i.heldUp.any() && i.killed == 0 && len(i.woken) == 0 }
