package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// ErrExpired says that updates after a position were removed because of their age. Or the position is of a feed that
// was replaced, for example by an older one from a backup.
var ErrExpired = errors.New("updates after this position were removed")

// Position is a place in a feed. The zero value is before the first entry.
type Position struct {
	Entry int // number of the last entry that was read as a whole
	Skip  int // how many updates of the next entry were read

	// Complete is a time: no update before it follows. Zero: nothing is known.
	Complete time.Time
}

// Compare compares two positions in the order of the feed.
func (p Position) Compare(o Position) int { return cmp.Or(p.Entry-o.Entry, p.Skip-o.Skip) }

// follows reports whether the position can be behind the entry that has its number. It is true
// for another entry.
func (p *Position) follows(e *models.FeedEntry) bool {
	return e.Number != p.Entry || p.Complete.IsZero() || e.At.Before(p.Complete)
}

// Begin is the position before the first entry that is kept.
var Begin = Position{Entry: -1}

// Update is one update: of a log a change of its state or an event, an addition to a suppression list, or a notice.
type Update struct {
	Notice      *models.Notice          // nil: it is none
	Suppression *models.FeedSuppression // of the event models.AddressSuppressed; else nil

	Log      models.ID        // or the batch of the event models.BatchEnded
	Number   int              // the changes of the state of a log are 1, 2, 3, …, and so are its events
	State    models.State     // empty: an event
	Event    models.EventKind // empty: a change of the state
	Reason   models.Reason
	Provider string
	At       time.Time // when it was written to the feed; updates are in this order
	Next     Position  // behind it
}

// Query selects updates.
type Query struct {
	After    Position
	From, To time.Time // only updates of this time, without its end; zero: all
	Limit    int       // number of updates, at least 1
	// Match reports whether updates are wanted. nil: all are.
	Match func(ctx context.Context, chunk models.ID, c *models.FeedChange) (bool, error)
	// Suppression reports whether an addition to the suppression list is wanted. nil: all are.
	Suppression func(ctx context.Context, s *models.FeedSuppression) (bool, error)
	// Notice reports whether a notice is wanted. nil: all are.
	Notice func(n *models.Notice) bool
	// Counts, if not nil, gets the numbers of updates by type, in place of a page of them.
	Counts map[Type]int64
}

// Page is a part of a feed.
type Page struct {
	Updates []Update
	Next    Position // behind the updates and those that were not wanted
	// More reports whether there is more to read now: the limit, or the bound on what one
	// call reads, was reached.
	More bool
}

// maxEntries is how many entries one call reads.
const maxEntries = 1000

// Read returns the updates after a position, in order. Errors: ErrExpired.
func Read(ctx context.Context, store models.FeedStore, user string, q Query) (Page, error) {
	p := Page{Next: q.After}
	if p.Next.Entry < 0 {
		p.Next = Position{}
	}
	before := min(p.Next.Entry, 1) // the entry before is read again, to see that it is the same
	rows := 1 + before             // few: one entry may fill the page
	for read := 0; read < maxEntries; {
		entries, err := store.Feed(ctx, user, p.Next.Entry-before, rows)
		if err != nil {
			return p, err
		}
		if before > 0 && (len(entries) == 0 || !p.Next.follows(&entries[0])) {
			return p, fmt.Errorf("entry %d is not the one that was read: %w", p.Next.Entry, ErrExpired)
		}
		read, before = read+len(entries), 0
		for i := range entries {
			e := &entries[i]
			if e.Number == p.Next.Entry {
				continue
			}
			if e.Number != p.Next.Entry+1 {
				if q.After.Entry >= 0 {
					return p, fmt.Errorf("entry %d of the feed: %w", p.Next.Entry+1, ErrExpired)
				}
				p.Next.Entry, q.After.Entry = e.Number-1, 0
			}
			p.Next.Complete = e.At
			if !q.To.IsZero() && !e.At.Before(q.To) {
				p.More = false
				return p, nil
			}
			if !e.At.Before(q.From) {
				if p.More, err = p.add(ctx, e, &q); p.More || err != nil {
					return p, err
				}
			}
			p.Next = Position{Entry: e.Number, Complete: e.At.Add(time.Microsecond)}
		}
		if p.More = len(entries) == rows; !p.More {
			return p, nil
		}
		rows = min(2*rows, pageRows)
	}
	return p, nil
}

// add adds the wanted updates of an entry. It reports whether the page is full before the
// entry's end.
func (p *Page) add(ctx context.Context, e *models.FeedEntry, q *Query) (full bool, err error) {
	at := 0 // of the next update in the entry
	for i := range e.Chunks {
		c := &e.Chunks[i]
		for k := range c.Changes {
			if full, err = p.addChange(ctx, c.Chunk, &c.Changes[k], part{e, q, &at}); full || err != nil {
				return full, err
			}
		}
		if c.Done == 0 {
			continue
		}
		done := models.FeedChange{Event: models.BatchEnded, Number: c.Done}
		if full, err = p.addChange(ctx, c.Chunk.Batch(), &done, part{e, q, &at}); full || err != nil {
			return full, err
		}
	}
	for i := range e.Suppressions {
		v, wanted := &e.Suppressions[i], true
		if q.Suppression != nil {
			if wanted, err = q.Suppression(ctx, v); err != nil {
				return false, err
			}
		}
		u := Update{Suppression: v, Log: v.Log, Event: models.AddressSuppressed, Number: 1}
		if p.addOne(u, wanted, part{e, q, &at}) {
			return true, nil
		}
	}
	for i := range e.Notices {
		n := &e.Notices[i]
		u := Update{Notice: n, Number: n.Number}
		if p.addOne(u, q.Notice == nil || q.Notice(n), part{e, q, &at}) {
			return true, nil
		}
	}
	return false, nil
}

// part is the part of an entry after its first updates.
type part struct {
	*models.FeedEntry
	q  *Query
	at *int // number of the updates before
}

// addOne adds the next update of an entry if it is wanted. It reports whether the page is full before it.
func (p *Page) addOne(u Update, wanted bool, e part) (full bool) {
	if *e.at++; *e.at <= p.Next.Skip {
		return false
	}
	if wanted && e.q.Counts != nil {
		e.q.Counts[u.Type()]++
		wanted = false
	}
	if wanted && len(p.Updates) >= e.q.Limit {
		return true
	}
	if p.Next.Skip = *e.at; wanted {
		u.At, u.Next = e.At, Position{Entry: p.Next.Entry, Skip: *e.at}
		p.Updates = append(p.Updates, u)
	}
	return false
}

// addChange adds the wanted updates of a change: one of each recipient, or if it has none, one of
// the batch. It reports whether the page is full before the end.
func (p *Page) addChange(ctx context.Context, chunk models.ID, c *models.FeedChange, e part) (full bool, err error) {
	logs := make([]models.ID, 0, max(1, c.Recipients.Len()))
	for r := range c.Recipients.All() {
		logs = append(logs, chunk.Log(r))
	}
	if len(logs) == 0 {
		logs = append(logs, chunk)
	}
	before := *e.at
	if *e.at += len(logs); *e.at <= p.Next.Skip {
		return false, nil
	}
	wanted := true
	if e.q.Match != nil {
		if wanted, err = e.q.Match(ctx, chunk, c); err != nil {
			return false, err
		}
	}
	logs = logs[max(0, p.Next.Skip-before):]
	if wanted && e.q.Counts != nil {
		e.q.Counts[TypeOf(c.State, c.Event)] += int64(len(logs))
	}
	if !wanted || e.q.Counts != nil {
		p.Next.Skip = *e.at
		return false, nil
	}
	for i, log := range logs {
		if len(p.Updates) >= e.q.Limit {
			return true, nil
		}
		p.Next.Skip = *e.at - len(logs) + i + 1
		p.Updates = append(p.Updates, Update{
			Log:      log,
			Number:   c.Number,
			State:    c.State,
			Event:    c.Event,
			Reason:   c.Reason,
			Provider: c.Provider,
			At:       e.At,
			Next:     Position{Entry: p.Next.Entry, Skip: p.Next.Skip},
		})
	}
	return false, nil
}

// Find returns the position of the first update that is not before a time. Every entry that is
// appended later must have a later time: see Complete.
func Find(ctx context.Context, store models.FeedStore, user string, from time.Time) (Position, error) {
	head, err := store.FeedHead(ctx, user)
	if err != nil {
		return Position{}, err
	}
	first, err := store.Feed(ctx, user, 0, 1)
	if err != nil || len(first) == 0 {
		return Position{}, err
	}
	// Entries may be removed meanwhile: then the next one is read, which is later, too.
	low := first[0].Number
	n := sort.Search(head.Number-low+1, func(i int) bool {
		if err != nil {
			return true
		}
		var found []models.FeedEntry
		found, err = store.Feed(ctx, user, low+i-1, 1)
		return err != nil || len(found) == 0 || !found[0].At.Before(from)
	})
	return Position{Entry: low + n - 1, Complete: from}, err
}

// Drop removes the entries that are older than a time. It keeps those that a Writer may need, and
// may keep others.
func Drop(ctx context.Context, store models.FeedStore, user string, older time.Time) error {
	head, err := store.FeedHead(ctx, user)
	if errors.Is(err, models.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := Find(ctx, store, user, older)
	if err != nil {
		return err
	}
	return store.DropFeed(ctx, user, min(p.Entry, head.Settled)+1)
}

// Complete ends a feed up to a time: every entry that is appended later has a later time, even
// by a process that was suspended for long. If the newest entry is older, Complete appends one
// without updates. A time in the future counts as now.
func Complete(ctx context.Context, store models.FeedStore, user string, until time.Time) error {
	until = models.EarlierOf(until, time.Now()).Truncate(time.Microsecond)
	for {
		head, err := store.FeedHead(ctx, user)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		if !head.At.Before(until) {
			return nil
		}
		err = store.AppendFeed(ctx, user, next(&head))
		if err != nil && !errors.Is(err, models.ErrExists) {
			return err
		}
	}
}
