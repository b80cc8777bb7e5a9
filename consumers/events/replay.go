package events

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Replayed is the result of a replay.
type Replayed struct {
	Posts  int   `json:"posts"`
	Events int64 `json:"events"` // events that were parsed differently than before
}

const (
	replayAtOnce  = 16          // posts that are processed together
	matchTogether = 10_000      // events that name no log and are matched together
	lastFlush     = time.Minute // time limit of the last flush of a replay that stops early
)

// Replay parses the posts that arrived in [from, to) again. Events that are parsed
// differently than before replace the old ones. The same parsers change nothing.
// progress is called after each group of posts.
//
// A replay that stops early can be repeated. It renews the sums of what it has parsed.
func (q *Processor) Replay(ctx context.Context, from, to time.Time, progress func(Replayed)) (out Replayed, err error) {
	ctx = priority.WithLow(ctx)
	defer func() {
		if err != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
			defer cancel()
			err = errors.Join(err, q.summaries.Flush(last))
		}
	}()
	before := q.counts.taken.Load()
	revision := time.Now().UnixMilli()
	if err := q.beginReplay(ctx); err != nil {
		return out, err
	}
	var ids []models.ID
	var unnamed []unnamedEvent // they are matched together: each search reads the mail of days
	matchAll := func() error {
		if len(unnamed) == 0 {
			return nil
		}
		group := newEventGroup(revision)
		group.unnamed, unnamed = unnamed, nil
		err := q.storeGroup(ctx, group)
		out.Events = q.counts.taken.Load() - before
		return err
	}
	work := func() error {
		posts, err := q.inbox(ctx, ids)
		if err != nil {
			return err
		}
		ids = ids[:0]
		group := newEventGroup(revision)
		group.collect = &unnamed
		if err := q.processEntries(ctx, posts, group); err != nil {
			return err
		}
		if len(unnamed) >= matchTogether {
			if err := matchAll(); err != nil {
				return err
			}
		}
		out.Posts += len(posts)
		out.Events = q.counts.taken.Load() - before
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
	if err := matchAll(); err != nil {
		return out, err
	}
	if err := q.endReplay(ctx, revision); err != nil {
		return out, err
	}
	return out, q.summaries.Flush(ctx)
}

// withoutRevision returns an event in a form that compares equal for all parse revisions
// with the same result, and for repeats under another ID, which models.Events drops.
func withoutRevision(ev models.Event) models.Event {
	ev.ID, ev.ParseRevision = "", 0
	ev.At = ev.At.UTC().Round(0)
	return ev
}

// knownEvents returns the events of a chunk as they were parsed last.
func (q *Processor) knownEvents(ctx context.Context, id models.ID) (map[models.Event]bool, error) {
	_, facts, err := q.store.Record(ctx, id)
	if err != nil {
		return nil, err
	}
	out := map[models.Event]bool{}
	for _, ev := range models.Events(facts) {
		out[withoutRevision(*ev)] = true
	}
	return out, nil
}
