package agenda

import (
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// maxEnded bounds the batches that ended holds.
const maxEnded = 200_000

// ended holds the batches of one chunk whose mail has ended, by the summary that this process stored last. Their entries
// need no read. It only saves work: a batch that it does not hold is read.
type ended struct {
	mu      sync.Mutex
	batches map[models.ID]struct{}
}

// note notes summaries that were stored.
func (e *ended) note(sums []models.ChunkSummary) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.batches == nil {
		e.batches = map[models.ID]struct{}{}
	}
	for i := range sums {
		switch c := &sums[i]; {
		case c.Summary.Open() > 0:
			delete(e.batches, c.Chunk)
		case c.Chunk == c.Chunk.Batch() && len(e.batches) < maxEnded:
			e.batches[c.Chunk] = struct{}{}
		}
	}
}

// take reports whether the batch of an entry is among them, and forgets it.
func (e *ended) take(entry *models.AgendaEntry) bool {
	if entry.Kind != models.LookAtBatch || entry.Chunks != 1 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.batches[entry.ID]
	delete(e.batches, entry.ID)
	return ok
}

// Counted notes summaries that were just stored. Only a process that is alone knows that no other one stored later ones.
func (a *Agenda) Counted(sums []models.ChunkSummary) {
	if a.cfg.Sole {
		a.ended.note(sums)
	}
}
