package agenda

import (
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// maxEnded bounds the batches that ended holds.
const maxEnded = 200_000

// ended holds the batches of one chunk whose mail ended before the agenda looks at it first, by the summary that this
// process stored last. That look needs no read. It only saves work: a batch that it does not hold is read.
type ended struct {
	mu      sync.Mutex
	batches map[models.ID]struct{}
}

// note notes summaries that were stored. The agenda looks at a batch a recheck after it was accepted.
func (e *ended) note(sums []models.ChunkSummary, recheck time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.batches == nil {
		e.batches = map[models.ID]struct{}{}
	}
	for i := range sums {
		switch c := &sums[i]; {
		case c.Summary.Open() > 0:
			delete(e.batches, c.Chunk)
		case c.Chunk == c.Chunk.Batch() && time.Since(c.Chunk.Time()) < recheck:
			if len(e.batches) >= maxEnded {
				clear(e.batches)
			}
			e.batches[c.Chunk] = struct{}{}
		}
	}
}

// has reports whether the batch of an entry is among them.
func (e *ended) has(entry *models.AgendaEntry) bool {
	if entry.Kind != models.LookAtBatch || entry.Chunks != 1 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.batches[entry.ID]
	return ok
}

// forget forgets a batch that the agenda has looked at.
func (e *ended) forget(batch models.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.batches, batch)
}

// Counted notes summaries that were just stored. Only a process that is alone knows that no other one stored later ones.
func (a *Agenda) Counted(sums []models.ChunkSummary) {
	if a.cfg.Sole {
		a.ended.note(sums, a.cfg.Recheck)
	}
}
