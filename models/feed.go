package models

import (
	"context"
	"slices"
	"time"
)

// FeedEntry is an entry of a feed of updates, of a user or of the installation: numbers 1, 2, 3, …. It is appended by
// compare-and-set on its number and never changes. An update says that state, reason or provider of a log are not those
// of the log's update before, or that an event about it is known. Every log begins as queued, which is no update.
type FeedEntry struct {
	Number int
	Token  Token     // names the append, to resolve an unknown outcome
	At     time.Time // of all its updates, in microseconds; later than that of the entry before

	// Settled is a number below Number. What the entries up to it have published is stored; see PutPublished.
	Settled int

	// Chunks are in the order of their IDs. An entry without any only holds a number and a time.
	Chunks []FeedChunk

	// Suppressions are additions to the user's suppression list, or in the feed of the installation to everyone's.
	Suppressions []FeedSuppression

	// Notices are in the feed of the installation; that of a user has those of the kind EndpointDisabled only. Status is
	// in the feed of the installation: what its entries up to this one have published, encoded by package feed.
	Notices []Notice
	Status  []byte
}

// FeedChunk has the updates of one chunk.
type FeedChunk struct {
	Chunk ID
	// Version is that of the View that the updates were made from. It is higher than in the entries before.
	Version int64
	Changes []FeedChange // of different recipients; none: nothing but the version is new

	Ended int // 1: no log of the chunk is queued any more; -1: one is again; 0: neither is new
	Done  int // the batch has ended with this chunk, for the nth time; 0: it has not
}

// FeedChange is the same update of some recipients of a chunk: a change of the state, or an event.
type FeedChange struct {
	State      State     // empty: an event
	Event      EventKind // empty: a change of the state
	Reason     Reason
	Provider   string
	Number     int // the changes of the state of a log are 1, 2, 3, …, and so are its events
	Recipients Set
}

// FeedEvent is an event of some recipients of a chunk. A log has it once, however often it was reported.
type FeedEvent struct {
	Kind       EventKind
	Provider   string
	Recipients Set
}

// same reports whether two changes say the same.
func (c *FeedChange) same(o *FeedChange) bool {
	return c.State == o.State && c.Event == o.Event && c.Reason == o.Reason && c.Provider == o.Provider
}

// addChange adds a change to others. It shares the place of one that differs only in the recipients.
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

// Published is the state of a chunk that the entries of a feed have published.
type Published struct {
	Chunk   ID
	Entry   int          // number of the newest entry about the chunk or its batch; 0: there is none
	Version int64        // of the newest entry about the chunk
	Changes []FeedChange // the newest change of the state of each log that has one
	Events  []FeedEvent
	Ended   bool           // no log is queued
	Batch   PublishedBatch // of the first chunk of a batch
}

// PublishedBatch is the state of a batch that the entries of a feed have published.
type PublishedBatch struct {
	Ended int // chunks without a queued log
	Done  int // how often the batch has ended
}

// About returns the part of the entry about a chunk, and about its batch if it is the first chunk. c is nil if there is
// nothing about the chunk.
func (e *FeedEntry) About(chunk ID) (c *FeedChunk, b PublishedBatch, ok bool) {
	i, there := slices.BinarySearchFunc(e.Chunks, chunk, func(c FeedChunk, id ID) int { return c.Chunk.Compare(id) })
	if there {
		c = &e.Chunks[i]
	}
	if chunk != chunk.Batch() {
		return c, b, there
	}
	for ; i < len(e.Chunks) && e.Chunks[i].Chunk.Batch() == chunk; i++ {
		ok = true
		b.Ended += e.Chunks[i].Ended
		b.Done = max(b.Done, e.Chunks[i].Done)
	}
	return c, b, ok
}

// Apply adds an entry. It changes nothing if the entry is not about the chunk, or if a newer one was added before.
func (t *Published) Apply(e *FeedEntry) {
	c, b, ok := e.About(t.Chunk)
	if !ok || e.Number <= t.Entry {
		return
	}
	t.Entry = e.Number
	t.Batch.Ended, t.Batch.Done = t.Batch.Ended+b.Ended, max(t.Batch.Done, b.Done)
	if c == nil {
		return
	}
	t.Version = c.Version
	if c.Ended != 0 {
		t.Ended = c.Ended > 0
	}
	changes := slices.Clone(t.Changes)
	t.Events = slices.Clone(t.Events)
	for i := range c.Changes {
		if c.Changes[i].Event != "" {
			t.addEvent(&c.Changes[i])
			continue
		}
		for k := range changes {
			changes[k].Recipients = changes[k].Recipients.Minus(c.Changes[i].Recipients)
		}
	}
	changes = slices.DeleteFunc(changes, func(c FeedChange) bool { return c.Recipients.Empty() })
	for i := range c.Changes {
		if c.Changes[i].Event == "" {
			changes = addChange(changes, &c.Changes[i])
		}
	}
	t.Changes = changes
}

// addEvent adds an event of an entry.
func (t *Published) addEvent(c *FeedChange) {
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == c.Event && e.Provider == c.Provider {
			e.Recipients = e.Recipients.Or(c.Recipients)
			return
		}
	}
	t.Events = append(t.Events, FeedEvent{Kind: c.Event, Provider: c.Provider, Recipients: c.Recipients})
}

// FeedView is the part of a View that a feed publishes.
type FeedView struct {
	Version int64
	logs    []FeedChange // of all logs that are not queued
	queued  Set
	events  []FeedChange
	plain   bool
}

// Plain reports whether every log was always queued and none has an event. Then there is nothing to publish.
func (f *FeedView) Plain() bool { return f.plain }

// ForFeed returns the part of the view that a feed publishes.
func (v *View) ForFeed() FeedView {
	f := FeedView{Version: v.Version, events: v.events, plain: len(v.events) == 0 && v.plain()}
	var last *Result
	at := -1 // index in logs of the last result; -1: it is open
	for i := range v.Logs {
		if s := v.Logs[i].Result; s != last {
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

// index returns the index in logs of a result, which it adds if necessary. It returns -1 if the result is open: for a
// feed, sent mail is still queued.
func (f *FeedView) index(s *Result) int {
	if s.State.Open() {
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

// note notes an event for the feed. The reason of a log's first one of a kind and provider counts.
func (v *View) note(e *Event) {
	kind := e.Kind.inFeed()
	if kind == "" {
		return
	}
	at := -1
	for i := range v.events {
		c := &v.events[i]
		if c.Event != kind || c.Provider != e.Provider {
			continue
		}
		if c.Recipients.Has(e.Recipient) {
			return
		}
		if c.Reason == e.Reason {
			at = i
		}
	}
	if at < 0 {
		at = len(v.events)
		v.events = append(v.events, FeedChange{Event: kind, Reason: e.Reason, Provider: e.Provider})
	}
	v.events[at].Recipients.Add(e.Recipient)
}

// plain reports whether all logs are queued in every part of the entries and facts of the view. Then no earlier view
// had another state.
func (v *View) plain() bool {
	if v.reparsed {
		return false
	}
	for i := range v.Entries {
		if k := v.Entries[i].Kind; k != Attempt && k != Repeat {
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

// Pending returns the changes of a view that are not published yet. It reports false if there are none, because t is of
// this view or a newer one, or the view is plain. A newer view without changes counts, so that no older one can follow.
func (t *Published) Pending(v *FeedView) (c FeedChunk, ok bool) {
	if v.Version <= t.Version || v.plain {
		return c, false
	}
	return t.pending(v), true
}

// Matches reports whether the published state equals the view, ignoring versions.
func (t *Published) Matches(v *FeedView) bool { return len(t.pending(v).Changes) == 0 }

// pending is Pending for a view of any version.
func (t *Published) pending(v *FeedView) FeedChunk {
	c := FeedChunk{Chunk: t.Chunk, Version: v.Version}
	for i := range v.logs {
		t.differ(&v.logs[i], &c)
	}
	t.differ(&FeedChange{State: Queued, Recipients: v.queued}, &c)
	t.happened(v.events, &c)
	switch ended := v.queued.Empty(); {
	case ended && !t.Ended:
		c.Ended = 1
	case !ended && t.Ended:
		c.Ended = -1
	}
	return c
}

// happened adds the events to c that are not published.
func (t *Published) happened(events []FeedChange, c *FeedChunk) {
	if len(events) == 0 {
		return
	}
	numbers := map[int]int{} // of the newest event of a log
	for i := range events {
		next := events[i]
		for k := range t.Events {
			if e := &t.Events[k]; e.Kind == next.Event && e.Provider == next.Provider {
				next.Recipients = next.Recipients.Minus(e.Recipients)
			}
		}
		for r := range next.Recipients.All() {
			if numbers[r] == 0 {
				numbers[r] = t.eventsOf(r)
			}
			numbers[r]++
			next.Number, next.Recipients = numbers[r], SetOf(r)
			c.Changes = addChange(c.Changes, &next)
		}
	}
}

// eventsOf returns the number of published events of a recipient.
func (t *Published) eventsOf(r int) (n int) {
	for i := range t.Events {
		if t.Events[i].Recipients.Has(r) {
			n++
		}
	}
	return n
}

// differ adds to c the recipients of a state that are not known to be in it.
func (t *Published) differ(now *FeedChange, c *FeedChunk) {
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

// FeedStore stores the feeds of updates, one for each user, and the published state of each chunk.
type FeedStore interface {
	// AppendFeed appends e to the feed of a user by compare-and-set. e.Number must be one more than the highest number in
	// the feed. If several callers append with the same number, exactly one succeeds, and the others get ErrExists.
	// Appending an entry again with the same Token succeeds. Unknown outcomes are resolved as those of Append. Errors:
	// ErrOutcomeUnknown, ErrInvalid (the number leaves a gap).
	AppendFeed(ctx context.Context, user string, e FeedEntry) error
	// Feed returns at most limit entries with numbers greater than after, ascending. It returns every entry whose append
	// returned nil before, except those that DropFeed removed.
	Feed(ctx context.Context, user string, after, limit int) ([]FeedEntry, error)
	// FeedHead returns the newest entry. Errors: ErrNotFound.
	FeedHead(ctx context.Context, user string) (FeedEntry, error)
	// DropFeed removes entries with numbers less than before, the oldest first. It may leave some of them, and never
	// removes the newest entry. A removed number is never given again.
	DropFeed(ctx context.Context, user string, before int) error
	// PutPublished stores the published state of chunks. It changes nothing about a chunk if a newer entry is stored.
	// Purge removes it.
	PutPublished(ctx context.Context, ts ...Published) error
	// Published returns the published states of chunks, in any order. It leaves out those that have nothing stored.
	Published(ctx context.Context, chunks ...ID) ([]Published, error)
}
