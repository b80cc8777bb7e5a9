package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// scenario is something that breaks while mail is on its way, and is mended.
type scenario struct {
	name, story string

	needs    need          // where it has a meaning
	prefer   []string      // the providers of its batches in their order; none: all alike
	breaks   []string      // the providers that it breaks
	events   bool          // mail itself flows on
	holds    doubts        // what may keep from us what became of some mail; 0: nothing may be held in the end
	apart    bool          // roles run as processes of their own, where they can
	settings []string      // of the servers
	longer   time.Duration // than others it may take
	scale    float64       // simulated seconds in a real one; 0: drillScale

	// mayFail reports whether what was done to a mail is the reason for which its log
	// says that it failed; nil: only mail to addresses that bounce may fail.
	mayFail func(d *drill, l *drillLog, story []models.Moment, f *fate) bool

	// strike breaks things, waits for the states in which they have had their
	// effect, and mends them. It calls broken and mended.
	strike func(ctx context.Context, d *drill) error
}

// need says what a scenario has no meaning without.
type need int

const (
	nothingElse need = iota
	realBroker
	realStore
	ownStore // the embedded one
	signals  // by which processes are frozen
)

// without says why the scenario has no meaning on a set-up; empty: it has one.
func (s *scenario) without(set *setUp) string {
	switch {
	case s.needs == realBroker && set.ownBroker():
		return "the broker is part of the process"
	case s.needs == realStore && set.ownStore():
		return "the store is part of the process"
	case s.needs == ownStore && !set.ownStore():
		return "it is about the embedded store"
	case s.needs == realBroker && strings.HasPrefix(set.cfg.AMQP.URL, "amqps:"):
		return "the way to RabbitMQ is cut in a proxy, whose name amqps:// would not accept"
	case s.needs == realStore && !loopback(set.cfg.Cassandra.Hosts[0]):
		return "the way to Cassandra is cut in a proxy, which the driver goes round unless the node is on this machine"
	case s.needs == signals && !canFreeze:
		return "processes cannot be frozen on this system"
	}
	return ""
}

// loopback reports whether a host is this machine by its loopback address.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return name == "localhost" || net.ParseIP(name).Equal(net.IPv4(127, 0, 0, 1))
}

// drillScale is how much faster than real providers repeat posts, defer and flush.
const drillScale = 120

// drillProviders are the simulated providers.
var drillProviders = []string{"sg", "mg"}

// sgFirst lets all mail go through SendGrid as long as that works.
var sgFirst = []string{"sg", "mg"}

var scenarios = []scenario{
	{name: "provider-down", story: "SendGrid answers 503 to everything", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})},
	{name: "hanging", story: "SendGrid takes requests and never answers; it sends none of them", prefer: sgFirst, breaks: []string{"sg"}, holds: answersWithheld,
		strike: fault(simulator.Fault{Mode: simulator.ModeHang})},
	{name: "hang-after-body", story: "SendGrid sends the mail and never answers", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeHangAfterBody})},
	{name: "close-after-accepting", story: "SendGrid sends the mail and closes the connection without an answer", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeAcceptThenClose})},
	{name: "429-storm", story: "SendGrid answers 429 to everything and names a time to come back", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeRate, RetryAfter: 2 * time.Second})},
	{name: "black-hole", story: "SendGrid accepts everything, sends nothing and reports nothing", prefer: sgFirst, breaks: []string{"sg"}, holds: eventsWithheld,
		settings: []string{"SAFEDELIVR_TIMES_SILENCE=3s", "SAFEDELIVR_TIMES_FINAL_EVENT=20s"},
		strike:   fault(simulator.Fault{Mode: simulator.ModeSuspend})},
	{name: "key-revoked", story: "SendGrid no longer knows the API key", prefer: sgFirst, breaks: []string{"sg"},
		strike: fault(simulator.Fault{Mode: simulator.ModeStatus, Status: http.StatusUnauthorized})},
	{name: "both-down", story: "SendGrid and Mailgun answer 503 to everything", breaks: drillProviders, strike: bothDown},

	{name: "worker-killed", story: "kill -9 of a worker in the middle of its calls; a new one is started", apart: true, holds: callsCutOff, strike: workerKilled},
	{name: "worker-frozen", story: "SIGSTOP of a worker for longer than its calls may wait to begin, then SIGCONT", apart: true, needs: signals,
		holds: callsCutOff, strike: workerFrozen},
	{name: "broker-purged", story: "all queues lose all messages (in-process broker: the process is killed and started again)",
		holds: callsCutOff, settings: fewCalls, strike: brokerPurged},
	{name: "broker-gone", story: "RabbitMQ cannot be reached for a while", needs: realBroker, strike: away((*drill).brokerGate, brokerMissed)},
	{name: "store-gone", story: "Cassandra cannot be reached for a while", needs: realStore, holds: appendsLost,
		strike: away((*drill).storeGate, storeMissed)},

	{name: "webhooks-doubled", events: true, story: "every event is reported twice", strike: disorder(simulator.Fault{Mode: simulator.ModeEventsDuplicate}, doubledEvents)},
	{name: "webhooks-shuffled", events: true, story: "events come out of order", strike: disorder(simulator.Fault{Mode: simulator.ModeEventsShuffle}, overtakenEvents)},
	{name: "webhooks-late", events: true, story: "events come five simulated hours after everything else is done", scale: 3600,
		strike: disorder(simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: 5 * time.Second}, lateEvents)},
	{name: "webhooks-forged", events: true, story: "somebody posts bounces of mail that is on its way, with signatures that are none", strike: forgeries},
}
