package agenda

import (
	"hash/fnv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// handled holds entries that were handled, by the minute they were due. It only saves
// work: an entry that it has dropped is handled again.
type handled struct {
	mu      sync.Mutex
	minutes map[int64]map[uint64]struct{}
}

// maxHandled bounds the entries held for a minute.
const maxHandled = 100_000

func (h *handled) key(entry *models.AgendaEntry) (minute int64, key uint64) {
	f := fnv.New64a()
	_, _ = f.Write(entry.ID[:])
	_, _ = f.Write([]byte(entry.Kind))
	return entry.Due.Unix() / 60, f.Sum64() ^ uint64(entry.Due.UnixMilli())
}

func (h *handled) has(entry *models.AgendaEntry) bool {
	minute, key := h.key(entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.minutes[minute][key]
	return ok
}

func (h *handled) add(entry *models.AgendaEntry) {
	minute, key := h.key(entry)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.minutes == nil {
		h.minutes = map[int64]map[uint64]struct{}{}
	}
	m := h.minutes[minute]
	if m == nil {
		m = map[uint64]struct{}{}
		h.minutes[minute] = m
	}
	if len(m) < maxHandled {
		m[key] = struct{}{}
	}
}

func (h *handled) forget(before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for minute := range h.minutes {
		if minute < before.Unix()/60 {
			delete(h.minutes, minute)
		}
	}
}
