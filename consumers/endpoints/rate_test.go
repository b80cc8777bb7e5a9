package endpoints

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// mailed returns a round of an endpoint whose posts are handed to a function, and n posts.
func mailed(settings client.EndpointSettings, n int, take func()) (round, []endpoint.Post) {
	e := &endpoint.Endpoint{EndpointSettings: settings}
	e.Format = client.FormatMail
	p := New(Config{
		Mailer: func(context.Context, *endpoint.Endpoint, string, []byte) (string, error) {
			take()
			return "", nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}, nil, nil)
	posts := make([]endpoint.Post, n)
	for i := range posts {
		posts[i].Updates = []feed.Update{{Number: i + 1}}
	}
	return round{p: p, e: e, pace: rate.NewLimiter(limitOf(e), 1), until: time.Now().Add(roundTime)}, posts
}

// TestRate: an endpoint gets no more posts per second than it asks for, also over two rounds.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var at []time.Time
		r, posts := mailed(client.EndpointSettings{Rate: 5}, 100, func() {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
		})
		made := 0
		for range 2 {
			r.until = time.Now().Add(roundTime)
			results := r.send(t.Context(), posts[made:])
			for i := range results {
				if !results[i].at.IsZero() {
					made++
				}
			}
		}
		require.Equal(t, 31, made, "15 a round, and the first at once")
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), 200*time.Millisecond)
		}
	})
}

// TestLateRoundMakesOnePost: a round that needed all of its time to compose posts makes one of them, and no other.
func TestLateRoundMakesOnePost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, settings := range []client.EndpointSettings{{}, {Rate: 5}, {Ordered: true}} {
			var made atomic.Int64
			r, posts := mailed(settings, 30, func() { made.Add(1) })
			time.Sleep(2 * roundTime)
			for range 2 {
				r.send(t.Context(), posts)
				require.EqualValues(t, 1, made.Load())
			}
		}
	})
}

// TestRateOfRound: a round has the rate that its endpoint has now.
func TestRateOfRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		f.publish(f.batch(1, nil), 1, models.Failed, 1)
		one := round{p: f.newPoster("w"), e: f.endpoint(r, nil), pace: rate.NewLimiter(1, 1)}
		_, err := one.run(t.Context())
		require.NoError(t, err)
		require.Greater(t, one.pace.Limit(), rate.Limit(1_000_000))
		one.e.Rate = 7
		_, err = one.run(t.Context())
		require.NoError(t, err)
		require.Equal(t, 7, int(one.pace.Limit()))
		require.Len(t, r.got(), 1)
	})
}

// TestAtOnce: an endpoint gets no more posts at the same time than it asks for, and if they are to be in order, one.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	for want, settings := range map[int]client.EndpointSettings{10: {}, 3: {AtOnce: 3}, 1: {Ordered: true}} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			running, most := 0, 0
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				running += n
				most = max(most, running)
			}
			r, posts := mailed(settings, 30, func() {
				count(1)
				time.Sleep(time.Millisecond)
				count(-1)
			})
			r.send(t.Context(), posts)
			require.Equal(t, want, most)
		})
	}
}

// TestRateOfRetries: retries that the rate does not allow in a round stay, and nothing is counted of them.
func TestRateOfRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		r := newReceiver(f, nil)
		e := f.endpoint(r, nil)
		f.publish(f.batch(3, nil), 1, models.Failed, 1, 2, 3)
		one := round{p: f.newPoster("w"), e: e, pace: rate.NewLimiter(rate.Every(time.Hour), 1),
			until: time.Now().Add(time.Minute)}
		for i := range 3 {
			one.state.Retries = append(one.state.Retries, endpoint.Retry{
				Part: endpoint.Part{From: feed.Position{Skip: i}, To: feed.Position{Skip: i + 1}}, Tried: 1,
			})
		}
		tried, err := one.retry(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, tried)
		require.Len(t, r.got(), 1)
		require.Len(t, one.state.Retries, 2)
		require.Len(t, one.state.Attempts, 1)
		require.Equal(t, feed.Position{Skip: 1}, one.state.Retries[0].From)
	})
}
