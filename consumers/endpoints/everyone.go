package endpoints

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

const (
	feedsAtOnce   = 16                     // feeds that are looked at at once
	feedsOfRound  = 500                    // feeds that a round looks at
	usersEvery    = 5 * time.Second        // how often new users are looked for
	everyonePause = 250 * time.Millisecond // between two rounds, if one cannot look at all feeds
)

// everyone is how far a process is in the feeds of all users, for an endpoint of everyone's mail.
type everyone struct {
	cursors *endpoint.Cursors
	users   []string // that are not disabled, in the order of their names
	listed  time.Time
	next    int // index of the user whose feed is looked at next
}

// pause returns how long to wait after a round that has found nothing more to post.
func (a *everyone) pause() time.Duration {
	if len(a.users) > feedsOfRound {
		return everyonePause
	}
	return time.Second
}

// newEveryone returns the stored state of an endpoint.
func (p *Poster) newEveryone(ctx context.Context, e *endpoint.Endpoint) (*everyone, error) {
	cursors, err := endpoint.CursorsOf(ctx, p.store, e)
	return &everyone{cursors: cursors}, err
}

// list lists the users from time to time.
func (p *Poster) list(ctx context.Context, a *everyone) error {
	if time.Since(a.listed) < usersEvery {
		return nil
	}
	all, err := p.store.Users(ctx)
	if err != nil {
		return err
	}
	a.users, a.listed = make([]string, 0, len(all)), time.Now()
	for i := range all {
		if !p.cfg.Disabled(all[i].ID) {
			a.users = append(a.users, all[i].ID)
		}
	}
	return nil
}

// pending are posts to make together.
type pending struct {
	posts []endpoint.Post
	then  []endpoint.Cursor // after each of them
	of    []int             // index of its user in the round
}

// postOfAll posts updates of the next users that were not posted before, and reports whether there are more of them.
func (r *round) postOfAll(ctx context.Context) (more bool, err error) {
	if err := r.p.list(ctx, r.all); err != nil || len(r.all.users) == 0 {
		return false, err
	}
	some := make([]string, min(feedsOfRound, len(r.all.users)))
	for i := range some {
		some[i] = r.all.users[(r.all.next+i)%len(r.all.users)]
	}
	grown, err := r.grown(ctx, some)
	if err != nil {
		return false, err
	}
	var q pending
	for i, user := range some {
		if grown[i] {
			left, err := r.collect(ctx, &q, user, i)
			if err != nil {
				return false, err
			}
			more = more || left
		}
		if last := i == len(some)-1; last || len(q.posts) >= min(r.most(), r.free()) {
			if r.flush(ctx, &q) {
				return true, nil
			}
		}
	}
	r.all.advance(len(some))
	return more, nil
}

// advance lets the next round begin with a later user.
func (a *everyone) advance(n int) { a.next = (a.next + n) % len(a.users) }

// most returns how many posts are collected before they are made.
func (r *round) most() int {
	if r.e.Batch {
		return r.e.Width() // they may have a megabyte each
	}
	return collected
}

// grown reports which feeds have entries behind their cursors. A feed without a cursor gets one.
func (r *round) grown(ctx context.Context, users []string) ([]bool, error) {
	out, cursors := make([]bool, len(users)), make([]endpoint.Cursor, len(users))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(feedsAtOnce)
	for i, user := range users {
		c, ok := r.all.cursors.Of(user)
		g.Go(func() error {
			if start := r.e.Start; !ok || c.Start != start.Generation {
				at, err := feed.Find(ctx, r.p.store, user, start.At)
				if err != nil && !errors.Is(err, models.ErrNotFound) { // without an entry it begins at the first
					return err
				}
				c = endpoint.Cursor{Next: at, Start: start.Generation}
			}
			head, err := r.p.store.FeedHead(ctx, user)
			if err != nil && !errors.Is(err, models.ErrNotFound) {
				return err
			}
			cursors[i], out[i] = c, head.Number > c.Next.Entry
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, user := range users {
		r.all.cursors.Set(user, cursors[i])
	}
	return out, nil
}

// collect adds posts of the next updates of a user, and reports whether there are more of them.
func (r *round) collect(ctx context.Context, q *pending, user string, of int) (more bool, err error) {
	c, _ := r.all.cursors.Of(user)
	limit := min(collected, r.free()-len(q.posts))
	if r.e.Batch {
		limit = endpoint.MaxBatch
	}
	page, err := r.p.compose.Read(ctx, r.e, user, c.Next, limit)
	if errors.Is(err, feed.ErrExpired) {
		r.p.log.Warn("updates were removed before they could be posted", "endpoint", r.e.ID, "user_id", user)
		c.Next = feed.Begin
		r.all.cursors.Set(user, c)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	then := func(next feed.Position) endpoint.Cursor { return endpoint.Cursor{Next: next, Start: c.Start} }
	if len(page.Updates) == 0 {
		r.all.cursors.Set(user, then(page.Next))
		return page.More, nil
	}
	posts, err := r.p.compose.Compose(ctx, r.e, endpoint.Part{User: user, From: c.Next, Batch: r.e.Batch}, page.Updates)
	if err != nil {
		return false, err
	}
	n := 0
	for i := range posts {
		n += len(posts[i].Updates)
		q.posts, q.then, q.of = append(q.posts, posts[i]), append(q.then, then(posts[i].End())), append(q.of, of)
	}
	if n < len(page.Updates) {
		return true, nil
	}
	q.then[len(q.then)-1] = then(page.Next)
	return page.More, nil
}

// flush makes the posts that were collected. It reports whether the round is over. Then the next round begins with the
// user whose post was not made. If that user was the first of this round, it begins with the one after.
func (r *round) flush(ctx context.Context, q *pending) (over bool) {
	results := r.send(ctx, q.posts)
	for i := range q.posts {
		if results[i].at.IsZero() {
			r.waits = q.posts[i].Updates[0].At
			r.all.advance(max(1, q.of[i]))
			return true
		}
		r.note(&q.posts[i], &results[i])
		r.made++
		r.all.cursors.Set(q.posts[i].User, q.then[i])
	}
	*q = pending{}
	if !r.mayPost(ctx) {
		r.all.advance(1)
		return true
	}
	return false
}
