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

// batch announces the chunks of a batch. If the queue is full, it drops the rest. A batch of one chunk is handled by this
// process if a handler has nothing to do. If the process ends before that, the agenda announces the chunk.
func (a *announcers) batch(batch models.ID, chunks int, lane models.Lane) {
	add := a.of[lane].Add
	if chunks == 1 {
		add = a.of[lane].Offer
	}
	for n := range chunks {
		if !add(message(batch.Chunk(n), lane)) {
			a.log.Warn("queue of announcements is full; the agenda announces the rest of the batch",
				"batch_id", batch.String(), "chunk", n)
			return
		}
	}
}

// chunk announces a chunk, unless the queue is full.
func (a *announcers) chunk(chunk models.ID, lane models.Lane) bool {
	return a.of[lane].Add(message(chunk, lane))
}

func message(chunk models.ID, lane models.Lane) models.Message {
	return models.Message{Kind: models.BatchMessage, ID: chunk, Lane: lane}
}
