package endpoints

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
)

// TestLags: updates that wait for an endpoint that fails are a lag of failing endpoints, until it accepts them or is
// disabled. Each post is counted.
func TestLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var up atomic.Bool
		answer := func(w http.ResponseWriter, _ int) {
			if up.Load() {
				w.WriteHeader(http.StatusNoContent)
			} else {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		back, gone := newReceiver(f, answer), newReceiver(f, status(http.StatusServiceUnavailable, 1<<30))
		f.endpoint(back, func(e *endpoint.Endpoint) { e.Ordered = true })
		f.publish(f.batch(2, nil), 1, models.Success, 1, 2)
		f.run("w", slices.Repeat([]time.Duration{50 * time.Millisecond}, 1000)...) // none is given up
		lag := func() (active, failing time.Duration) { return f.poster.Lags(time.Now()) }
		f.eventually(func() bool {
			active, failing := lag()
			return failing > 0 && active == 0
		})
		up.Store(true)
		f.eventually(func() bool { return len(back.accepted()) == 2 })
		f.eventually(func() bool {
			active, failing := lag()
			return failing == 0 && active == 0
		})
		e := f.endpoint(gone, nil)
		f.eventually(func() bool { _, failing := lag(); return failing > 0 })
		f.change(e, func(e *endpoint.Endpoint) { e.Disabled = &endpoint.Disabled{At: time.Now(), Why: "a test"} })
		f.eventually(func() bool { _, failing := lag(); return failing == 0 })
		require.Positive(t, f.count(ServerError))
		require.EqualValues(t, 2, f.count(Accepted))
	})
}

// TestOldestUpdateCounts: the backlog is as old as its oldest update, new or to be repeated.
func TestOldestUpdateCounts(t *testing.T) {
	t.Parallel()
	at := time.Now()
	r := round{state: endpoint.State{Failures: 1, Retries: []endpoint.Retry{
		{Part: endpoint.Part{Since: at}}, {Part: endpoint.Part{Since: at.Add(-time.Minute)}},
	}}}
	require.Equal(t, backlog{since: at.Add(-time.Minute), failing: true}, r.backlog(time.Time{}))
	require.Equal(t, at.Add(-time.Hour), r.backlog(at.Add(-time.Hour)).since)
	require.Equal(t, backlog{}, (&round{}).backlog(time.Time{}))
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]Class{
		200: Accepted, 204: Accepted, 302: Redirect, 404: ClientError, 410: ClientError, 500: ServerError, 503: ServerError,
	} {
		require.Equal(t, want, (&result{answer: outbound.Answer{Status: status}}).class(), status)
	}
	require.Equal(t, NoAnswer, (&result{err: http.ErrHandlerTimeout}).class())
}
