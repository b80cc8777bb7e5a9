package app

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/config"
)

// The garbage collector's goal. A chunk on its way to a provider, with its request, takes about a megabyte. The base is
// for requests that are read and checked: with 48 MiB a hostile user kept the collector, and so the processors, busy.
const (
	memoryBase    = 256 << 20
	memoryPerCall = 1 << 20
)

// containerLimit is the file with the memory limit of a container (cgroup v2).
const containerLimit = "/sys/fs/cgroup/memory.max"

// LimitMemory sets a soft memory limit of what the configured calls need, but at most nine tenths of the container's
// limit. GOMEMLIMIT takes precedence.
func LimitMemory(cfg *config.Config) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(memoryBase)
	for _, p := range cfg.Providers {
		limit += int64(p.Concurrency) * memoryPerCall
	}
	debug.SetMemoryLimit(within(limit, containerLimit))
}

// within returns limit, or nine tenths of the limit in a file if that is less. The file may be missing, or hold "max".
func within(limit int64, file string) int64 {
	raw, err := os.ReadFile(file)
	if err != nil {
		return limit
	}
	container, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil || container <= 0 {
		return limit
	}
	return min(limit, container/10*9)
}
