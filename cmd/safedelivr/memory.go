package main

import (
	"os"
	"runtime/debug"

	"github.com/safedelivr/safedelivr/config"
)

// The memory that the collector tries to stay below: a chunk on its way to a
// provider, with its request, takes about a megabyte, whatever the batch.
const (
	memoryBase    = 48 << 20
	memoryPerCall = 1 << 20
)

// limitMemory has the collector work harder before the heap outgrows what the
// configured calls need. It is a wish and no bound; GOMEMLIMIT goes before it.
func limitMemory(cfg *config.Config) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(memoryBase)
	for _, a := range cfg.Providers {
		limit += int64(a.Concurrency) * memoryPerCall
	}
	debug.SetMemoryLimit(limit)
}
