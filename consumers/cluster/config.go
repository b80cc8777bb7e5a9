package cluster

import (
	"log/slog"
	"time"
)

// Config configures a member of the cluster.
type Config struct {
	Worker    string // this process's name, unique among workers
	Life      string // of this start of the worker
	Started   time.Time
	Heartbeat time.Duration // interval of heartbeats
	Sole      bool          // no other process uses the store
	Logger    *slog.Logger
}
