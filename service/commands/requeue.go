package commands

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	requeueAfter   = 2 * time.Second // from the command until the agenda requeues the batch
	requeueAtOnce  = 100             // agenda entries of one write
	requeueTimeout = 5 * time.Second // of one write
)

// requeueEntry returns the agenda entry that requeues a batch soon.
func requeueEntry(b *models.Batch) models.AgendaEntry {
	return models.AgendaEntry{
		Due:    time.Now().Add(requeueAfter),
		Kind:   models.LookAtBatch,
		ID:     b.ID,
		User:   b.User,
		Chunks: b.Chunks,
		Lane:   b.Lane,
	}
}

// requeueEntries returns entries that find a batch after a command, even if this process ends right after it: one for
// soon, and one for when the command is in effect or never will be. If the batch gets another time, they are not due
// before.
func (s *Commands) requeueEntries(b *models.Batch, c *models.Command) []models.AgendaEntry {
	soon := requeueEntry(b)
	late := soon
	late.Due = late.Due.Add(s.RetryTime)
	if c.Schedule != nil {
		soon.Round, late.Round = 1, 1 // nothing is to be done for it until its time
		soon.Due = models.LaterOf(soon.Due, c.Schedule.DeliverAt)
		late.Due = models.LaterOf(late.Due, c.Schedule.DeliverAt)
	}
	return []models.AgendaEntry{soon, late}
}

// requeue announces batches and puts them on the agenda again. It must be called when all
// workers know the commands: a worker that does not know them finds nothing to do and
// drops the batch. It reports whether the agenda has all batches.
func (s *Commands) requeue(ctx context.Context, batches ...models.AgendaEntry) bool {
	ctx = context.WithoutCancel(ctx) // even if the client goes away
	all := true
	for some := range slices.Chunk(batches, requeueAtOnce) {
		for i := range some {
			e := &some[i]
			e.Due = time.Now().Add(requeueAfter)
			s.Announce(e.ID, e.Chunks, e.Lane)
		}
		if err := s.schedule(ctx, some); err != nil {
			s.Log.Warn("command in effect, but the batches could not be put on the agenda",
				"batch_id", some[0].ID.String(), "batches", len(some), "err", err)
			all = false
		}
	}
	return all
}

func (s *Commands) schedule(ctx context.Context, entries []models.AgendaEntry) error {
	ctx, cancel := context.WithTimeout(ctx, requeueTimeout)
	defer cancel()
	return s.Store.Schedule(ctx, entries...)
}
