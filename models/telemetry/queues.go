package telemetry

import "time"

// QueuesReport is a QueueTimes, by worker: see Broker.Depths.
const QueuesReport = "queues"

// QueuesKept is how long a QueueTimes is kept: it stays true when its worker is
// gone.
const QueuesKept = 7 * 24 * time.Hour

// QueueTimes says, by the name of a queue, since when at the earliest the oldest
// message in it can have waited: since the message came that was taken last, or
// since the queue was seen empty, whichever is later. Queues are first in, first
// out; what a worker gives back to the head may have waited longer.
type QueueTimes map[string]time.Time

// Take takes over what another knows.
func (q QueueTimes) Take(o QueueTimes) {
	for name, at := range o {
		if at.After(q[name]) {
			q[name] = at
		}
	}
}
