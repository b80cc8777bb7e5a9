package models

import (
	"context"
	"slices"
	"time"
)

// FeedEntry is an entry of a user's feed of updates: numbers 1, 2, 3, …. It is appended by
// compare-and-set on its number and never changes. An update says that state, reason or
// provider of a log are not those of the log's update before. Every log begins as queued,
// which is no update.
type FeedEntry struct {
	Number int
	Token  Token     // names the append, to resolve an unknown outcome
	At     time.Time // of all its updates, in microseconds; later than that of the entry before

	// Settled is a number below Number. What the entries up to it have told is stored (see
	// PutTold).
	Settled int

	// Chunks are in the order of their IDs. An entry without any only holds a number and a time.
	Chunks []FeedChunk
}

// FeedChunk has the updates of one chunk.
type FeedChunk struct {
	Chunk ID
	// Version is that of the View that the updates were made from. It is higher than in the
	// entries before.
	Version int64
	Changes []FeedChange // of different recipients; none: nothing but the version is new
}

// FeedChange is the same update of some recipients of a chunk.
type FeedChange struct {
	State      State
	Reason     Reason
	Provider   string
	Number     int // of the update: the updates of a log are 1, 2, 3, …
	Recipients Set
}

// same reports whether two changes lead to the same state.
func (c *FeedChange) same(o *FeedChange) bool {
	return c.State == o.State && c.Reason == o.Reason && c.Provider == o.Provider
}

// addChange adds a change to others. It shares the place of one that differs only in the
// recipients.
func addChange(all []FeedChange, c *FeedChange) []FeedChange {
	if c.Recipients.Empty() {
		return all
	}
	for i := range all {
		if all[i].Number == c.Number && all[i].same(c) {
			all[i].Recipients = all[i].Recipients.Or(c.Recipients)
			return all
		}
	}
	return append(all, *c)
}

// Told is what the entries of a feed have told of a chunk: the newest update of each log that
// has one.
type Told struct {
	Chunk   ID
	Entry   int   // number of the newest entry about the chunk; 0: there is none
	Version int64 // of that entry
	Changes []FeedChange
}

// Apply adds what an entry has told. It changes nothing if a newer entry was added before.
func (t *Told) Apply(entry int, c *FeedChunk) {
	if entry <= t.Entry {
		return
	}
	t.Entry, t.Version = entry, c.Version
	changes := slices.Clone(t.Changes)
	for i := range c.Changes {
		for k := range changes {
			changes[k].Recipients = changes[k].Recipients.Minus(c.Changes[i].Recipients)
		}
	}
	changes = slices.DeleteFunc(changes, func(c FeedChange) bool { return c.Recipients.Empty() })
	for i := range c.Changes {
		changes = addChange(changes, &c.Changes[i])
	}
	t.Changes = changes
}

// FeedView is what a feed tells of a View.
type FeedView struct {
	Version int64
	logs    []FeedChange // of all logs that are not queued
	queued  Set
	plain   bool
}

// Plain reports whether no log was ever anything but queued: there is nothing to tell, whatever
// was told before.
func (f *FeedView) Plain() bool { return f.plain }

// ForFeed returns what a feed tells of the view.
func (v *View) ForFeed() FeedView {
	f := FeedView{Version: v.Version, plain: v.plain()}
	var last *Standing
	at := -1 // index in logs of the last standing; -1: it is queued
	for i := range v.Logs {
		if s := v.Logs[i].Standing; s != last {
			last, at = s, f.index(s)
		}
		if at < 0 {
			f.queued.Add(i + 1)
		} else {
			f.logs[at].Recipients.Add(i + 1)
		}
	}
	return f
}

// index returns the index in logs of a standing, which it adds if necessary, or -1 if it is
// queued.
func (f *FeedView) index(s *Standing) int {
	if s.State == Queued {
		return -1
	}
	c := FeedChange{State: s.State, Reason: s.Reason, Provider: s.Provider}
	for i := range f.logs {
		if f.logs[i].same(&c) {
			return i
		}
	}
	f.logs = append(f.logs, c)
	return len(f.logs) - 1
}

// plain reports whether all logs are queued, whatever entries and facts of the view are left
// out. Then no earlier view had another state.
func (v *View) plain() bool {
	if v.reparsed {
		return false
	}
	for i := range v.Entries {
		if v.Entries[i].Kind != Attempt {
			return false
		}
	}
	var last *Try
	for i := range v.attempts {
		for _, t := range v.attempts[i].tries {
			if t == nil || t == last {
				continue
			}
			last = t
			if t.Verdict == VerdictDelivered || t.Verdict == VerdictFailed || t.Reason.Hard() || t.OptedOut {
				return false
			}
		}
	}
	return true
}

// News returns what is to be told of a view after t. It reports false if nothing is: t is of
// the same view or a newer one, or the view is plain. A newer view without updates is told, too,
// so that an older one cannot be told after it.
func (t *Told) News(v *FeedView) (c FeedChunk, ok bool) {
	if v.Version <= t.Version || v.plain {
		return c, false
	}
	c = FeedChunk{Chunk: t.Chunk, Version: v.Version}
	for i := range v.logs {
		t.differ(&v.logs[i], &c)
	}
	t.differ(&FeedChange{State: Queued, Recipients: v.queued}, &c)
	return c, true
}

// differ adds to c the recipients of a state that are not known to be in it.
func (t *Told) differ(now *FeedChange, c *FeedChunk) {
	first := now.Recipients // recipients without an update
	for i := range t.Changes {
		before := &t.Changes[i]
		first = first.Minus(before.Recipients)
		if before.same(now) {
			continue
		}
		next := *now
		next.Number, next.Recipients = before.Number+1, now.Recipients.And(before.Recipients)
		c.Changes = addChange(c.Changes, &next)
	}
	if now.State != Queued {
		next := *now
		next.Number, next.Recipients = 1, first
		c.Changes = addChange(c.Changes, &next)
	}
}

// FeedStore stores the feeds of updates, one for each user, and what they have told of each
// chunk.
type FeedStore interface {
	// AppendFeed appends e to the feed of a user by compare-and-set. e.Number must be one
	// more than the highest number in the feed. If several callers append with the same
	// number, exactly one succeeds, and the others get ErrExists. Appending an entry again
	// with the same Token succeeds. Unknown outcomes are resolved as those of Append. Errors:
	// ErrOutcomeUnknown, ErrInvalid (the number leaves a gap).
	AppendFeed(ctx context.Context, user string, e FeedEntry) error
	// Feed returns at most limit entries with numbers greater than after, ascending. It
	// returns every entry whose append returned nil before, except those that DropFeed
	// removed.
	Feed(ctx context.Context, user string, after, limit int) ([]FeedEntry, error)
	// FeedHead returns the newest entry. Errors: ErrNotFound.
	FeedHead(ctx context.Context, user string) (FeedEntry, error)
	// DropFeed removes entries with numbers less than before, the oldest first. It may leave
	// some of them, and never removes the newest entry. A removed number is never given again.
	DropFeed(ctx context.Context, user string, before int) error
	// PutTold stores what was told of chunks. It changes nothing about a chunk if a
	// newer entry is stored. Purge removes it.
	PutTold(ctx context.Context, ts ...Told) error
	// Told returns what was stored of chunks, in any order. It leaves out those that have
	// nothing stored.
	Told(ctx context.Context, chunks ...ID) ([]Told, error)
}
