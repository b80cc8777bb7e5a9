package endpoints

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// newUser stores a user, and makes batch and publish use the user's mail.
func (f *fixture) newUser(name string) string {
	f.t.Helper()
	u := models.User{ID: models.NewUserID(), Name: name}
	require.NoError(f.t, f.store.CreateUser(f.t.Context(), u))
	f.user, f.head = u.ID, 0
	return u.ID
}

// as makes batch and publish use the mail of a user.
func (f *fixture) as(user string) *fixture {
	f.t.Helper()
	f.user, f.head = user, 0
	if head, err := f.store.FeedHead(f.t.Context(), user); err == nil {
		f.head = head.Number
	}
	return f
}

// everyonesMail makes an endpoint one of everyone's mail from now on.
func everyonesMail(e *endpoint.Endpoint) {
	e.Owner, e.Everyone = feed.Installation, true
	e.Start = endpoint.Start{At: time.Now(), Generation: 1}
}

// TestEveryonesUpdates: an endpoint of everyone's mail gets the updates of all users after its creation, with their
// user, also of later users. Another worker goes on where one stopped. A replay posts all since a time.
func TestEveryonesUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ann, bob := f.newUser("ann"), f.newUser("bob")
		f.as(ann)
		old := f.batch(1, nil)
		f.publish(old, 1, models.Success, 1)
		time.Sleep(time.Millisecond) // the endpoints are newer
		r, tagged := newReceiver(f, nil), newReceiver(f, nil)
		e := f.endpoint(r, everyonesMail)
		f.endpoint(tagged, func(e *endpoint.Endpoint) {
			everyonesMail(e)
			e.Tags, e.Batch = []string{"b"}, true
		})
		want := map[models.ID]string{}
		publish := func(user, tag string, n int) {
			t.Helper()
			b := f.as(user).batch(n, func(b *models.Batch) { b.Content.Tags = []string{tag} })
			for i := range n {
				f.publish(b, 1, models.Failed, i+1)
				want[b.Log(i+1)] = user
			}
		}
		publish(ann, "a", 70)
		publish(bob, "b", 3)
		require.NoError(t, feed.Announce(t.Context(), f.store, func(*feed.Status) []models.Notice {
			return []models.Notice{{Kind: models.FailoverStarted}}
		}))
		stop := f.run("w")
		f.eventually(func() bool { return maps.Equal(r.users(0), want) && len(tagged.users(0)) == 3 })
		cat := f.newUser("cat")
		publish(cat, "b", 2)
		f.eventually(func() bool { return maps.Equal(r.users(0), want) && len(tagged.users(0)) == 5 })
		stop()
		publish(ann, "a", 1)
		publish(cat, "a", 1)
		stop = f.run("v")
		f.eventually(func() bool { return maps.Equal(r.users(0), want) })
		for _, p := range tagged.got() {
			for _, u := range p.updates {
				require.Equal(t, p.updates[0].User, u.User, "a post has updates of one user")
			}
		}
		stop()

		f.user = feed.Installation
		f.change(e, func(e *endpoint.Endpoint) {
			e.Generation++
			e.Replay, e.Start = &feed.Position{}, endpoint.Start{Generation: e.Generation}
		})
		before := len(r.got())
		want[old.Log(1)] = ann
		f.run("w")
		f.eventually(func() bool { return maps.Equal(r.users(before), want) })
	})
}

// users returns the logs that the accepted posts from a number on are about, and their users.
func (r *receiver) users(from int) map[models.ID]string {
	out := map[models.ID]string{}
	for _, p := range r.got()[from:] {
		for _, u := range p.updates {
			if p.status/100 == 2 {
				out[u.Log] = u.User
			}
		}
	}
	return out
}

// TestFailingEveryone: while an endpoint of everyone's mail fails, one post at a time is tried, whosever it is. Then
// all come, and no post is lost or has another ID.
func TestFailingEveryone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, status(http.StatusServiceUnavailable, 12))
		f.endpoint(r, everyonesMail)
		want := 0
		for i := range 8 {
			f.newUser(fmt.Sprint("user", i))
			f.publish(f.batch(3, nil), 1, models.Success, 1, 2, 3)
			want += 3
		}
		delays := make([]time.Duration, 20)
		for i := range delays {
			delays[i] = 20 * time.Millisecond
		}
		f.run("w", delays...)
		f.eventually(func() bool { return len(r.accepted()) == want })
		ids, logs := map[string]string{}, map[models.ID]bool{}
		for _, p := range r.got() {
			log := p.updates[0].Log.String()
			require.Equal(t, log, cmp.Or(ids[p.id], log))
			ids[p.id] = log
		}
		for _, u := range r.accepted() {
			logs[u.Log] = true
			require.NotEmpty(t, u.User)
		}
		require.Len(t, ids, want)
		require.Len(t, logs, want)
	})
}

// forgetful is a store whose worker is killed each time before it stores cursors, a few times.
type forgetful struct {
	models.Store
	left atomic.Int32
}

func (s *forgetful) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	if kind == "endpoint_cursors" && s.left.Add(-1) >= 0 {
		return models.ErrUnavailable
	}
	return s.Store.PutDocument(ctx, owner, kind, d)
}

// TestKilledEveryone: a worker is killed after it has posted and before it has stored its position. Its posts are
// repeated with their IDs, and none is lost, also of those that wait for a retry.
func TestKilledEveryone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		store := &forgetful{Store: f.store}
		store.left.Store(3)
		f.store = store
		r := newReceiver(f, status(http.StatusServiceUnavailable, 2))
		f.endpoint(r, everyonesMail)
		for i := range 4 {
			f.newUser(fmt.Sprint("user", i))
			f.publish(f.batch(5, nil), 1, models.Success, 1, 2, 3, 4, 5)
		}
		f.run("w")
		logs := map[models.ID]bool{}
		f.eventually(func() bool {
			for _, u := range r.accepted() {
				logs[u.Log] = true
			}
			return len(logs) == 20 && store.left.Load() < 0
		})
		posts := map[models.ID]string{}
		for _, p := range r.got() {
			log := p.updates[0].Log
			if posts[log] == "" {
				posts[log] = p.id
			}
			require.Equal(t, posts[log], p.id)
		}
		require.Greater(t, len(r.got()), 22, "some were repeated")
	})
}

// unread is a store in which the feed of a user cannot be read for the first time after something has happened.
type unread struct {
	models.Store
	user  string
	after func() bool
	once  sync.Once
}

func (s *unread) Feed(ctx context.Context, user string, after, limit int) (found []models.FeedEntry, err error) {
	if user == s.user && s.after() {
		s.once.Do(func() { err = models.ErrUnavailable })
	}
	if err != nil {
		return nil, err
	}
	return s.Store.Feed(ctx, user, after, limit)
}

// TestFailedReadRepeatsNoPost: what was posted in a round is not posted again if the round ends because a later read
// fails.
func TestFailedReadRepeatsNoPost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		f.endpoint(r, everyonesMail)
		f.newUser("ann")
		b := f.batch(collected, nil)
		for n := range collected {
			f.publish(b, 1, models.Success, n+1)
		}
		f.store = &unread{Store: f.store, user: f.newUser("bob"), after: func() bool { return len(r.got()) > 0 }}
		f.publish(f.batch(1, nil), 1, models.Success, 1)
		f.run("w")
		f.eventually(func() bool { return len(r.users(0)) == collected+1 })
		require.Len(t, r.got(), collected+1)
	})
}

// TestManyUsers: with more users than a round looks at, all are posted, and the cursors are a few documents.
func TestManyUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		e := f.endpoint(r, everyonesMail)
		const users = 2*feedsOfRound + 100
		for i := range users {
			f.newUser(fmt.Sprintf("user%05d", i))
			if i%100 == 0 {
				f.publish(f.batch(1, nil), 1, models.Success, 1)
			}
		}
		f.run("w")
		f.eventually(func() bool { return len(r.accepted()) == users/100 })
		f.eventually(func() bool {
			cursors, err := endpoint.CursorsOf(t.Context(), f.store, e)
			require.NoError(t, err)
			_, ok := cursors.Of(f.user)
			return ok
		})
		require.NoError(t, endpoint.Remove(t.Context(), f.store, e))
		cursors, err := endpoint.CursorsOf(t.Context(), f.store, e)
		require.NoError(t, err)
		_, ok := cursors.Of(f.user)
		require.False(t, ok)
	})
}
