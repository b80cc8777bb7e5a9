// Package updates reads the feeds of updates as their users see them.
package updates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
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
	maxWaiting   = 2000             // reads that wait at once
	maxOfUser    = maxWaiting / 4   // of one user
	clockSlack   = 15 * time.Minute // how far clocks of processes may differ
)

// Page is a part of a feed.
type Page struct {
	Updates []feed.Described `json:"updates"`
	Position
}

// Position says where a page ends.
type Position = client.UpdatesEnd

// Query selects updates. The zero value selects all that are kept.
type Query struct {
	Cursor   string        // of the page before; empty: from the first
	From, To time.Time     // only updates of this time, without its end
	Wait     time.Duration // how long to wait for an update if there is none
	Batch    string        // only updates of this batch
	Tag      string        // only updates of batches with this tag
	State    models.State  // only updates to this state
	Events   []feed.Type   // only updates of these types; empty: all changes of the state
	Limit    int           // 0: the default; negative: not a number
	Listed   bool          // read why addresses are on the suppression list, too: see feed.Described

	// By is the user who reads; empty: the one whose updates they are.
	By string
	// Waits is called once before the read waits, and what it returns after that; it may be nil.
	Waits func() (resume func(ctx context.Context) error)
}

// Reader reads feeds. Its methods may be called by many goroutines at once.
type Reader struct {
	store   models.Store
	tails   *feed.Tails
	tell    *feed.Describer
	closed  chan struct{}
	closing sync.Once

	mu      sync.Mutex
	waiting map[string]int // reads by user
	all     int
}

// New returns a Reader.
func New(store models.Store) *Reader {
	return &Reader{
		store:  store,
		tails:  feed.NewTails(store, feed.TailPoll),
		tell:   feed.NewDescriber(store),
		closed: make(chan struct{}),

		waiting: map[string]int{},
	}
}

// Close ends all waits.
func (r *Reader) Close() { r.closing.Do(func() { close(r.closed) }) }

// Read returns the updates of a user, or of feed.Installation, that a query selects, in order.
func (r *Reader) Read(ctx context.Context, user string, q Query) (Page, error) {
	p := Page{Updates: []feed.Described{}}
	fq, err := r.query(user, &q)
	if err != nil {
		return p, err
	}
	if fq.After, err = r.begin(ctx, user, &q, fq.After); err != nil {
		return p, problem.FromStore("read updates", err)
	}
	found, err := r.wait(ctx, user, &q, fq)
	if err == nil {
		p.Updates, err = r.tell.Describe(ctx, user, found.Updates)
	}
	if err == nil && q.Listed {
		err = r.tell.AddListed(ctx, user, p.Updates)
	}
	if err != nil {
		return p, readError("read updates", err)
	}
	p.Position = positionOf(user, &found)
	return p, nil
}

// Counts are the numbers of updates in a part of a feed.
type Counts struct {
	Counts map[feed.Type]int64 `json:"counts"` // by type; those without an update are left out
	Position
}

// Count counts the updates that a query selects, in a part of the feed of a bounded size. It does
// not wait.
func (r *Reader) Count(ctx context.Context, user string, q Query) (Counts, error) {
	out := Counts{Counts: map[feed.Type]int64{}}
	fq, err := r.query(user, &q)
	if err != nil {
		return out, err
	}
	if fq.After, err = r.begin(ctx, user, &q, fq.After); err != nil {
		return out, problem.FromStore("count updates", err)
	}
	fq.Counts = out.Counts
	found, err := feed.Read(ctx, r.store, user, fq)
	if err != nil {
		return out, readError("count updates", err)
	}
	out.Position = positionOf(user, &found)
	return out, nil
}

func positionOf(user string, p *feed.Page) Position {
	return Position{Next: encode(user, p.Next), More: p.More, Complete: p.Next.Complete}
}

// readError returns the error of a read for users.
func readError(doing string, err error) error {
	var e *problem.Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, feed.ErrExpired) {
		return problem.New(problem.Gone, "cursor_expired",
			"Updates after this cursor are not kept any more, or the store was restored from a backup. "+
				"Read the present states of the logs, and begin without a cursor.")
	}
	return problem.FromStore(doing, err)
}

// query checks a query.
func (r *Reader) query(user string, q *Query) (feed.Query, error) {
	var wrong problem.Mistakes
	require := func(ok bool, name, detail string, args ...any) {
		if !ok {
			wrong.Wrong(problem.Pointer(name), "invalid_value", detail, args...)
		}
	}
	fq := feed.Query{After: feed.Begin, From: q.From, To: q.To, Limit: cmp.Or(q.Limit, defaultLimit)}
	require(fq.Limit >= 1 && fq.Limit <= MaxLimit, "limit", "limit must be a number from 1 to %d.", MaxLimit)
	if q.Cursor != "" {
		var ok bool
		fq.After, ok = decode(user, q.Cursor)
		require(ok, "cursor", "This is no cursor of your updates.")
	}
	require(q.Wait >= 0 && q.Wait <= MaxWait, "wait", "wait must be a time from 0s to %s.", MaxWait)
	require(q.From.IsZero() || q.To.IsZero() || !q.To.Before(q.From), "to", "to must not be earlier than from.")
	require(q.State == "" || q.State.Valid() && q.State != models.Sent, "state",
		"state must be queued, delivered, failed or cancelled.")
	unknown := slices.ContainsFunc(q.Events, func(t feed.Type) bool { return !t.Known(user) })
	require(!unknown, "events", "events has the names %s, separated by commas.", feed.Names(user))
	for name, value := range map[string]string{"batch": q.Batch, "tag": q.Tag, "state": string(q.State)} {
		require(value == "" || user != feed.Installation, name, "What happens to the installation has no %s.", name)
	}
	var id models.ID
	if q.Batch != "" {
		var err error
		id, err = models.ParseBatchID(q.Batch)
		require(err == nil, "batch", "batch must be the ID of a batch.")
	}
	fq.Notice = func(n *models.Notice) bool {
		ofMail := q.State != "" || q.Batch != "" || q.Tag != ""
		return !ofMail && feed.Wanted(q.Events, feed.Type(n.Kind))
	}
	fq.Match = func(ctx context.Context, chunk models.ID, c *models.FeedChange) (bool, error) {
		if q.State != "" && c.State != q.State || q.Batch != "" && chunk.Batch() != id {
			return false, nil
		}
		return r.matches(ctx, q, feed.TypeOf(c.State, c.Event), chunk)
	}
	fq.Suppression = func(ctx context.Context, s *models.FeedSuppression) (bool, error) {
		if q.State != "" || q.Batch != "" && s.Log.Batch() != id {
			return false, nil
		}
		return r.matches(ctx, q, feed.SuppressionAdded, s.Log)
	}
	return fq, wrong.In(problem.New(problem.Malformed, "invalid_query",
		"The parameters of the request are not valid: see errors."))
}

// matches reports whether a query selects updates of a type about a log or a chunk, or about no mail.
func (r *Reader) matches(ctx context.Context, q *Query, t feed.Type, of models.ID) (bool, error) {
	if !feed.Wanted(q.Events, t) || q.Tag != "" && of.IsZero() {
		return false, nil
	}
	if q.Tag == "" {
		return true, nil
	}
	b, err := r.tell.Batch(ctx, of.Batch())
	return slices.Contains(b.Tags, q.Tag), err
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
	leave, err := r.enter(cmp.Or(q.By, user))
	if err != nil {
		return found, err
	}
	defer leave()
	resume := func(context.Context) error { return nil }
	if q.Waits != nil {
		resume = q.Waits()
	}
	if found, err = r.next(ctx, user, q, fq, found); err != nil {
		return found, err
	}
	return found, resume(ctx)
}

// enter counts a read that waits, until it leaves.
func (r *Reader) enter(by string) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	who := "Too many requests"
	switch {
	case r.waiting[by] >= maxOfUser:
		who = fmt.Sprintf("%d requests of yours", maxOfUser)
	case r.all < maxWaiting:
		r.all++
		r.waiting[by]++
		return func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all--
			if r.waiting[by]--; r.waiting[by] == 0 {
				delete(r.waiting, by)
			}
		}, nil
	}
	return nil, problem.New(problem.TooMany, "too_many_waiting",
		"%s wait for updates. Repeat the request after the time in Retry-After, or without wait.", who).After(5)
}

// next waits until there is something to read after found.
func (r *Reader) next(
	ctx context.Context, user string, q *Query, fq feed.Query, found feed.Page,
) (_ feed.Page, err error) {
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
