package telemetry

import "time"

// QueuesReport is the kind of a QueueTimes, by worker. See Broker.Depths.
const QueuesReport = "queues"

// QueuesKept is how long a QueueTimes is kept. It stays valid after its worker stops.
const QueuesKept = 7 * 24 * time.Hour

// QueueTimes maps a queue to a lower bound on the enqueue time of its oldest message. It is that of the last message
// taken, or the last time the queue was empty. Queues are first in, first out; a message that a worker returned to the
// head may be older.
type QueueTimes map[string]time.Time

// Take merges the later times of o into q.
func (q QueueTimes) Take(o QueueTimes) {
	for name, at := range o {
		if at.After(q[name]) {
			q[name] = at
		}
	}
}

// StalledQueueReport is the kind of a StalledQueue, by the name of the queue.
const StalledQueueReport = "stalled queue"

// StalledQueue is a queue that delivered its messages to no worker, until a worker subscribed to it anew.
type StalledQueue struct {
	Queue   string    `json:"queue"` // its name without the prefix
	Since   time.Time `json:"since"`
	Waiting int       `json:"waiting"` // messages in it
}

// BrokerReport is the kind of a BrokerState, by worker.
const BrokerReport = "broker"

// BrokerState says since when the broker does not answer a worker, or describes none of its queues. RabbitMQ refuses to
// describe a quorum queue without a leader.
type BrokerState struct {
	Since time.Time `json:"since,omitzero"` // zero: all is well
	Why   string    `json:"why,omitempty"`  // the error
}
