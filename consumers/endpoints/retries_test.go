package endpoints

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// retried returns the time before the retry of a post that was tried before and failed with an answer, and whether
// there is one.
func retried(tried int, a outbound.Answer) (after time.Duration, ok bool) {
	r := round{p: New(Config{Logger: slog.New(slog.DiscardHandler)}, nil, nil), e: &endpoint.Endpoint{}}
	at := time.Now()
	r.note(&endpoint.Post{Updates: []feed.Update{{Number: 1}}, Tried: tried}, &result{at: at, answer: a})
	if len(r.state.Retries) == 0 {
		return 0, false
	}
	return r.state.Retries[0].At.Sub(at), true
}

// TestRetryTimes: a post that fails is repeated nine times, after the times that are documented, up to a tenth longer,
// and not always by as much. It is not repeated before the time that the receiver names, up to a day.
func TestRetryTimes(t *testing.T) {
	t.Parallel()
	failed := outbound.Answer{Status: http.StatusServiceUnavailable}
	between := func(least time.Duration, tried int, a outbound.Answer) {
		t.Helper()
		seen := map[time.Duration]bool{}
		for range 50 {
			got, ok := retried(tried, a)
			require.True(t, ok)
			require.GreaterOrEqual(t, got, least)
			require.LessOrEqual(t, got, least+least/10)
			seen[got] = true
		}
		require.Greater(t, len(seen), 10, "repeats are spread")
	}
	documented := []time.Duration{
		5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute,
		time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
	for tried, least := range documented {
		between(least, tried, failed)
	}
	_, ok := retried(len(documented), failed)
	require.False(t, ok, "its retries are used up")
	between(time.Minute, 0, outbound.Answer{Status: http.StatusTooManyRequests, RetryAfter: time.Minute})
	between(30*time.Second, 1, outbound.Answer{Status: http.StatusTooManyRequests, RetryAfter: time.Second})
}

// TestDisabledAfterDays: an endpoint whose posts all fail is disabled after five days, and not before. One that accepts
// a post meanwhile is not.
func TestDisabledAfterDays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for since, want := range map[time.Duration]bool{
			5*24*time.Hour - time.Minute: false,
			5*24*time.Hour + time.Minute: true,
		} {
			for _, accepted := range []bool{false, true} {
				f := newFixture(t)
				e := f.endpoint(&receiver{url: "http://127.0.0.1:1"}, nil)
				r := round{p: f.newPoster("w"), e: e, state: endpoint.State{Failures: 9, FailingSince: time.Now().Add(-since)}}
				res := result{at: time.Now(), answer: outbound.Answer{Status: http.StatusOK}}
				if !accepted {
					res.err = errors.New("no answer")
				}
				r.note(&endpoint.Post{Updates: []feed.Update{{Number: 1}}}, &res)
				require.NoError(t, r.disable(t.Context()))
				got, err := endpoint.In(f.store).Get(t.Context(), f.user, e.ID)
				require.NoError(t, err)
				require.Equal(t, want && !accepted, !got.Enabled(), "%s %t", since, accepted)
				_, err = f.store.FeedHead(t.Context(), feed.Installation)
				if want && !accepted {
					require.Contains(t, got.Disabled.Why, "all posts have failed since 1999-12-26T23:59:00Z")
					require.NoError(t, err, "operators get a notice")
				} else {
					require.ErrorIs(t, err, models.ErrNotFound)
				}
			}
		}
	})
}
