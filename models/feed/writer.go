// Package feed appends to the feeds of updates and reads them.
package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/safedelivr/safedelivr/models"
)

const (
	maxFeeds     = 1000     // feeds that a process keeps
	maxPublished = 32_768   // chunks whose published state a process keeps; some hundred bytes each
	maxChunks    = 2000     // chunks in an entry
	maxBytes     = 64 << 10 // estimated size of an entry
	pageRows     = 20       // entries that are read at a time
	settleLate   = 10 * time.Second
)

// Chunk is the state of a chunk.
type Chunk struct {
	ID   models.ID
	View models.FeedView
	Of   int // number of chunks of the batch
}

// Writer appends to feeds. Its methods may be called by many goroutines at once. Other
// processes may append to the same feeds.
type Writer struct {
	store models.FeedStore
	now   func() time.Time

	feeds     *lru.Cache[string, *state]
	published *lru.Cache[publishedKey, models.Published]

	mu   sync.Mutex
	next uint64 // generation of the next state
}

// publishedKey names a chunk and the state that keeps its value up to date.
type publishedKey struct {
	generation uint64
	chunk      models.ID
}

// NewWriter returns a Writer.
func NewWriter(store models.FeedStore) *Writer {
	return &Writer{
		store:     store,
		now:       time.Now,
		feeds:     newCache[string, *state](maxFeeds),
		published: newCache[publishedKey, models.Published](maxPublished),
	}
}

func newCache[K comparable, V any](size int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic("feed: " + err.Error()) // the size is a positive constant
	}
	return c
}

// state is what a process knows of one feed. Its values in Writer.published are up to date
// with its head.
type state struct {
	generation uint64

	mu      sync.Mutex
	known   bool      // head, at and settled were read
	head    int       // number of the newest known entry
	at      time.Time // of that entry
	settled int
	recent  []*recent // the entries after settled, ascending
}

// recent is an entry whose published state may not be stored yet.
type recent struct {
	entry     models.FeedEntry
	published []models.Published // what this process has to store about its own entry
	done      bool               // everything is stored
	since     time.Time          // when this process has read or appended it
}

// about returns the chunks about which an entry has something, each once: its own, and the first
// ones of their batches.
func about(e *models.FeedEntry) []models.ID {
	out := make([]models.ID, 0, len(e.Chunks))
	var batch models.ID
	for i := range e.Chunks {
		id := e.Chunks[i].Chunk
		if b := id.Batch(); b != batch {
			if batch = b; id != b {
				out = append(out, b)
			}
		}
		out = append(out, id)
	}
	return out
}

// state returns the state of a user's feed.
func (w *Writer) state(user string) *state {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.feeds.Get(user); ok {
		return s
	}
	w.next++
	s := &state{generation: w.next}
	w.feeds.Add(user, s)
	return s
}

// Publish appends the changes of chunks to their user's feed, unless they are published already. A chunk may be given
// once. After an error some may be published. A repeat publishes the others.
func (w *Writer) Publish(ctx context.Context, user string, chunks []Chunk) error {
	chunks = slices.DeleteFunc(slices.Clone(chunks), func(c Chunk) bool { return c.View.Plain() })
	slices.SortFunc(chunks, func(a, b Chunk) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	if len(chunks) == 0 {
		return nil
	}
	s := w.state(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		if err := w.readNew(ctx, user, s); err != nil {
			return err
		}
	}
	for len(chunks) > 0 {
		some := chunks[:min(len(chunks), maxChunks)]
		published, err := w.load(ctx, s, withBatches(some))
		if err != nil {
			return err
		}
		d := w.draft(s, published, some)
		if len(d.entry.Chunks) > 0 {
			err = w.store.AppendFeed(ctx, user, d.entry)
		}
		switch {
		case errors.Is(err, models.ErrExists): // another process has published changes meanwhile
			if err := w.readNew(ctx, user, s); err != nil {
				return err
			}
			continue
		case errors.Is(err, models.ErrInvalid): // the store is not the one that was read
			s.known = false
			return err
		case err != nil:
			return err
		}
		w.apply(s, &d)
		chunks = chunks[d.chunks:]
	}
	return w.settle(ctx, s)
}

// Published returns the published state of chunks of a user.
func (w *Writer) Published(ctx context.Context, user string, ids ...models.ID) (map[models.ID]models.Published, error) {
	s := w.state(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := w.readNew(ctx, user, s); err != nil {
		return nil, err
	}
	return w.load(ctx, s, ids)
}

// withBatches returns the IDs of chunks, and of the first chunks of their batches.
func withBatches(chunks []Chunk) []models.ID {
	e := models.FeedEntry{Chunks: make([]models.FeedChunk, len(chunks))}
	for i := range chunks {
		e.Chunks[i].Chunk = chunks[i].ID
	}
	return about(&e)
}

// draft is an entry that is not appended yet.
type draft struct {
	entry     models.FeedEntry
	published []models.Published // of its chunks
	chunks    int                // number of chunks that were compared
}

// draft returns the next entry, with the pending changes of as many chunks as it may have.
func (w *Writer) draft(s *state, published map[models.ID]models.Published, chunks []Chunk) draft {
	d := draft{entry: models.FeedEntry{
		Number:  s.head + 1,
		Token:   models.NewToken(),
		At:      models.LaterOf(w.now().UTC().Truncate(time.Microsecond), s.at.Add(time.Microsecond)),
		Settled: s.settled,
	}}
	of := map[models.ID]int{} // numbers of chunks, by batch
	for size := 0; d.chunks < len(chunks) && size < maxBytes; d.chunks++ {
		c := &chunks[d.chunks]
		t := published[c.ID]
		pending, ok := t.Pending(&c.View)
		if !ok {
			continue
		}
		d.entry.Chunks = append(d.entry.Chunks, pending)
		of[c.ID.Batch()] = c.Of
		size += 26
		for i := range pending.Changes {
			size += 24 + 2*min(pending.Changes[i].Recipients.Len(), models.MaxChunkRecipients/2)
		}
	}
	d.end(published, of)
	for _, id := range about(&d.entry) {
		t := published[id]
		t.Apply(&d.entry)
		d.published = append(d.published, t)
	}
	return d
}

// end notes which batches end with the entry: no chunk of them has a queued log after it, and one
// had before. of has their numbers of chunks.
func (d *draft) end(published map[models.ID]models.Published, of map[models.ID]int) {
	for i := range d.entry.Chunks {
		c := &d.entry.Chunks[i]
		batch := c.Chunk.Batch()
		if i+1 < len(d.entry.Chunks) && d.entry.Chunks[i+1].Chunk.Batch() == batch {
			continue // it is not the last one of its batch
		}
		before := published[batch].Batch
		_, pending, _ := d.entry.About(batch)
		if before.Ended < of[batch] && before.Ended+pending.Ended == of[batch] {
			c.Done = before.Done + 1
		}
	}
}

// apply makes an entry that was appended the head.
func (w *Writer) apply(s *state, d *draft) {
	if len(d.entry.Chunks) == 0 {
		return
	}
	for i := range d.published {
		w.published.Add(publishedKey{s.generation, d.published[i].Chunk}, d.published[i])
	}
	s.head, s.at = d.entry.Number, d.entry.At
	s.recent = append(s.recent, &recent{entry: d.entry, published: d.published, since: w.now()})
}

// readNew reads the entries after the head; at first, those whose published state may not be stored yet.
func (w *Writer) readNew(ctx context.Context, user string, s *state) error {
	if !s.known {
		head, err := w.store.FeedHead(ctx, user)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		w.mu.Lock()
		w.next++ // values of before are not up to date
		s.generation = w.next
		w.mu.Unlock()
		s.head, s.at, s.settled, s.recent = head.Settled, time.Time{}, head.Settled, nil
		s.known = true
	}
	for {
		page, err := w.store.Feed(ctx, user, s.head, pageRows)
		if err != nil {
			return err
		}
		for i := range page {
			e := &page[i]
			if e.Number != s.head+1 {
				s.known = false
				return fmt.Errorf("feed of %s: entry %d is missing: %w", user, s.head+1, models.ErrDamaged)
			}
			for _, id := range about(e) {
				key := publishedKey{s.generation, id}
				if t, ok := w.published.Get(key); ok {
					t.Apply(e)
					w.published.Add(key, t)
				}
			}
			s.head, s.at = e.Number, e.At
			s.recent = append(s.recent, &recent{entry: *e, done: len(e.Chunks) == 0, since: w.now()})
			s.advance(e.Settled)
		}
		if len(page) < pageRows {
			return nil
		}
	}
}

// advance drops entries up to a number, and the next ones that are done.
func (s *state) advance(settled int) {
	n := 0
	for n < len(s.recent) && (s.recent[n].entry.Number <= settled || s.recent[n].done) {
		s.settled = s.recent[n].entry.Number
		n++
	}
	s.recent = slices.Delete(s.recent, 0, n)
}

// load returns the published state of chunks up to the head.
func (w *Writer) load(ctx context.Context, s *state, chunks []models.ID) (map[models.ID]models.Published, error) {
	published := make(map[models.ID]models.Published, len(chunks))
	var missing []models.ID
	for _, id := range chunks {
		t, ok := w.published.Get(publishedKey{s.generation, id})
		if !ok {
			missing = append(missing, id)
			t.Chunk = id
		}
		published[id] = t
	}
	if len(missing) == 0 {
		return published, nil
	}
	rows, err := w.store.Published(ctx, missing...)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		published[rows[i].Chunk] = rows[i]
	}
	for _, id := range missing {
		t := published[id]
		for _, r := range s.recent {
			t.Apply(&r.entry)
		}
		published[id] = t
		if t.Entry <= s.head {
			w.published.Add(publishedKey{s.generation, id}, t)
		}
	}
	return published, nil
}

// settle stores the state that recent entries have published: those of this process, and those of others that seem to
// have stopped before they stored it.
func (w *Writer) settle(ctx context.Context, s *state) error {
	for _, r := range s.recent {
		own := r.published != nil
		if r.done || !own && w.now().Sub(r.since) < settleLate {
			continue
		}
		published := r.published
		if !own {
			all, err := w.load(ctx, s, about(&r.entry))
			if err != nil {
				return err
			}
			for _, t := range all {
				published = append(published, t)
			}
		}
		if err := w.store.PutPublished(ctx, published...); err != nil {
			return err
		}
		r.done, r.published = true, nil
	}
	s.advance(s.settled)
	return nil
}
