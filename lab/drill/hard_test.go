package drill

import (
	"context"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/tcpproxy"
)

// hardScenarios are those that users cannot run: they take longer.
func hardScenarios() []scenario {
	return []scenario{
		{
			name:   fmt.Sprintf("killed-%d-times", kills()),
			story:  "kill -9 of whole processes and of single roles at random moments",
			apart:  true,
			longer: time.Duration(kills()) * 10 * time.Second,
			holds:  callsCutOff,
			inject: killedOften(kills()),
		},
		{
			name:     "every-fault",
			story:    "every fault of the simulated providers, one after the other",
			longer:   4 * time.Minute,
			holds:    answersWithheld | eventsWithheld,
			mayFail:  explained,
			settings: soonBack,
			inject:   everyFault,
		},
		{
			name:     "faults-mixed",
			story:    "faults of the simulated providers at random, several at a time",
			longer:   2 * time.Minute,
			holds:    answersWithheld | eventsWithheld,
			mayFail:  explained,
			settings: soonBack,
			inject:   mixedFaults,
		},
		{
			name:     "webhooks-chaos",
			story:    "events doubled, shuffled, late, forged and cut off at the same time",
			events:   true,
			scale:    3600,
			settings: []string{"SAFEDELIVR_TIMES_FINAL_EVENT=20s"},
			inject:   webhookChaos,
		},
		{
			name:   "broker-half-open",
			story:  "connections to RabbitMQ stay open, and nothing gets through",
			needs:  needsBroker,
			inject: swallowed(tcpproxy.Everything, brokerUnavailable),
		},
		{
			name:   "broker-deaf",
			story:  "RabbitMQ gets no acknowledgements, so its queues deliver nothing although consumers stay",
			needs:  needsBroker,
			inject: swallowed(tcpproxy.Acks, queueStalled),
		},
		{
			name:   "store-answers-lost",
			story:  "Cassandra does what it is asked, and its answers are lost",
			needs:  needsStore,
			holds:  appendsLost,
			inject: swallowed(tcpproxy.Answers, storeUnavailable),
		},
		{
			name:   "disk-full",
			story:  "the embedded store cannot write",
			needs:  needsOwnStore,
			inject: diskFull,
		},
	}
}

// soonBack shortens suspensions and the wait for final events, because there are many faults: what each of them leaves
// behind makes the pauses after the next one longer.
var soonBack = []string{
	"SAFEDELIVR_TIMES_HOLD=500ms",
	"SAFEDELIVR_TIMES_BREAKER_OPEN=20ms",
	"SAFEDELIVR_TIMES_FINAL_EVENT=20s",
}

// loneScenarios run alone: they stop the servers themselves, or they give commands that must take effect within a
// second, for which nothing else may keep the machine busy.
func loneScenarios() []scenario {
	out := []scenario{
		{
			name: "stopped",
			story: "a batch is stopped, the user paused, each provider taken offline, a domain blocked, while mail is sent; " +
				"all is undone again",
			apart:    true,
			longer:   4 * time.Minute,
			settings: slowCalls,
			inject:   commandsObeyed,
		},
		{
			name:  "broker-restarted",
			story: "RabbitMQ is stopped and started, and scheduled mail is due meanwhile",
			needs: needsBroker,
			inject: scheduledThrough(serverStopped(controlServices("rabbitmqctl", "stop_app"),
				controlServices("rabbitmqctl", "start_app"), brokerUnavailable)),
		},
		{
			name:  "broker-memory-alarm",
			story: "RabbitMQ blocks all publishers",
			needs: needsBroker,
			inject: serverStopped(controlServices("rabbitmqctl", "set_vm_memory_high_watermark", "0"),
				controlServices("rabbitmqctl", "set_vm_memory_high_watermark", "0.4"), brokerUnavailable),
		},
		{
			name:   "store-frozen",
			story:  "SIGSTOP of the store, then SIGCONT",
			needs:  needsStore,
			holds:  appendsLost,
			inject: storeFrozen,
		},
	}
	if testkit.Long() {
		out = append(out, scenario{
			name:  "store-restarted",
			story: "Cassandra is stopped and started",
			needs: needsStore,
			holds: appendsLost,
			inject: serverStopped(controlServices("restart", "cassandra"),
				func(context.Context) error { return nil }, storeUnavailable),
		})
	}
	return out
}
