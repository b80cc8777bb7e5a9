package consumers

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// application gets posts, and verifies them with the library of Standard Webhooks.
type application struct {
	r      *rig
	verify func(body []byte, h http.Header) error
	noted  func() int64 // posts that the worker has stored as accepted

	mu    sync.Mutex
	posts []update
	ids   []string
}

// update is what the tests look at of a post.
type update struct {
	Type feed.Type
	Data struct {
		Log       models.ID
		Provider  string
		Count     int64
		User      string
		Delivered int64
		Number    int
	}
}

// newApplication stores an endpoint of a user, or of the installation.
func newApplication(r *rig, owner string, events ...string) *application {
	r.t.Helper()
	secret := endpoint.NewSecret(client.SignatureHMAC)
	w, err := standardwebhooks.NewWebhook(secret.String())
	require.NoError(r.t, err)
	a := &application{r: r, verify: w.Verify}
	serve := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the sender was stopped
		}
		var u update
		if assert.NoError(r.t, a.verify(body, req.Header)) && assert.NoError(r.t, json.Unmarshal(body, &u)) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.posts, a.ids = append(a.posts, u), append(a.ids, req.Header.Get("webhook-id"))
		}
	})
	s := &httptest.Server{Listener: r.net.Listen(), Config: &http.Server{Handler: serve, ReadHeaderTimeout: time.Hour}}
	s.Start()
	r.t.Cleanup(s.Close)
	e := &endpoint.Endpoint{
		ID: models.NewUserID(), Owner: owner, EndpointSettings: client.EndpointSettings{URL: s.URL, Events: events},
		Secrets: []endpoint.Secret{secret}, Created: time.Now().UTC(), Generation: 1, Replay: &feed.Position{},
	}
	require.NoError(r.t, endpoint.In(r.store).Create(r.t.Context(), e.Owner, e.ID, *e))
	a.noted = func() int64 {
		state, _, err := endpoint.StateOf(r.t.Context(), r.store, e)
		require.NoError(r.t, err)
		return state.Posted
	}
	return a
}

// got returns the posts so far. No post was made twice.
func (a *application) got(t *testing.T) []update {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(a.ids))), len(a.ids), "each once")
	return slices.Clone(a.posts)
}

// wait waits for n posts, and until the worker has stored that it made them: one that is stopped before makes them
// again.
func (a *application) wait(t *testing.T, n int) []update {
	t.Helper()
	a.r.until(func() bool {
		return len(a.got(t)) >= n && a.noted() >= int64(n)
	})
	return a.got(t)
}

// posting returns a configuration of workers that post over the network of the rig.
func (r *rig) posting() Config {
	cfg := fast()
	cfg.EndpointClient = outbound.New(nil).Over(r.net.Dial)
	return cfg
}

// TestRollUpWakesPoster: an update is posted when the roll-up has published it, although the feed would not be read
// for an hour.
func TestRollUpWakesPoster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := emptyRig(t, nil, "sg")
		cfg := r.posting()
		cfg.EndpointPoll = time.Hour
		app := newApplication(r, r.user, client.LogDelivered)
		r.engine = r.worker(cfg, newScripted("sg", always(models.Accepted)))
		r.until(func() bool { // until the worker listens for wakes
			r.done(r.batch(1, true, nil))
			return len(app.got(t)) > 0
		})
		for range 3 {
			b := r.batch(1, true, nil)
			r.until(func() bool {
				return slices.ContainsFunc(app.got(t), func(u update) bool { return u.Data.Log == b.ID.Log(1) })
			})
		}
	})
}

// TestNoticesOfCauses: a call without an answer, and a sum that was made wrong in the store, are each posted once to an
// endpoint of the operators, although workers are restarted.
func TestNoticesOfCauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			if calls.Add(1) == 1 {
				return part(models.Unknown, c)
			}
			return part(models.Accepted, c)
		})
		r := emptyRig(t, nil, "sg")
		cfg := r.posting()
		cfg.SumsPoll = 50 * time.Millisecond
		r.known()
		app := newApplication(r, feed.Installation, client.OutcomeUnknown, client.CheckDifference)
		restart := func() { r.stop(); r.engine = r.worker(cfg, sg) }
		r.engine = r.worker(cfg, sg)

		b := r.batch(3, true, nil)
		r.until(func() bool {
			v := r.view(b)
			return len(v.Entries) == 1 && v.Tries(1)[0].Verdict == models.VerdictUnknown
		})
		restart() // a worker stores what it has counted when it stops, and one that begins publishes it at once
		posts := app.wait(t, 1)
		require.Equal(t, feed.UnknownOutcomes, posts[0].Type)
		require.Equal(t, []any{"sg", int64(3)}, []any{posts[0].Data.Provider, posts[0].Data.Count})

		r.stop()
		ctx := t.Context()
		lost := *b // no worker looks at it, and renews its sums
		lost.ID, lost.Recipients = models.NewBatchID(time.Now()), 2
		require.NoError(t, r.store.PutBatch(ctx, lost, models.Chunk{
			ID: lost.ID, Recipients: []models.Recipient{{Email: "a@x.test"}, {Email: "b@x.test"}},
		}))
		lie := models.Resolve(2, nil, nil).SummaryOf(lost.ID, nil)
		lie.Success, lie.Queued = lie.Queued, 0
		require.NoError(t, r.store.PutSummaries(ctx, models.ChunkSummary{User: r.user, Chunk: lost.ID, Summary: lie}))
		for _, level := range models.Levels {
			err := r.store.RollUp(ctx, models.SpanOf(r.user, level, lost.Created()))
			require.NoError(t, err)
		}
		r.engine = r.worker(cfg, sg)
		var round map[string]any
		r.until(func() bool {
			raw, err := r.store.Transient(ctx, telemetry.RecountReport, telemetry.NewestRecount)
			return err == nil && json.Unmarshal(raw, &round) == nil && round["suspects"] != nil
		})
		r.stop()
		for _, s := range round["suspects"].([]any) { // as if it had differed for longer than mail takes to be counted
			s.(map[string]any)["since"] = time.Now().Add(-time.Hour)
		}
		raw, err := json.Marshal(round)
		require.NoError(t, err)
		require.NoError(t, r.store.PutTransient(ctx, telemetry.RecountReport, telemetry.NewestRecount, raw, time.Hour))
		r.engine = r.worker(cfg, sg)
		posts = app.wait(t, 2)
		require.Equal(t, feed.CheckDifference, posts[1].Type)
		require.Positive(t, posts[1].Data.Count)

		restart()
		r.done(r.batch(1, true, nil))
		restart()
		require.Len(t, app.got(t), 2)
	})
}
