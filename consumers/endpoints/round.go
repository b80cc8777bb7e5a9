package endpoints

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// A round makes the posts to an endpoint that are due, and stores how far it came.
type round struct {
	p       *Poster
	e       *endpoint.Endpoint
	version int // of e
	state   endpoint.State
	until   time.Time // no post begins after it
}

// post is a post that is to be made.
type post struct {
	from    feed.Position
	updates []feed.Update
	body    []byte
	tried   int
}

// result is what became of a post; it was not made if at is zero.
type result struct {
	at     time.Time
	answer outbound.Answer
	err    error
}

func (r *result) ok() bool { return r.err == nil && r.answer.Status/100 == 2 }

// run makes a round and returns when the next is due: at once if there is more to post.
func (r *round) run(ctx context.Context) (next time.Time, err error) {
	var version int
	if r.state, version, err = endpoint.StateOf(ctx, r.p.store, r.e); err != nil {
		return next, err
	}
	before := r.state.Next
	r.state.TakeOver(r.e)
	r.until = time.Now().Add(roundTime)
	tried, err := r.retry(ctx)
	if err != nil {
		return next, err
	}
	more := false
	if r.free() > 0 {
		if more, err = r.postNew(ctx); err != nil {
			return next, err
		}
	}
	if tried > 0 || r.state.Next != before || version == 0 {
		// What was posted is posted again if this fails.
		if err := endpoint.PutState(context.WithoutCancel(ctx), r.p.store, r.e, &r.state, version); err != nil {
			return next, err
		}
	}
	if err := r.disable(ctx); err != nil {
		return next, err
	}
	now := time.Now()
	if more && r.free() > 0 {
		return now, nil
	}
	next = now.Add(idleRound)
	for i := range r.state.Retries {
		next = models.EarlierOf(next, r.state.Retries[i].At)
	}
	return next, nil
}

// free returns how many new posts may be made.
func (r *round) free() int {
	most := maxRetries
	if r.e.Ordered {
		most = 1
	}
	if r.state.Failures >= maxFailures { // a retry finds out whether the endpoint is back, or else one new post
		most = 1
	}
	return most - len(r.state.Retries)
}

// retry makes the retries that are due. An endpoint that fails all the time gets one at a time.
func (r *round) retry(ctx context.Context) (tried int, err error) {
	var due []endpoint.Retry
	kept := make([]endpoint.Retry, 0, len(r.state.Retries))
	most := atOnce
	if r.state.Failures >= maxFailures {
		most = 1
	}
	for _, t := range r.state.Retries {
		if len(due) < most && !t.At.After(time.Now()) {
			due = append(due, t)
		} else {
			kept = append(kept, t)
		}
	}
	if len(due) == 0 {
		return 0, nil
	}
	posts := make([]post, 0, len(due))
	for _, t := range due {
		page, err := r.read(ctx, t.From, t.Count)
		if errors.Is(err, feed.ErrExpired) || err == nil && len(page.Updates) == 0 {
			r.state.GivenUp++ // its updates are not kept any more, or not wanted
			continue
		}
		if err != nil {
			return 0, err
		}
		body, n, err := r.p.body(ctx, r.e, page.Updates)
		if err != nil {
			return 0, err
		}
		posts = append(posts, post{t.From, page.Updates[:n], body, t.Tried})
	}
	results, err := r.send(ctx, posts)
	if err != nil {
		return 0, err
	}
	r.state.Retries = kept
	for i := range posts {
		r.note(&posts[i], &results[i])
	}
	return len(due), nil
}

// postNew posts updates that were not posted before, and reports whether there are more.
func (r *round) postNew(ctx context.Context) (more bool, err error) {
	limit := min(pageUpdates, r.free())
	if r.e.Batch {
		limit = endpoint.MaxBatch
	}
	page, err := r.read(ctx, r.state.Next, limit)
	if errors.Is(err, feed.ErrExpired) {
		r.p.log.Warn("updates were removed before they could be posted", "endpoint", r.e.ID, "user_id", r.e.User)
		r.state.Next = feed.Begin
		return true, nil
	}
	if err != nil {
		return false, err
	}
	posts, from, left := []post(nil), r.state.Next, page.Updates
	for len(left) > 0 && (len(posts) == 0 || !r.e.Batch) {
		body, n, err := r.p.body(ctx, r.e, left)
		if err != nil {
			return false, err
		}
		posts = append(posts, post{from: from, updates: left[:n], body: body})
		from, left = left[n-1].Next, left[n:]
	}
	results, err := r.send(ctx, posts)
	if err != nil {
		return false, err
	}
	for i := range posts {
		if results[i].at.IsZero() { // the round was over
			r.state.Next = posts[i].from
			return true, nil
		}
		r.note(&posts[i], &results[i])
	}
	if len(left) > 0 {
		r.state.Next = from
		return true, nil
	}
	r.state.Next = page.Next
	return page.More, nil
}

// read returns the updates after a position that the endpoint wants.
func (r *round) read(ctx context.Context, after feed.Position, limit int) (feed.Page, error) {
	return feed.Read(ctx, r.p.store, r.e.User, feed.Query{
		After: after,
		Limit: limit,
		Match: func(ctx context.Context, chunk models.ID, c *models.FeedChange) (bool, error) {
			b, err := r.p.tell.Batch(ctx, chunk.Batch())
			return err == nil && r.e.Wants(c.State, &b), err
		},
	})
}

// send makes posts, some at once, in their order. It makes no further ones when the round is over or when several
// failed one after the other.
func (r *round) send(ctx context.Context, posts []post) ([]result, error) {
	out := make([]result, len(posts))
	width := atOnce
	if r.e.Ordered {
		width = 1
	}
	failures := r.state.Failures
	for from := 0; from < len(posts); from += width {
		if time.Now().After(r.until) || failures >= maxFailures && from > 0 || r.e.Ordered && failures > r.state.Failures {
			return out, nil
		}
		some := posts[from:min(from+width, len(posts))]
		var g errgroup.Group
		for i := range some {
			g.Go(func() error {
				out[from+i] = r.sendOne(ctx, r.id(&some[i]), some[i].body)
				return nil
			})
		}
		_ = g.Wait() // never an error
		if ctx.Err() != nil {
			return nil, ctx.Err() // what failed may have failed because of that
		}
		for i := range some {
			if failures++; out[from+i].ok() {
				failures = 0
			}
		}
	}
	return out, nil
}

func (r *round) sendOne(ctx context.Context, id string, body []byte) result {
	out := result{at: time.Now()}
	out.answer, out.err = r.p.cfg.Client.Post(ctx, r.e.URL, r.e.Header(id, out.at, body), body)
	return out
}

// id returns the ID of a post, which is the same each time.
func (r *round) id(p *post) string {
	first := &p.updates[0]
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %d", r.e.ID, first.Log, first.Number, len(p.updates)))
	return "msg_" + hex.EncodeToString(sum[:16])
}

// note records what became of a post.
func (r *round) note(p *post, res *result) {
	s := &r.state
	a := endpoint.Attempt{
		At: res.at.UTC(), Post: r.id(p), Updates: len(p.updates), Tried: p.tried,
		Status: res.answer.Status, Answer: models.Clip(res.answer.Body), Took: res.answer.Took.Milliseconds(),
	}
	if res.err != nil {
		a.Answer = models.Clip(res.err.Error())
	}
	if len(p.updates) == 1 {
		a.Type, a.Log = endpoint.TypeOf(p.updates[0].State), p.updates[0].Log.String()
	}
	s.Attempts = append([]endpoint.Attempt{a}, s.Attempts[:min(len(s.Attempts), maxAttempts-1)]...)
	if res.ok() {
		s.Posted++
		s.Failures, s.FailingSince = 0, time.Time{}
		return
	}
	if s.Failures++; s.FailingSince.IsZero() {
		s.FailingSince = res.at.UTC()
	}
	s.Gone = s.Gone || res.answer.Status == http.StatusGone
	delays := r.p.cfg.Delays
	if p.tried >= len(delays) {
		s.GivenUp++
		return
	}
	delay := max(delays[p.tried], res.answer.RetryAfter)
	delay += time.Duration(rand.Int64N(int64(delay)/10 + 1)) //nolint:gosec // spread, no secret
	s.Retries = append(s.Retries, endpoint.Retry{
		From: p.from, Count: len(p.updates), Tried: p.tried + 1, At: res.at.Add(delay).UTC(),
	})
}

// disable disables the endpoint if it says that it is gone, or if it has failed for days.
func (r *round) disable(ctx context.Context) error {
	var why string
	switch since := r.state.FailingSince; {
	case r.state.Gone:
		why = "it answered 410 Gone"
	case !since.IsZero() && time.Since(since) > maxFailing:
		why = fmt.Sprintf("all posts have failed since %s", since.Format(time.RFC3339))
	default:
		return nil
	}
	r.e.Disabled = &endpoint.Disabled{At: time.Now().UTC(), Why: why}
	r.p.log.Warn("endpoint disabled", "endpoint", r.e.ID, "user_id", r.e.User, "why", why)
	err := endpoint.Put(ctx, r.p.store, r.e, r.version)
	if errors.Is(err, endpoint.ErrChanged) {
		return nil // the next round decides
	}
	return err
}

// body returns the body of a post, and how many of the updates it has: one, or in a batch as many as
// maxBody has room for.
func (p *Poster) body(
	ctx context.Context,
	e *endpoint.Endpoint,
	updates []feed.Update,
) (body []byte, n int, err error) {
	if !e.Batch {
		updates = updates[:1]
	}
	var messages []json.RawMessage
	size, at := 0, time.Time{}
	for some := range slices.Chunk(updates, describedAtOnce) {
		told, err := p.tell.Describe(ctx, some)
		if err != nil {
			return nil, 0, err
		}
		for i := range told {
			u := &told[i]
			raw, err := json.Marshal(&endpoint.Message{Type: endpoint.TypeOf(u.State), Timestamp: u.At, Data: u})
			if err != nil {
				return nil, 0, err
			}
			if size += len(raw); size > maxBody && len(messages) > 0 {
				body, err = json.Marshal(&endpoint.Message{Type: endpoint.Batch, Timestamp: at, Data: messages})
				return body, len(messages), err
			}
			messages, at = append(messages, raw), u.At
		}
	}
	if !e.Batch {
		return messages[0], 1, nil
	}
	body, err = json.Marshal(&endpoint.Message{Type: endpoint.Batch, Timestamp: at, Data: messages})
	return body, len(messages), err
}
