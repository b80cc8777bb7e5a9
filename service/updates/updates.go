// Package updates reads the feeds of updates as their users see them.
package updates

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
)

const (
	// MaxLimit is the maximum number of updates of a page.
	MaxLimit = 1000
	// MaxWait is the maximum time that a read waits for updates.
	MaxWait = time.Minute

	defaultLimit = 100
	maxWaiting   = 2000 // reads that wait at once
	readAtOnce   = 8

	// What is known of a batch is read again after batchAge, because its content may be removed.
	batchAge    = time.Minute
	keptBatches = 4096
	clockSlack  = 15 * time.Minute // how far clocks of processes may differ
)

// Update is an update of a log.
type Update struct {
	Log      models.ID     `json:"log"`
	Number   int           `json:"number"` // the updates of a log are 1, 2, 3, …
	Batch    models.ID     `json:"batch"`
	State    models.State  `json:"state"`
	Reason   models.Reason `json:"reason,omitempty"`
	Provider string        `json:"provider,omitempty"`
	At       time.Time     `json:"at"`

	// Metadata is that of the recipient and, for other keys, of the batch. It is there as long
	// as their content is kept, and so are the tags.
	Metadata map[string]string `json:"metadata,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
}

// Page is a part of a feed.
type Page struct {
	Updates []Update `json:"updates"`
	Position
}

// Position tells where a page ends.
type Position struct {
	Next     string    `json:"next_cursor"`
	More     bool      `json:"more"`                    // there is more to read now
	Complete time.Time `json:"complete_until,omitzero"` // no update before it follows; zero: unknown
}

// Query selects updates. The zero value selects all that are kept.
type Query struct {
	Cursor   string        // of the page before; empty: from the first
	From, To time.Time     // only updates of this time, without its end
	Wait     time.Duration // how long to wait for an update if there is none
	Batch    string        // only updates of this batch
	Tag      string        // only updates of batches with this tag
	State    models.State  // only updates to this state
	Limit    int           // 0: the default; negative: not a number

	// Waits is called once before the read waits; it may be nil.
	Waits func()
}

// Reader reads feeds. Its methods may be called by many goroutines at once.
type Reader struct {
	store   models.Store
	tails   *feed.Tails
	batches *lru.Cache[models.ID, batch]
	waiting atomic.Int64
	closed  chan struct{}
	closing sync.Once
}

// batch is what updates tell of a batch.
type batch struct {
	tags     []string
	metadata map[string]string
	removed  bool      // its content was removed
	read     time.Time // when it was read
}

// New returns a Reader.
func New(store models.Store) *Reader {
	batches, err := lru.New[models.ID, batch](keptBatches)
	if err != nil {
		panic("updates: " + err.Error()) // the size is a positive constant
	}
	return &Reader{
		store:   store,
		tails:   feed.NewTails(store),
		batches: batches,
		closed:  make(chan struct{}),
	}
}

// Close ends all waits.
func (r *Reader) Close() { r.closing.Do(func() { close(r.closed) }) }

// Read returns the updates of a user that a query selects, in order.
func (r *Reader) Read(ctx context.Context, user string, q Query) (Page, error) {
	p := Page{Updates: []Update{}}
	fq, err := r.query(user, &q)
	if err != nil {
		return p, err
	}
	if fq.After, err = r.begin(ctx, user, &q, fq.After); err != nil {
		return p, problem.FromStore("read updates", err)
	}
	found, err := r.wait(ctx, user, &q, fq)
	if errors.Is(err, feed.ErrExpired) {
		return p, problem.New(problem.Gone, "cursor_expired",
			"Updates after this cursor are not kept any more. Read the present states of the logs, and begin without a cursor.")
	}
	var e *problem.Error
	if errors.As(err, &e) {
		return p, err
	}
	if err == nil {
		p.Updates, err = r.describe(ctx, found.Updates)
	}
	if err != nil {
		return p, problem.FromStore("read updates", err)
	}
	p.Position = Position{Next: encode(user, found.Next), More: found.More, Complete: found.Next.Complete}
	return p, nil
}

// query checks a query.
func (r *Reader) query(user string, q *Query) (feed.Query, error) {
	var wrong problem.Mistakes
	bad := func(name, detail string, args ...any) {
		wrong.Wrong(problem.Pointer(name), "invalid_value", detail, args...)
	}
	fq := feed.Query{After: feed.Begin, From: q.From, To: q.To, Limit: q.Limit}
	if q.Limit == 0 {
		fq.Limit = defaultLimit
	}
	if fq.Limit < 1 || fq.Limit > MaxLimit {
		bad("limit", "limit must be a number from 1 to %d.", MaxLimit)
	}
	if q.Cursor != "" {
		var ok bool
		if fq.After, ok = decode(user, q.Cursor); !ok {
			bad("cursor", "This is no cursor of your updates.")
		}
	}
	if q.Wait < 0 || q.Wait > MaxWait {
		bad("wait", "wait must be a time from 0s to %s.", MaxWait)
	}
	if !q.From.IsZero() && !q.To.IsZero() && q.To.Before(q.From) {
		bad("to", "to must not be earlier than from.")
	}
	if q.State != "" && !q.State.Valid() {
		bad("state", "state must be queued, success, failed or cancelled.")
	}
	var id models.ID
	if q.Batch != "" {
		var err error
		if id, err = models.ParseBatchID(q.Batch); err != nil {
			bad("batch", "batch must be the ID of a batch.")
		}
	}
	fq.Match = func(ctx context.Context, chunk models.ID, c *models.FeedChange) (bool, error) {
		if q.State != "" && c.State != q.State || q.Batch != "" && chunk.Batch() != id {
			return false, nil
		}
		if q.Tag == "" {
			return true, nil
		}
		b, err := r.batch(ctx, chunk.Batch())
		for _, tag := range b.tags {
			if tag == q.Tag {
				return true, err
			}
		}
		return false, err
	}
	return fq, wrong.In(problem.New(problem.Malformed, "invalid_query",
		"The parameters of the request are not valid: see errors."))
}

// begin returns the position where a read begins. A time that has passed is completed before,
// so that nothing appears in it later.
func (r *Reader) begin(ctx context.Context, user string, q *Query, after feed.Position) (feed.Position, error) {
	now := time.Now()
	for _, t := range []time.Time{q.From, q.To} {
		if !t.IsZero() && !t.After(now) {
			if err := feed.Complete(ctx, r.store, user, t); err != nil {
				return after, err
			}
		}
	}
	from := q.From
	if id, err := models.ParseBatchID(q.Batch); from.IsZero() && err == nil {
		from = id.Time().Add(-clockSlack)
	}
	if q.Cursor != "" || from.IsZero() {
		return after, nil
	}
	p, err := feed.Find(ctx, r.store, user, from)
	if errors.Is(err, models.ErrNotFound) {
		return after, nil
	}
	return p, err
}

// wait reads a feed, and waits until there is something to read.
func (r *Reader) wait(ctx context.Context, user string, q *Query, fq feed.Query) (feed.Page, error) {
	found, err := feed.Read(ctx, r.store, user, fq)
	if err != nil || len(found.Updates) > 0 || q.Wait <= 0 {
		return found, err
	}
	if r.waiting.Add(1) > maxWaiting {
		r.waiting.Add(-1)
		return found, problem.New(problem.TooMany, "too_many_waiting",
			"Too many requests wait for updates. Repeat the request later, or without wait.").After(5)
	}
	defer r.waiting.Add(-1)
	if q.Waits != nil {
		q.Waits()
	}
	limit, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	go func() {
		select {
		case <-r.closed:
			cancel()
		case <-limit.Done():
		}
	}()
	for {
		ended := !q.To.IsZero() && !found.Next.Complete.Before(q.To)
		if ended || !found.More && r.tails.Wait(limit, user, found.Next.Entry) != nil || limit.Err() != nil {
			return found, ctx.Err()
		}
		fq.After = found.Next
		if found, err = feed.Read(ctx, r.store, user, fq); err != nil || len(found.Updates) > 0 {
			return found, err
		}
	}
}

// describe returns updates with what the batches and the recipients tell.
func (r *Reader) describe(ctx context.Context, found []feed.Update) ([]Update, error) {
	out := make([]Update, len(found))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for from := 0; from < len(found); {
		to, chunk := from+1, found[from].Log.ChunkID()
		for to < len(found) && found[to].Log.ChunkID() == chunk {
			to++
		}
		some, into := found[from:to], out[from:to]
		g.Go(func() error { return r.describeChunk(ctx, chunk, some, into) })
		from = to
	}
	return out, g.Wait()
}

// describeChunk describes updates of one chunk.
func (r *Reader) describeChunk(ctx context.Context, chunk models.ID, found []feed.Update, out []Update) error {
	b, err := r.batch(ctx, chunk.Batch())
	if err != nil {
		return err
	}
	var recipients []models.Recipient
	if !b.removed {
		recipients, err = r.store.Recipients(ctx, chunk)
		if err != nil && !errors.Is(err, models.ErrNotFound) && !errors.Is(err, models.ErrDamaged) {
			return err
		}
	}
	for i := range found {
		u := &found[i]
		out[i] = Update{
			Log:      u.Log,
			Number:   u.Number,
			Batch:    chunk.Batch(),
			State:    u.State,
			Reason:   u.Reason,
			Provider: u.Provider,
			At:       u.At,
			Metadata: b.metadata,
			Tags:     b.tags,
		}
		if n := u.Log.Recipient(); n <= len(recipients) && len(recipients[n-1].Metadata) > 0 {
			out[i].Metadata = merged(b.metadata, recipients[n-1].Metadata)
		}
	}
	return nil
}

// merged returns the values of both maps; those of the second count.
func merged(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// batch returns what updates tell of a batch. Nothing is known of one that was removed or
// cannot be read.
func (r *Reader) batch(ctx context.Context, id models.ID) (batch, error) {
	if b, ok := r.batches.Get(id); ok && time.Since(b.read) < batchAge {
		return b, nil
	}
	b, err := r.store.Batch(ctx, id)
	gone := errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged)
	if err != nil && !gone {
		return batch{}, err
	}
	told := batch{tags: b.Content.Tags, metadata: b.Metadata, removed: gone || b.Redacted, read: time.Now()}
	r.batches.Add(id, told)
	return told, nil
}
