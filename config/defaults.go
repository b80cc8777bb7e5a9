package config

import (
	"fmt"
	"os"
	"time"
)

// DefaultEvidence is the default of times.evidence_window.
const DefaultEvidence = 15 * time.Minute

// Defaults returns the configuration in which nothing is set.
func Defaults() Config {
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	return Config{
		Listen:   "127.0.0.1:8080",
		DataDir:  "safedelivr-data",
		Roles:    []string{"api", "webhooks", "worker"},
		Log:      "info",
		Worker:   fmt.Sprintf("%s-%d", host, os.Getpid()),
		Postgres: Postgres{Schema: "safedelivr", Connections: 16, Timeout: 20 * time.Second, Migrate: true},
		Cassandra: Cassandra{
			Keyspace:    "safedelivr",
			Replication: "{'class': 'SimpleStrategy', 'replication_factor': 1}",
			Consistency: "LOCAL_QUORUM",
			Serial:      "LOCAL_SERIAL",
			Timeout:     10 * time.Second,
			Migrate:     true,
		},
		AMQP:    AMQP{Prefix: "sd"},
		Metrics: Metrics{Listen: DefaultMetrics},
		Traces:  Traces{Ratio: 1},
		Limits: Limits{
			Recipients:         1_000_000,
			Content:            5 << 20,
			AttachmentMemory:   256 << 20,
			Body:               1 << 30,
			Retries:            10,
			Bounces:            5,
			Complaints:         0.1,
			ComplaintsFrom:     1000,
			SoftBounces:        5,
			UrgentUpTo:         100,
			Connections:        4096,
			AddressConnections: 1024,
			DiskReserve:        256 << 20,
		},
		Quotas: Quotas{
			RequestsPerSecond: 200,
			RequestsAtOnce:    32,
			RecipientsPerHour: 5_000_000,
			RecipientsPerDay:  20_000_000,
			BatchesPerDay:     5_000_000,
			StoredBatches:     100_000_000,
			StoredBytes:       100 << 30,
			SpoolBytes:        4 << 30,

			UrgentRecipientsPerHour: 10_000,
		},
		Times: Times{
			ExpireAfter:    7 * 24 * time.Hour,
			EvidenceWindow: DefaultEvidence,
			FinalEvent:     100 * time.Hour,
			Recheck:        time.Minute,
			StartBy:        10 * time.Second,
			IntakeGrace:    time.Hour,
			Hold:           5 * time.Minute,
			BreakerOpen:    5 * time.Second,
			Silence:        time.Minute,
			InboxKeep:      7 * 24 * time.Hour,
			StopGrace:      35 * time.Second,
			ProviderLists:  time.Hour,

			SoftBounceExpiry: 7 * 24 * time.Hour,

			Idempotency: 24 * time.Hour,
			KeepContent: 90 * 24 * time.Hour,
			KeepLogs:    400 * 24 * time.Hour,
			KeepUpdates: 30 * 24 * time.Hour,
		},
	}
}

// WithDefaults returns a with the defaults of what is not set.
func (a Provider) WithDefaults() Provider {
	if a.Events == "" {
		a.Events = "webhook"
	}
	if a.Weight == 0 {
		a.Weight = 1
	}
	if a.Concurrency == 0 {
		a.Concurrency = 16
	}
	if a.ChunkLimit == 0 {
		a.ChunkLimit = 1000
	}
	if a.Timeout == 0 {
		a.Timeout = 30 * time.Second
	}
	return a
}
