package models

import (
	"encoding/binary"
	"time"
)

// AgendaKind says what must be looked at.
type AgendaKind string

// The kinds of agenda entry.
const (
	// LookAtBatch covers all chunks of a batch, from before its first chunk is
	// stored until every log is final.
	LookAtBatch AgendaKind = "batch"
	// LookAtChunk covers one chunk at a moment of its own: an evidence window,
	// a delay, a wait for a final event that ends.
	LookAtChunk AgendaKind = "chunk"
)

// AgendaEntry is one thing unfinished and when to look at it. Entries are
// reminders: handling one twice, late, or in the wrong order does no harm.
// Two entries with the same Due, Kind and ID are one.
type AgendaEntry struct {
	Due    time.Time  `json:"due"` // millisecond precision
	Kind   AgendaKind `json:"k"`
	ID     ID         `json:"id"` // the batch's or the chunk's
	User   string     `json:"u"`
	Chunks int        `json:"c,omitempty"` // of a batch: how many are being stored
	Round  int        `json:"n,omitempty"` // how often it was looked at before
	Lane   Lane       `json:"l,omitempty"` // of the batch; empty: not known
	Missed bool       `json:"m,omitempty"` // what was to be announced at the last look could not be
}

// Announcements are the messages that wake a consumer for everything the entry is
// about, whatever became of it: of a batch, for each of its chunks.
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

// Shard spreads entries and inbox over n shards by their ID.
func (id ID) Shard(n int) int {
	if n <= 1 {
		return 0
	}
	return int(binary.BigEndian.Uint32(id[8:12])&0x3fffffff) % n
}

// LateWriters is the time that agenda and inbox are read again after a bucket has closed, so
// that a writer with a slow clock is heard.
const LateWriters = 15 * time.Minute
