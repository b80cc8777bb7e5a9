package drill

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// scenario is something that breaks while mail is being sent, and is healed again.
type scenario struct {
	name, story string

	needs    need          // what it is not possible without
	ordered  bool          // its batches go through the first provider as long as that works
	breaks   int           // how many providers it breaks, beginning with the first
	events   bool          // only events are disturbed
	reports  bool          // the providers have to report events
	holds    doubts        // what may hide the outcome of some mail; 0: nothing may be held in the end
	apart    bool          // roles run in processes of their own, if the backends allow it
	atOnce   int           // calls at once of a provider; 0: so many that it is never busy
	settings []string      // of the servers
	longer   time.Duration // how much longer than others it may take
	scale    float64       // simulated seconds per second; 0 is timeScale

	// mayFail reports whether the fault explains that a log failed. If it is nil, only mail to bouncing addresses may
	// fail.
	mayFail func(p *providers, l *client.Log, story []client.Moment, o *outcome) bool

	// clocksOff says that ledgers and providers have different times.
	clocksOff bool

	// inject injects the fault, waits until it has had its effect, and heals it. It calls broken and healed.
	inject func(ctx context.Context, d *drill) error
}

// need is what a scenario is not possible without.
type need int

const (
	needsNothing  need = iota
	needsBroker        // RabbitMQ
	needsStore         // Cassandra or PostgreSQL
	needsOwnStore      // the embedded store
	needsSignals       // by which processes are frozen
)

// impossible says why the scenario is not possible on a set-up; "" if it is.
func (s *scenario) impossible(set *setup) string {
	silent := [2]bool{set.pair.Silent(set.pair[0].Name), set.pair.Silent(set.pair[1].Name)}
	switch {
	case s.needs == needsBroker && set.ownBroker():
		return "the broker is part of the process"
	case s.needs == needsBroker && set.broker() == "postgres":
		return "the broker is in the store"
	case s.needs == needsStore && set.ownStore():
		return "the store is part of the process"
	case s.needs == needsOwnStore && !set.ownStore():
		return "it is about the embedded store"
	case s.needs == needsBroker && strings.HasPrefix(set.cfg.AMQP.URL, "amqps:"):
		return "connections to RabbitMQ go through a proxy, whose name amqps:// would not accept"
	case s.needs == needsStore && set.store() == "cassandra" && !loopback(set.cfg.Cassandra.Hosts[0]):
		return "connections to Cassandra go through a proxy, which the driver avoids unless the node is on this machine"
	case s.needs == needsStore && set.cfg.Cassandra.TLSCA != "":
		return "connections to Cassandra go through a proxy, whose name TLS would not accept"
	case s.reports && (silent[0] || silent[1]):
		return "a server that takes mail by SMTP reports no events"
	case s.apart && silent[0] && silent[1]:
		return "calls by SMTP are not watched"
	case s.needs == needsSignals && !canFreeze:
		return "processes cannot be frozen on this system"
	}
	return ""
}

// loopback reports whether a host is this machine's loopback address.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return name == "localhost" || net.ParseIP(name).Equal(net.IPv4(127, 0, 0, 1))
}

// timeScale is how much faster than real providers the simulated ones repeat posts, defer and flush.
const timeScale = 120

// faultOfFirst returns a scenario in which the first provider has a fault.
func faultOfFirst(name, story string, f simulator.Fault) scenario {
	return scenario{
		name:    name,
		story:   story,
		ordered: true,
		breaks:  1,
		inject:  providerFault(f),
	}
}

// holding returns the scenario with doubts.
func (s scenario) holding(holds doubts, settings ...string) scenario {
	s.holds, s.settings = holds, settings
	return s
}

// reporting returns the scenario for providers that report events.
func (s scenario) reporting() scenario {
	s.reports = true
	return s
}

// scenarios are those that users can run.
var scenarios = []scenario{
	faultOfFirst("provider-down", "<first> answers 503 to everything",
		simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable}),
	faultOfFirst("hanging", "<first> reads requests and never answers; it sends none of them",
		simulator.Fault{Mode: simulator.ModeHang}).holding(answersWithheld),
	faultOfFirst("hang-after-body", "<first> sends the mail and never answers",
		simulator.Fault{Mode: simulator.ModeHangAfterBody}),
	faultOfFirst("close-after-accepting", "<first> sends the mail and closes the connection without an answer",
		simulator.Fault{Mode: simulator.ModeAcceptThenClose}),
	faultOfFirst("429-storm", "<first> answers 429 to everything and names a time to come back",
		simulator.Fault{Mode: simulator.ModeRate, RetryAfter: 2 * time.Second}),
	faultOfFirst("black-hole", "<first> accepts everything, sends nothing and reports nothing",
		simulator.Fault{Mode: simulator.ModeSuspend}).
		holding(eventsWithheld, "SAFEDELIVR_TIMES_SILENCE=3s", "SAFEDELIVR_TIMES_FINAL_EVENT=20s").reporting(),
	faultOfFirst("key-revoked", "<first> no longer knows the API key",
		simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusUnauthorized}),
	{
		name:   "both-down",
		story:  "<first> and <second> answer 503 to everything",
		breaks: 2,
		inject: bothDown,
	},
	{
		name:   "worker-killed",
		story:  "kill -9 of a worker during its calls; a new one is started",
		apart:  true,
		holds:  callsCutOff,
		inject: workerKilled,
	},
	{
		name:   "worker-frozen",
		story:  "SIGSTOP of a worker for longer than its calls may wait to begin, then SIGCONT",
		apart:  true,
		needs:  needsSignals,
		holds:  callsCutOff,
		inject: workerFrozen,
	},
	{
		name:   "broker-purged",
		story:  "all queues lose all messages (in-process broker: the process is killed and started again)",
		holds:  callsCutOff,
		atOnce: fewCalls,
		inject: brokerPurged,
	},
	{
		name:   "broker-gone",
		story:  "RabbitMQ cannot be reached for a while, in which scheduled mail is due",
		needs:  needsBroker,
		inject: scheduledThrough(unavailable(brokerUnavailable)),
	},
	{
		name:   "store-gone",
		story:  "the store cannot be reached for a while",
		needs:  needsStore,
		holds:  appendsLost,
		inject: unavailable(storeUnavailable),
	},
	{
		name:   "endpoint-down",
		story:  "the application answers updates with 503, redirects, nothing at all and closed connections; then it takes them",
		events: true,
		inject: endpointDown,
	},
	{
		name:   "scheduled-in-time",
		story:  "nothing breaks, and mail is due a few seconds after it was accepted, also at times of recipients",
		inject: scheduledInTime,
	},
	{
		name: "scheduled-through-outage",
		story: "<first> answers 503 to everything when scheduled mail is due, also at times of recipients, " +
			"and some of it is moved",
		ordered: true,
		breaks:  1,
		inject:  scheduledThroughOutage,
	},
	{
		name:   "messages-changed",
		story:  "kill -9 of API and worker while messages are created, changed and cancelled by ids of the client's own",
		apart:  true,
		holds:  callsCutOff,
		inject: messagesThroughKills,
	},
	{
		name:    "webhooks-doubled",
		story:   "every event is reported twice",
		events:  true,
		reports: true,
		inject:  eventFault(simulator.Fault{Mode: simulator.ModeEventsDuplicate}, doubledEvents),
	},
	{
		name:    "webhooks-shuffled",
		story:   "events come out of order",
		events:  true,
		reports: true,
		inject:  eventFault(simulator.Fault{Mode: simulator.ModeEventsShuffle}, overtakenEvents),
	},
	{
		name:    "webhooks-late",
		story:   "events come five simulated hours after everything else is done",
		events:  true,
		reports: true,
		scale:   3600,
		inject:  eventFault(simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: 5 * time.Second}, lateEvents),
	},
	{
		name:    "webhooks-forged",
		story:   "an attacker posts bounces of mail that is being sent, with wrong signatures",
		events:  true,
		reports: true,
		inject:  forgeries,
	},
	{
		name:   "hostile-user",
		story:  "another user sends, all at once, requests that are expensive to check",
		events: true,
		inject: hostileUser,
	},
	{
		name:   "hostile-stranger",
		story:  "somebody without a key reads no answers, begins posts, and guesses links and keys, from five addresses",
		events: true,
		inject: hostileStranger,
	},
}
