// Package telemetry defines the reports of processes: health, counters and history of
// the providers, queue ages, and outages of the webhook receiver.
package telemetry

import (
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The kinds of report (Store.PutTransient). All are JSON.
const (
	// WorkerReport is a WorkerState, by worker. It ends soon after its worker stops.
	WorkerReport = "worker"
	// RecountReport is the newest automatic Recount, under the name NewestRecount.
	RecountReport = "recount"
	NewestRecount = "newest"
	// ReceiverLiveness is the time when the webhook receiver was last up, by process.
	ReceiverLiveness = "receiver"
	// LastReceived is the time of the last verified webhook, by provider.
	LastReceived = "last_received"
	// EventSeen is the time when the newest event of a kind came in, by SeenKind.
	EventSeen = "event_seen"
	// FailedCallsReport is a FailedCallsOf, by worker, a slash, and the start of the worker.
	FailedCallsReport = "failed_calls"
	// OutageRecord is an Outage of the webhook receiver. Events of that time are looked up.
	OutageRecord = "outage"
)

// How long reports are kept.
const (
	LastReceivedTTL = 400 * 24 * time.Hour
	OutageTTL       = 30 * 24 * time.Hour
	EventSeenTTL    = 30 * 24 * time.Hour
	FailedCallsTTL  = 31 * 24 * time.Hour
)

// Outage is a span of time in which webhooks may have been lost.
type Outage struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Provider string    `json:"provider,omitempty"` // empty: of all providers
	Asked    int       `json:"asked,omitempty"`    // number of look-ups
}

// WorkerState is the state of a worker and of the providers as it sees them.
type WorkerState struct {
	Started   time.Time       `json:"started"`
	Share     float64         `json:"share"` // of each provider's rate and concurrency; 0: it may send nothing
	Providers []ProviderState `json:"providers"`
}

// ProviderState is the state of a provider as a worker sees it.
type ProviderState struct {
	Name     string        `json:"name"`
	Health   Health        `json:"health"`
	Counters Counters      `json:"counters"`
	Rate     float64       `json:"rate"`            // recipients accepted per second, over the last seconds
	Answers  time.Duration `json:"answers"`         // usual response time; 0: unknown
	Reported time.Duration `json:"reported"`        // p90 of the time to an event; 0: unknown
	Limit    string        `json:"limit,omitempty"` // RateLimit or ConcurrencyLimit if mail waits for it
}

// The limits of a provider that mail may wait for.
const (
	RateLimit        = "rate"
	ConcurrencyLimit = "concurrency"
)

// The states of a provider's health, from the best to the worst.
const (
	Healthy   = "healthy"
	Failing   = "failing"   // its newest calls failed, too few to suspend it
	Draining  = "draining"  // an operator gives it only mail that no other provider may send
	Probation = "probation" // it gets a few recipients at a time until it reports on its mail again
	Probing   = "probing"   // it gets one message at a time until it answers one
	Suspended = "suspended" // it gets no mail until a time
	Offline   = "offline"   // an operator took it offline
)

// HealthStates lists the states in that order.
var HealthStates = []string{Healthy, Failing, Draining, Probation, Probing, Suspended, Offline}

// Severity orders health from the best, 0, to the worst.
func (h *Health) Severity() int { return slices.Index(HealthStates, h.State) }

// The sources of a state that is not healthy.
const (
	CallsFailed = "calls"       // calls failed, hung, or were slow beside other providers
	Rejected    = "rejected"    // the provider rejected the credentials or the quota
	RetryAfter  = "retry_after" // the provider asked to wait
	Silence     = "silence"     // the provider accepted mail and reported nothing about it
	Operator    = "operator"    // an operator's command
)

// Health is the current health of a provider.
type Health struct {
	State  string    `json:"state"`
	Source string    `json:"source,omitempty"`
	Why    string    `json:"why,omitempty"`
	Peer   string    `json:"peer,omitempty"` // the worker that found it out; empty: the one that reports it
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // when it gets mail again at the earliest

	// Failures is the number of calls that failed since a call succeeded, and LastError the
	// answer to the newest of them.
	Failures  int    `json:"failed_calls,omitempty"`
	LastError string `json:"last_error,omitempty"`

	// Senders has the domains for which the provider refuses to send. Their mail goes
	// through other providers; after a while it is tried here again.
	Senders []string `json:"refused_senders,omitempty"`
}

// Commanded returns the health of a provider that an operator switched to a mode, at a time
// and for a reason. Draining is shown only for a provider that is healthy otherwise.
func (h Health) Commanded(mode models.CommandKind, since time.Time, why string) Health {
	state := ""
	switch mode { // only modes of providers
	case models.ProviderOffline:
		state = Offline
	case models.ProviderDrain:
		if h.State == Healthy {
			state = Draining
		}
	}
	if state == "" {
		return h
	}
	return Health{
		State:     state,
		Source:    Operator,
		Why:       why,
		Since:     since,
		Failures:  h.Failures,
		LastError: h.LastError,
		Senders:   h.Senders,
	}
}

// FailedCalls is a time in which calls of a worker to a provider failed.
type FailedCalls struct {
	From  time.Time `json:"from"`        // when the first of these calls began
	Known time.Time `json:"known"`       // when one of them had failed
	Last  time.Time `json:"last"`        // when the newest of them had failed
	To    time.Time `json:"to,omitzero"` // when a call succeeded again; zero: none has
	Calls int       `json:"calls"`
}

// FailedCallsOf has the failed calls of a worker by provider: those that last, and the longest that ended.
type FailedCallsOf map[string][]FailedCalls

// Counters count what a worker did through a provider since it started.
type Counters struct {
	Calls     int64 `json:"calls"`
	Accepted  int64 `json:"accepted"` // recipients
	Refused   int64 `json:"refused"`  // recipients
	Unknown   int64 `json:"unknown"`  // recipients
	Delivered int64 `json:"delivered"`
	Failures  int64 `json:"failures"`  // reported by events
	Unmatched int64 `json:"unmatched"` // events that name no log, and fit none
	Inflight  int64 `json:"inflight"`  // calls
}

// Add adds the counters of another worker.
func (c *Counters) Add(o Counters) {
	c.Calls += o.Calls
	c.Accepted += o.Accepted
	c.Refused += o.Refused
	c.Unknown += o.Unknown
	c.Delivered += o.Delivered
	c.Failures += o.Failures
	c.Unmatched += o.Unmatched
	c.Inflight += o.Inflight
}

// Recount is the result, or the progress, of a consistency check.
type Recount struct {
	At          time.Time `json:"at,omitzero"` // end of the check; zero: it is running
	Users       int       `json:"users"`
	Batches     int       `json:"batches"`
	Chunks      int       `json:"chunks"`
	Recipients  int64     `json:"recipients"`
	Days        int       `json:"days"`
	Differences int       `json:"differences"` // wrong sums
	Repaired    int       `json:"repaired"`
}
