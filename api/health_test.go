package api

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operate"
)

// TestProviders: the providers have the health that workers report.
func TestProviders(t *testing.T) {
	t.Parallel()
	type list struct{ Providers []operate.Provider }
	f := newFixture(t)
	l := read[list](f, "/v1/providers")
	require.Len(t, l.Providers, 2)
	require.Equal(t, "suspended", l.Providers[0].Health.State)
	require.Equal(t, int64(7), l.Providers[0].Worker.Calls)
	require.Nil(t, l.Providers[1].Health, "no worker has reported it")

	f = newFixture(t, func(s *setup) { s.names = nil })
	require.JSONEq(t, `{"providers": []}`, string(f.get("/v1/providers").Body))
	f.store.failing("Transients", func(int) error { return models.ErrUnavailable })
	require.Equal(t, "store_unavailable", f.get("/v1/providers").problem(t).Code)
}

// TestDamagedBatch: a damaged batch is answered with status 500 and without Retry-After, because
// a retry does not help.
func TestDamagedBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.store.failing("Batch", func(int) error { return models.ErrDamaged })
	r := f.get(batchPath(b.ID))
	require.Equal(t, http.StatusInternalServerError, r.Status)
	require.Equal(t, "stored_value_damaged", r.problem(t).Code)
	require.Empty(t, r.Header.Get("Retry-After"))
}

// unreachableBroker fails all calls.
type unreachableBroker struct{ models.Broker }

func (unreachableBroker) Ping(context.Context) error { return models.ErrUnavailable }

func (unreachableBroker) Publish(context.Context, ...models.Message) error {
	return models.ErrUnavailable
}

// TestReadiness: the readiness check names what is missing. A missing broker is no obstacle.
func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type ready struct {
			Status  string
			Missing []string
			Checks  map[string]string
		}
		f := newFixture(t, inBubble)
		require.JSONEq(t, `{"status": "ok"}`, string(f.get("/healthz", "Authorization", "").Body))
		require.Equal(
			t,
			ready{"ready", []string{}, map[string]string{"store": "ok", "broker": "ok", "providers": "ok",
				"no_notices": "no endpoint reports outages to operators"}},
			read[ready](f, "/readyz"),
		)
		pings := 0
		f = newFixture(t, inBubble)
		f.store.failing("Ping", func(n int) error { pings = n; return models.ErrUnavailable })
		for range 3 { // anyone may ask; the store is asked once a second
			f.get("/readyz", "Authorization", "")
			require.Equal(t, 1, pings)
		}
		r := f.get("/readyz", "Authorization", "")
		require.Equal(t, http.StatusServiceUnavailable, r.Status)
		require.JSONEq(
			t,
			`{
			"status": "not ready",
			"missing": ["store"],
			"checks": {"store": "unavailable", "broker": "ok", "providers": "ok"}
		}`,
			string(r.Body),
		)

		f = newFixture(t, inBubble, func(s *setup) {
			s.broker = func(b models.Broker) models.Broker { return unreachableBroker{b} }
		})
		got := read[ready](f, "/readyz")
		require.Equal(t, []string{"broker"}, got.Missing, "named, although batches are accepted")
		f.accepted(f.post(batchOf(t, `{}`)))

		f = newFixture(t, inBubble, func(s *setup) { s.names = nil })
		r = f.get("/readyz")
		require.Equal(t, http.StatusServiceUnavailable, r.Status)
		require.Contains(t, string(r.Body), `"missing":["providers"]`)
	})
}
