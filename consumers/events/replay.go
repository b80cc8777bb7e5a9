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

// replay is a run of Replay.
type replay struct {
	*Processor
	revision int64
	before   int64          // events taken before it
	ids      []models.ID    // of the posts that are processed next
	unnamed  []unnamedEvent // they are matched together: each search reads the mail of days
	out      Replayed
}

// Replay parses the posts that arrived in [from, to) again. Events that are parsed
// differently than before replace the old ones. The same parsers change nothing.
// progress is called after each group of posts.
//
// A replay that stops early can be repeated. It renews the sums of what it has parsed.
func (q *Processor) Replay(ctx context.Context, from, to time.Time, progress func(Replayed)) (Replayed, error) {
	ctx = priority.WithLow(ctx)
	r := replay{Processor: q, before: q.counts.taken.Load(), revision: time.Now().UnixMilli()}
	err := r.run(ctx, from, to, progress)
	if err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
		defer cancel()
		err = errors.Join(err, q.Summaries.Flush(last))
	}
	return r.out, err
}

func (r *replay) run(ctx context.Context, from, to time.Time, progress func(Replayed)) error {
	if err := r.matcher.unmatched.beginReplay(ctx); err != nil {
		return err
	}
	for in, err := range r.Store.Posts(ctx, from, to) {
		if err != nil {
			return err
		}
		if r.ids = append(r.ids, in.ID); len(r.ids) == replayAtOnce {
			if err := r.posts(ctx, progress); err != nil {
				return err
			}
		}
	}
	if len(r.ids) > 0 {
		if err := r.posts(ctx, progress); err != nil {
			return err
		}
	}
	if err := r.match(ctx); err != nil {
		return err
	}
	if err := r.matcher.unmatched.endReplay(ctx, r.revision); err != nil {
		return err
	}
	return r.Summaries.Flush(ctx)
}

// posts processes a group of posts.
func (r *replay) posts(ctx context.Context, progress func(Replayed)) error {
	posts, err := r.inbox.entries(ctx, r.ids)
	if err != nil {
		return err
	}
	r.ids = r.ids[:0]
	group := newEventGroup(r.revision)
	group.collect = &r.unnamed
	if err := r.processEntries(ctx, posts, group); err != nil {
		return err
	}
	if len(r.unnamed) >= matchTogether {
		if err := r.match(ctx); err != nil {
			return err
		}
	}
	r.out.Posts += len(posts)
	r.out.Events = r.counts.taken.Load() - r.before
	if r.Summaries.Pending() > 1000 {
		if err := r.Summaries.Flush(ctx); err != nil {
			return err
		}
	}
	progress(r.out)
	return nil
}

// match matches the events that name no log.
func (r *replay) match(ctx context.Context) error {
	if len(r.unnamed) == 0 {
		return nil
	}
	group := newEventGroup(r.revision)
	group.unnamed, r.unnamed = r.unnamed, nil
	err := r.storeGroup(ctx, group)
	r.out.Events = r.counts.taken.Load() - r.before
	return err
}

// withoutRevision returns an event in a form that compares equal for all parse revisions
// with the same result, and for repeats under another ID, which models.Events drops.
func withoutRevision(ev models.Event) models.Event {
	ev.ID, ev.ParseRevision = "", 0
	ev.At = ev.At.UTC().Round(0)
	return ev
}
