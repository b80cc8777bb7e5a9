package events

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Replayed is what working the inbox off again came to.
type Replayed struct {
	Posts  int   `json:"posts"`
	Events int64 `json:"events"` // that were read otherwise than before
}

const (
	replayAtOnce = 16          // posts that are read together
	lastFlush    = time.Minute // for the sums of a replay that breaks off
)

// Replay works off again what arrived in [from, to), with the parsers of this
// program: what they read otherwise than before replaces what was read then. The
// same parsers change nothing. progress is told now and then how far it is.
//
// It may be broken off and repeated: sums are renewed for what was read until then.
func (q *Processor) Replay(ctx context.Context, from, to time.Time, progress func(Replayed)) (out Replayed, err error) {
	ctx = priority.WithLow(ctx)
	defer func() {
		if err != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
			defer cancel()
			err = errors.Join(err, q.summaries.Flush(last))
		}
	}()
	before := q.counts.eventsTaken.Load()
	reading := time.Now().UnixMilli()
	var ids []models.ID
	work := func() error {
		posts, err := q.inbox(ctx, ids)
		if err != nil {
			return err
		}
		ids = ids[:0]
		if err := q.processEntries(ctx, posts, &eventGroup{byChunk: map[models.ID]*chunkEvents{}, parseRevision: reading}); err != nil {
			return err
		}
		out.Posts += len(posts)
		out.Events = q.counts.eventsTaken.Load() - before
		if q.summaries.Pending() > 1000 {
			if err := q.summaries.Flush(ctx); err != nil {
				return err
			}
		}
		progress(out)
		return nil
	}
	for in, err := range q.store.Posts(ctx, from, to) {
		if err != nil {
			return out, err
		}
		if ids = append(ids, in.ID); len(ids) == replayAtOnce {
			if err := work(); err != nil {
				return out, err
			}
		}
	}
	if len(ids) > 0 {
		if err := work(); err != nil {
			return out, err
		}
	}
	return out, q.summaries.Flush(ctx)
}

// asRead is what a parser made of an event, whenever it read it.
func asRead(ev models.Event) models.Event {
	ev.ParseRevision = 0
	ev.At = ev.At.UTC().Round(0)
	return ev
}

// knownEvents are the events of a chunk, as they were read last.
func (q *Processor) knownEvents(ctx context.Context, id models.ID) (map[models.Event]bool, error) {
	_, facts, err := q.store.Record(ctx, id)
	if err != nil {
		return nil, err
	}
	out := map[models.Event]bool{}
	for _, ev := range models.Events(facts) {
		out[asRead(*ev)] = true
	}
	return out, nil
}
