package app

import (
	"os"
	"runtime/debug"

	"github.com/safedelivr/safedelivr/config"
)

// The garbage collector's goal. A chunk on its way to a provider, with its request, takes about a megabyte.
const (
	memoryBase    = 48 << 20
	memoryPerCall = 1 << 20
)

// LimitMemory sets a soft memory limit of what the configured calls need. GOMEMLIMIT takes precedence.
func LimitMemory(cfg *config.Config) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(memoryBase)
	for _, p := range cfg.Providers {
		limit += int64(p.Concurrency) * memoryPerCall
	}
	debug.SetMemoryLimit(limit)
}
