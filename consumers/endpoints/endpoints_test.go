package endpoints

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// TestUpdatesArePosted: an endpoint gets each update that it wants, signed, with what the sender has given along, and
// those that follow as they come.
func TestUpdatesArePosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		all, some := newReceiver(f, nil), newReceiver(f, nil)
		newsletter := f.batch(2, nil)
		receipt := f.batch(1, func(b *models.Batch) { b.Category = "receipt" })
		e := f.endpoint(all, func(e *endpoint.Endpoint) { e.Headers = map[string]string{"Authorization": "Bearer x"} })
		f.endpoint(some, func(e *endpoint.Endpoint) {
			e.Events, e.Categories = []string{client.LogFailed}, []string{"receipt"}
		})
		f.publish(newsletter, 1, models.Success, 1, 2)
		f.run("w")
		f.eventually(func() bool { return len(all.accepted()) == 2 })
		f.publish(receipt, 1, models.Success, 1)
		f.publish(newsletter, 1, models.Failed, 1)
		f.publish(receipt, 2, models.Failed, 1)
		f.eventually(func() bool { return len(all.accepted()) == 5 && len(some.accepted()) == 1 })

		first := all.got()[0]
		if first.updates[0].Log != newsletter.Log(1) { // several are posted at once
			first = all.got()[1]
		}
		require.Equal(t, "Bearer x", first.header.Get("Authorization"))
		require.Equal(t, []feed.Type{feed.Delivered}, first.types)
		require.Equal(t, feed.Described{
			Log: newsletter.Log(1), ID: "order-1", Number: 1, Batch: newsletter, State: models.Success, Provider: "sg",
			At: first.updates[0].At, Metadata: map[string]string{"run": "7", "customer": "1"}, Tags: []string{"a"},
		}, first.updates[0])
		require.Equal(t, []feed.Type{feed.Failed}, some.got()[0].types)
		require.Equal(t, 2, some.accepted()[0].Number)
		f.eventually(func() bool { return f.state(e).Posted == 5 })
	})
}

// TestEventsArePosted: an endpoint gets events only if it asks for them. Each post has an ID of its own, although an
// event and a change may have the same number.
func TestEventsArePosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		changes, opens, all := newReceiver(f, nil), newReceiver(f, nil), newReceiver(f, nil)
		f.endpoint(changes, nil)
		f.endpoint(opens, func(e *endpoint.Endpoint) { e.Events = []string{client.LogOpened} })
		f.endpoint(all, func(e *endpoint.Endpoint) { e.Events = []string{string(feed.All)} })
		b := f.batch(1, nil)
		f.publish(b, 1, models.Success, 1)
		for n, kind := range []models.EventKind{models.Opened, models.Clicked, models.Complained, models.Unsubscribed} {
			f.happen(b, models.FeedChange{Event: kind, Provider: "sg", Number: n + 1, Recipients: models.SetOf(1)})
		}
		f.publish(b, 2, models.Failed, 1)
		require.NoError(t, f.store.AppendFeed(t.Context(), f.user, models.FeedEntry{
			Number: f.head + 1, Token: models.NewToken(), At: time.Now().UTC(),
			Chunks: []models.FeedChunk{{Chunk: b, Version: 9, Ended: 1, Done: 1}},
		}))
		f.run("w")
		f.eventually(func() bool {
			return len(changes.accepted()) == 2 && len(opens.accepted()) == 1 && len(all.accepted()) == 7
		})
		require.Equal(t, []feed.Type{feed.Opened}, opens.got()[0].types)
		opened := opens.accepted()[0]
		require.Equal(t, models.Opened, opened.Event)
		require.Empty(t, opened.State)
		require.Equal(t, "1", opened.Metadata["customer"])
		ids := map[string]bool{}
		for _, p := range all.got() {
			ids[p.id] = true
		}
		require.Len(t, ids, 7)
		var types []feed.Type
		for _, p := range all.got() {
			types = append(types, p.types...)
		}
		require.Subset(t, types, []feed.Type{feed.Complained, feed.Unsubscribed})
		require.True(t, slices.ContainsFunc(all.got(), func(p received) bool {
			return p.types[0] == feed.BatchDone && p.updates[0].Batch == b && p.updates[0].Log.IsZero()
		}))
	})
}

// TestBatchesOfUpdates: an endpoint may get up to a thousand updates in one post.
func TestBatchesOfUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		f.endpoint(r, func(e *endpoint.Endpoint) { e.Batch = true })
		for range 3 {
			b := f.batch(900, nil)
			recipients := make([]int, 900)
			for i := range recipients {
				recipients[i] = i + 1
			}
			f.publish(b, 1, models.Success, recipients...)
		}
		f.run("w")
		f.eventually(func() bool { return len(r.accepted()) == 2700 })
		require.Len(t, r.got(), 3)
		logs := map[models.ID]bool{}
		for _, v := range r.accepted() {
			logs[v.Log] = true
		}
		require.Len(t, logs, 2700)
	})
}

// TestLargeMetadata: updates with much metadata are posted in batches of a megabyte.
func TestLargeMetadata(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		f.endpoint(r, func(e *endpoint.Endpoint) { e.Batch = true })
		b := f.batch(200, func(b *models.Batch) {
			for i := range 50 {
				b.Metadata[fmt.Sprint(i)] = strings.Repeat("x", 500)
			}
		})
		recipients := make([]int, 200)
		for i := range recipients {
			recipients[i] = i + 1
		}
		f.publish(b, 1, models.Success, recipients...)
		f.run("w")
		f.eventually(func() bool { return len(r.accepted()) == 200 })
		require.Greater(t, len(r.got()), 4)
		logs := map[models.ID]bool{}
		for _, p := range r.got() {
			require.LessOrEqual(t, len(p.updates), 40)
			for _, u := range p.updates {
				logs[u.Log] = true
			}
		}
		require.Len(t, logs, 200)
	})
}

// TestFailedPostIsRepeated: a post that is refused, redirected or not answered in time is repeated with the same ID.
// Other posts go on meanwhile.
func TestFailedPostIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, func(w http.ResponseWriter, n int) {
			switch n {
			case 1:
				w.WriteHeader(http.StatusInternalServerError)
			case 2:
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(http.StatusFound)
			case 3:
				panic(http.ErrAbortHandler) // the connection is closed
			default:
				w.WriteHeader(http.StatusAccepted)
			}
		})
		e := f.endpoint(r, nil)
		b := f.batch(3, nil)
		f.publish(b, 1, models.Success, 1, 2, 3)
		f.run("w")
		f.eventually(func() bool { return len(r.accepted()) == 3 && f.state(e).Posted == 3 })
		ids := map[string]bool{}
		for _, p := range r.got() {
			ids[p.id] = true
		}
		require.Len(t, r.got(), 6)
		require.Len(t, ids, 3)
		s := f.state(e)
		require.Empty(t, s.Retries)
		require.Zero(t, s.Failures)
		require.Len(t, s.Attempts, 6)
		require.Equal(t, 1, s.Attempts[0].Tried)
	})
}

// TestGivenUp: a post whose retries are used up is counted, and what follows is posted.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, status(http.StatusBadRequest, 3))
		e := f.endpoint(r, func(e *endpoint.Endpoint) { e.Ordered = true })
		b := f.batch(2, nil)
		f.publish(b, 1, models.Success, 1, 2)
		f.run("w", time.Millisecond, time.Millisecond)
		f.eventually(func() bool { return len(r.accepted()) == 1 && f.state(e).Posted == 1 })
		require.EqualValues(t, 1, f.state(e).GivenUp)
		for i, p := range r.got() { // in order: the second waited for the first
			require.Equal(t, b.Log(1+i/3), p.updates[0].Log)
		}
	})
}

// TestFailingEndpointGetsFewPosts: an endpoint that fails all the time gets its retries instead of all updates, and
// all of them when it is back. Another endpoint is not delayed.
func TestFailingEndpointGetsFewPosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var back atomic.Bool
		down, up := newReceiver(f, func(w http.ResponseWriter, _ int) {
			if !back.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}), newReceiver(f, nil)
		e := f.endpoint(down, nil)
		f.endpoint(up, nil)
		b := f.batch(500, nil)
		recipients := make([]int, 500)
		for i := range recipients {
			recipients[i] = i + 1
		}
		f.publish(b, 1, models.Failed, recipients...)
		f.run("w", time.Hour)
		f.eventually(func() bool { return len(up.accepted()) == 500 && len(f.state(e).Retries) == endpoint.DefaultAtOnce })
		require.Len(t, down.got(), endpoint.DefaultAtOnce)
		back.Store(true)
		f.change(e, func(e *endpoint.Endpoint) { // its user enables it again, so that retries are made at once
			e.Replay = nil
			e.Generation++
		})
		f.eventually(func() bool { return len(down.accepted()) == 500 })
	})
}

// TestAllGivenUp: an endpoint that has failed for so long that no retry is left gets new posts.
func TestAllGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, status(http.StatusInternalServerError, 24))
		e := f.endpoint(r, nil)
		b := f.batch(9, nil)
		f.publish(b, 1, models.Success, 1, 2, 3, 4, 5, 6, 7, 8)
		f.run("w", time.Millisecond, time.Millisecond)
		f.eventually(func() bool { return f.state(e).GivenUp == 8 })
		f.publish(b, 1, models.Success, 9)
		f.eventually(func() bool { return len(r.accepted()) == 1 })
		require.Equal(t, b.Log(9), r.accepted()[0].Log)
	})
}

// TestGone: an endpoint that answers 410 gets nothing more until it is enabled again, and its user and operators are
// published. Then it gets what it missed.
func TestGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, status(http.StatusGone, 1))
		e := f.endpoint(r, nil)
		others, operators := newReceiver(f, nil), newReceiver(f, nil)
		b := f.batch(2, nil)
		f.publish(b, 1, models.Success, 1)
		f.endpoint(others, func(e *endpoint.Endpoint) { e.Replay = &feed.Position{Entry: 1} })
		f.endpoint(operators, func(e *endpoint.Endpoint) { e.Owner = feed.Installation })
		f.run("w")
		disabled := func() *endpoint.Disabled {
			e, err := endpoint.In(f.store).Get(t.Context(), f.user, e.ID)
			require.NoError(t, err)
			return e.Disabled
		}
		f.eventually(func() bool {
			return disabled() != nil && len(others.accepted()) == 1 && len(operators.accepted()) == 1
		})
		require.Equal(t, feed.EndpointDisabled, others.got()[0].types[0])
		published := others.accepted()[0].Endpoint
		require.Equal(t, []string{e.ID, "it answered 410: the address is gone"}, []string{published.ID, published.Why})
		require.Equal(t, published, operators.accepted()[0].Endpoint)
		require.Equal(t, f.user, operators.accepted()[0].User)
		f.head++ // that is an entry of the feed
		f.publish(b, 1, models.Success, 2)
		require.Contains(t, disabled().Why, "410")
		f.change(e, func(e *endpoint.Endpoint) {
			e.Disabled, e.Replay = nil, nil
			e.Generation++
		})
		f.eventually(func() bool { return len(r.accepted()) == 3 })
		f.change(e, func(e *endpoint.Endpoint) {
			e.Replay = &feed.Position{}
			e.Generation++
		})
		f.eventually(func() bool { return len(r.accepted()) == 6 })
	})
}

// TestPostIsMadeAgain: a post that was made is made again with the same ID if its user asks for it, and no other is. A
// retry that waits is made once, and at once.
func TestPostIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, status(http.StatusInternalServerError, 1))
		e := f.endpoint(r, func(e *endpoint.Endpoint) { e.AtOnce = 1 })
		b := f.batch(3, nil)
		f.publish(b, 1, models.Success, 1, 2, 3)
		f.run("w", time.Hour)
		f.eventually(func() bool { return len(f.state(e).Attempts) == 3 })
		s := f.state(e) // the newest attempt is the first
		f.change(e, func(e *endpoint.Endpoint) {
			e.Replay, e.Again = nil, []endpoint.Part{s.Attempts[1].Part, s.Attempts[2].Part}
			e.Generation++
		})
		f.eventually(func() bool { return f.state(e).Posted == 4 })
		var ids []string
		for _, p := range r.got() {
			ids = append(ids, p.id)
		}
		require.ElementsMatch(t, append(ids[:3:3], ids[0], ids[1]), ids)
		require.Empty(t, f.state(e).Retries)
	})
}

// TestChangedWhileRetrying: what failed is posted, although its user has asked for others meanwhile.
func TestChangedWhileRetrying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, batch := range []bool{false, true} {
			f := newFixture(t)
			r := newReceiver(f, status(http.StatusInternalServerError, 1))
			e := f.endpoint(r, func(e *endpoint.Endpoint) {
				e.Batch, e.Ordered, e.Events = batch, true, []string{client.LogFailed}
			})
			b := f.batch(6, nil)
			f.publish(b, 1, models.Success, 1, 2)
			f.publish(b, 1, models.Failed, 3, 4)
			f.publish(b, 1, models.Success, 5)
			f.publish(b, 1, models.Failed, 6)
			f.run("w", time.Hour)
			f.eventually(func() bool { return len(f.state(e).Retries) == 1 })
			f.change(e, func(e *endpoint.Endpoint) {
				e.Batch, e.Events, e.Replay = !batch, nil, nil
				e.Generation++
			})
			got := map[models.ID]bool{}
			f.eventually(func() bool {
				for _, u := range r.accepted() {
					got[u.Log] = true
				}
				return got[b.Log(3)] && got[b.Log(4)] && got[b.Log(6)]
			})
		}
	})
}

// TestDisabledUser: nothing is posted for a user who is disabled, while others get their posts, and all that was
// published meanwhile when that is over.
func TestDisabledUser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r, other := newReceiver(f, nil), newReceiver(f, nil)
		f.endpoint(r, nil)
		b := f.batch(1, nil)
		f.publish(b, 1, models.Success, 1)
		f.disabled.Store(f.user)
		// Endpoints are looked through in the order of their users.
		f.user, f.head = f.user+"0", 0
		f.endpoint(other, nil)
		b = f.batch(3, nil)
		f.run("w")
		for n := range 3 {
			f.publish(b, 1, models.Success, n+1)
			f.eventually(func() bool { return len(other.accepted()) == n+1 })
		}
		require.Empty(t, r.got())
		f.disabled.Store("")
		f.eventually(func() bool { return len(r.accepted()) == 1 })
	})
}

// TestDisabledEndpoint: an endpoint gets no posts while it is disabled, and what was published meanwhile when it is
// enabled again.
func TestDisabledEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		e := f.endpoint(r, nil)
		b := f.batch(2, nil)
		f.run("w")
		f.publish(b, 1, models.Success, 1)
		f.eventually(func() bool { return len(r.accepted()) == 1 })
		f.change(e, func(e *endpoint.Endpoint) { e.Disabled = &endpoint.Disabled{} })
		time.Sleep(time.Minute)
		f.publish(b, 1, models.Success, 2)
		time.Sleep(time.Minute)
		require.Len(t, r.got(), 1)
		f.change(e, func(e *endpoint.Endpoint) { e.Disabled = nil })
		f.eventually(func() bool { return len(r.accepted()) == 2 })
	})
}

// TestNothingIsMissed: through failures, workers that stop at any time and two that run at once, every update is
// posted, and a repeat has the number of the update.
func TestNothingIsMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, many := range []bool{false, true} {
			f := newFixture(t)
			r := newReceiver(f, func(w http.ResponseWriter, _ int) {
				if rand.IntN(4) == 0 {
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			f.endpoint(r, func(e *endpoint.Endpoint) { e.Batch = many })
			delays := slices.Repeat([]time.Duration{time.Millisecond}, 20) // none is given up
			stop := f.run("other", delays...)
			want := map[models.ID]int{}
			for round := range 10 {
				b := f.batch(20, nil)
				stopThis := f.run(fmt.Sprint("w", round), delays...)
				for i := range 20 {
					f.publish(b, 1, models.Success, i+1)
					want[b.Log(i+1)]++
				}
				if round%3 == 0 {
					stop()
					stop = stopThis
					continue
				}
				stopThis()
			}
			f.eventually(func() bool {
				got := map[models.ID]bool{}
				for _, v := range r.accepted() {
					require.Equal(t, 1, v.Number)
					got[v.Log] = true
				}
				return len(got) == len(want)
			})
			stop()
		}
	})
}
