package models

import (
	"encoding/binary"
	"time"
)

// AgendaKind says what an agenda entry covers.
type AgendaKind string

// The kinds of agenda entry.
const (
	// LookAtBatch covers all chunks of a batch, from before its first chunk is
	// stored until every log is final.
	LookAtBatch AgendaKind = "batch"
	// LookAtChunk covers one chunk at the end of a wait: an evidence window, a
	// delay, a wait for a final event.
	LookAtChunk AgendaKind = "chunk"
)

// AgendaEntry says when unfinished work is reconciled. Entries are reminders:
// handling one twice, late or out of order does no harm. Entries with the same Due,
// Kind and ID are one entry.
type AgendaEntry struct {
	Due    time.Time  `json:"due"` // millisecond precision
	Kind   AgendaKind `json:"k"`
	ID     ID         `json:"id"` // of the batch or chunk
	User   string     `json:"u"`
	Chunks int        `json:"c,omitempty"` // number of chunks of a batch
	Round  int        `json:"n,omitempty"` // number of reconciliations before
	Lane   Lane       `json:"l,omitempty"` // lane of the batch; empty: unknown
	Missed bool       `json:"m,omitempty"` // the last reconciliation could not publish its messages
	Unsent bool       `json:"s,omitempty"` // the last reconciliation found mail to hand over to a provider
}

// Announcements returns messages that wake a consumer for the entry's chunk, or for
// each chunk of its batch.
func (e *AgendaEntry) Announcements() []Message {
	if e.Kind == LookAtChunk {
		return []Message{{Kind: BatchMessage, ID: e.ID, Lane: e.Lane}}
	}
	out := make([]Message, max(1, e.Chunks))
	for n := range out {
		out[n] = Message{Kind: BatchMessage, ID: e.ID.Chunk(n), Lane: e.Lane}
	}
	return out
}

// Shard returns the shard, out of n, of an agenda or inbox entry with this ID.
func (id ID) Shard(n int) int {
	if n <= 1 {
		return 0
	}
	return int(binary.BigEndian.Uint32(id[8:12])&0x3fffffff) % n
}

// LateWriters is how long agenda and inbox are read again after a bucket has closed,
// so that entries of writers with slow clocks are found.
const LateWriters = 15 * time.Minute
