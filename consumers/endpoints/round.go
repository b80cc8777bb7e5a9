package endpoints

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// A round makes the posts to an endpoint that are due, and stores how far it came.
type round struct {
	p     *Poster
	e     *endpoint.Endpoint
	state endpoint.State
	all   *everyone // of an endpoint of everyone's mail; else nil
	pace  *rate.Limiter
	until time.Time // no further post begins after it
	begun bool      // a post has begun
	waits time.Time // when the first new update was written that waits; zero: none does
	made  int       // posts to an endpoint of everyone's mail
}

// result is the result of a post, which was not made if at is zero.
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
	r.pace.SetLimit(limitOf(r.e)) // its user may have changed it
	tried, err := r.retry(ctx)
	if err != nil {
		return next, err
	}
	more := false
	var failed error // what was posted before is stored all the same: otherwise the receiver would get it again
	if r.mayPost(ctx) {
		postNew := r.postNew
		if r.all != nil {
			postNew = r.postOfAll
		}
		more, failed = postNew(ctx)
	}
	if failed == nil {
		r.p.noteBacklog(r.e.Key(), r.backlog(r.waits))
	}
	if r.made > 0 || tried > 0 || r.state.Next != before || version == 0 {
		// If this fails, all of the round is posted again.
		if err := endpoint.PutState(context.WithoutCancel(ctx), r.p.store, r.e, &r.state, version); err != nil {
			return next, err
		}
	}
	if r.all != nil { // after the state, which has the retries
		if err := r.all.cursors.Put(context.WithoutCancel(ctx), r.p.store, r.e); err != nil {
			return next, err
		}
	}
	if failed != nil {
		return next, failed
	}
	if err := r.disable(ctx); err != nil {
		return next, err
	}
	now := time.Now()
	if more && r.free() > 0 {
		return now, nil
	}
	next = now.Add(max(idleRound, r.p.cfg.Poll))
	if r.all != nil {
		next = now.Add(r.all.pause())
	}
	for i := range r.state.Retries {
		next = models.EarlierOf(next, r.state.Retries[i].At)
	}
	return next, nil
}

// mayPost reports whether new posts may be made.
func (r *round) mayPost(ctx context.Context) bool { return r.free() > 0 && ctx.Err() == nil }

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
	most := r.e.Width()
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
	posts, of := make([]endpoint.Post, 0, len(due)), make([]endpoint.Retry, 0, len(due))
	for _, t := range due {
		p, rest, err := r.p.compose.Again(ctx, r.e, t.Part)
		if err != nil {
			return 0, err
		}
		if rest != nil {
			kept = append(kept, endpoint.Retry{Part: *rest, Tried: t.Tried, At: t.At})
		}
		if p == nil {
			r.state.GivenUp++ // its updates are not kept any more, or not wanted
			continue
		}
		p.Tried, t.To = t.Tried, p.End()
		posts, of = append(posts, *p), append(of, t)
	}
	results := r.send(ctx, posts)
	for i := range posts {
		if results[i].at.IsZero() { // the round is over
			kept = append(kept, of[i])
		}
	}
	r.state.Retries = kept
	for i := range posts {
		if !results[i].at.IsZero() {
			r.note(&posts[i], &results[i])
		}
	}
	return len(due), nil
}

// postNew posts updates that were not posted before, and reports whether there are more.
func (r *round) postNew(ctx context.Context) (more bool, err error) {
	limit := min(pageUpdates, r.free())
	if r.e.Batch {
		limit = endpoint.MaxBatch
	}
	page, err := r.p.compose.Read(ctx, r.e, r.e.Owner, r.state.Next, limit)
	if errors.Is(err, feed.ErrExpired) {
		r.p.log.Warn("updates were removed before they could be posted", "endpoint", r.e.ID, "user_id", r.e.Owner)
		r.state.Next = feed.Begin
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for left := page.Updates; len(left) > 0; {
		posts, err := r.p.compose.Compose(ctx, r.e, endpoint.Part{From: r.state.Next, Batch: r.e.Batch}, left)
		if err != nil {
			return false, err
		}
		results := r.send(ctx, posts)
		for i := range posts {
			if results[i].at.IsZero() { // the round is over
				r.waits = left[0].At
				return true, nil
			}
			r.note(&posts[i], &results[i])
			r.state.Next = posts[i].End()
			left = left[len(posts[i].Updates):]
		}
		if len(left) > 0 && !r.mayPost(ctx) {
			r.waits = left[0].At
			return true, nil
		}
	}
	if r.state.Next = page.Next; page.More {
		r.waits = page.Next.Complete
	}
	return page.More, nil
}

// send makes posts, some at once, in their order. It makes no further ones when the round is over, when the rate allows
// none within it, when several failed one after the other, or when ctx has ended. A round makes one post at least: a
// machine that needs all of its time to compose posts would otherwise never make one.
func (r *round) send(ctx context.Context, posts []endpoint.Post) []result {
	out := make([]result, len(posts))
	width := r.e.Width()
	failures := r.state.Failures
	for from := 0; from < len(posts); from += width {
		if r.begun && time.Now().After(r.until) || failures >= maxFailures && from > 0 ||
			r.e.Ordered && failures > r.state.Failures {
			return out
		}
		some := posts[from:min(from+width, len(posts))]
		made := r.sendSome(ctx, some, out[from:])
		for i := from; i < from+made; i++ {
			if failures++; out[i].ok() {
				failures = 0
			} else if ctx.Err() != nil && out[i].err != nil {
				out[i] = result{} // it may have failed because of that
			}
		}
		if made < len(some) {
			return out
		}
	}
	return out
}

// sendSome makes posts at once, and returns how many of them the rate allows within the round. Those without an answer
// when ctx ends have LastPosts for their answers: otherwise the receiver would get them again.
func (r *round) sendSome(ctx context.Context, posts []endpoint.Post, out []result) (made int) {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.p.cfg.LastPosts, cancel) })()
	var g errgroup.Group
	for ; made < len(posts) && r.turn(ctx); made++ {
		i := made
		r.begun = true
		g.Go(func() error {
			out[i] = r.sendOne(sending, posts[i].ID(r.e), posts[i].Body)
			return nil
		})
	}
	_ = g.Wait() // never an error
	return made
}

// turn waits until the rate of the endpoint allows another post. It returns false if that is after the round.
func (r *round) turn(ctx context.Context) bool {
	now := time.Now()
	t := r.pace.ReserveN(now, 1)
	wait := t.DelayFrom(now)
	if (r.begun || wait > 0) && now.Add(wait).After(r.until) {
		t.CancelAt(now)
		return false
	}
	select {
	case <-time.After(wait):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (r *round) sendOne(ctx context.Context, id string, body []byte) result {
	out := result{at: time.Now()}
	if r.e.Format == client.FormatMail {
		out.answer.Body, out.err = r.p.cfg.Mailer(ctx, r.e, id, body)
		out.answer.Status, out.answer.Took = http.StatusAccepted, time.Since(out.at)
		return out
	}
	header, body := r.e.Request(id, out.at, body)
	out.answer, out.err = r.p.cfg.Client.Post(ctx, r.e.URL, header, body)
	return out
}

// note records the result of a post.
func (r *round) note(p *endpoint.Post, res *result) {
	r.p.cfg.Posted(res.class())
	s, part := &r.state, p.Part(r.e)
	a := endpoint.Attempt{
		At: res.at.UTC(), Post: p.ID(r.e), Updates: len(p.Updates), Tried: p.Tried, Part: part,
		Status: res.answer.Status, Answer: models.Clip(res.answer.Body), Took: res.answer.Took.Milliseconds(),
	}
	if res.err != nil {
		a.Answer = models.Clip(res.err.Error())
	}
	if !p.Batch {
		u := &p.Updates[0]
		if a.Type = u.Type(); u.Log.Recipient() > 0 {
			a.Log = u.Log.String()
		}
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
	if p.Tried >= len(delays) {
		s.GivenUp++
		return
	}
	delay := max(delays[p.Tried], res.answer.RetryAfter)
	delay += time.Duration(rand.Int64N(int64(delay)/10 + 1)) //nolint:gosec // spread, no secret
	s.Retries = append(s.Retries, endpoint.Retry{Part: part, Tried: p.Tried + 1, At: res.at.Add(delay).UTC()})
}

// disable disables the endpoint if it says that it is gone, or if it has failed for days.
func (r *round) disable(ctx context.Context) error {
	var why string
	switch since := r.state.FailingSince; {
	case r.state.Gone:
		why = (&endpoint.Attempt{Status: http.StatusGone}).Words()
	case !since.IsZero() && time.Since(since) > maxFailing:
		why = fmt.Sprintf("all posts have failed since %s", since.Format(time.RFC3339))
	default:
		return nil
	}
	now, err := endpoint.In(r.p.store).Get(ctx, r.e.Owner, r.e.ID)
	if errors.Is(err, models.ErrNotFound) || err == nil && (now.Generation != r.e.Generation || !now.Enabled()) {
		return nil // its user has changed or removed it meanwhile
	}
	if err != nil {
		return err
	}
	r.p.log.Warn("endpoint disabled", "endpoint", r.e.ID, "user_id", r.e.Owner, "why", why)
	user := r.e.Owner
	if user == feed.Installation {
		user = ""
	}
	// The notice comes first: a worker that is killed in between publishes it again.
	err = feed.EndpointIsDisabled(ctx, r.p.store, user, models.FailedEndpoint{
		ID: r.e.ID, Why: why, Since: r.state.FailingSince,
	})
	if err != nil {
		return err
	}
	_, err = endpoint.In(r.p.store).Change(ctx, r.e.Owner, r.e.ID, func(e *endpoint.Endpoint) error {
		if e.Generation == r.e.Generation && e.Enabled() { // otherwise its user has changed it meanwhile
			e.Disabled = &endpoint.Disabled{At: time.Now().UTC(), Why: why}
		}
		return nil
	})
	if errors.Is(err, models.ErrNotFound) {
		return nil // it was removed
	}
	return err
}
