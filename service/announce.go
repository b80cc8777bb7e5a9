package service

import (
	"log/slog"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/announce"
)

// announcers announce accepted batches. Each lane has its own, so that bulk never delays urgent.
type announcers struct {
	log *slog.Logger
	of  map[models.Lane]*announce.Announcer
}

// batch announces the chunks of a batch. If the queue is full, it drops the rest.
func (a *announcers) batch(batch models.ID, chunks int, lane models.Lane) {
	for n := range chunks {
		if !a.chunk(batch.Chunk(n), lane) {
			a.log.Warn("queue of announcements is full; the agenda announces the rest of the batch",
				"batch_id", batch.String(), "chunk", n)
			return
		}
	}
}

// chunk announces a chunk, unless the queue is full.
func (a *announcers) chunk(chunk models.ID, lane models.Lane) bool {
	return a.of[lane].Add(models.Message{Kind: models.BatchMessage, ID: chunk, Lane: lane})
}
