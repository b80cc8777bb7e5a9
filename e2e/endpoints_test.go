package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/receiver"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/store/memory"
)

// newReceiver starts an application to which updates are posted.
func newReceiver(
	t *testing.T, c *client.Client, s client.EndpointSettings, options ...client.CallOption,
) *receiver.Receiver {
	t.Helper()
	r, err := receiver.Start(t.Context(), c, s, options...)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// TestEndpointFilters: endpoints with tags, with categories, and with both get only the updates of mail that has one of
// the tags and one of the categories. That holds for posts of one update and of many.
func TestEndpointFilters(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_ENDPOINT_NETWORKS="+receiver.Network)
		r.serveHere()
		kinds := []struct{ tags, categories []string }{
			{},
			{tags: []string{"receipt", "other"}},
			{categories: []string{"news"}},
			{[]string{"receipt"}, []string{"news", "offers"}},
		}
		var got [][2]*receiver.Receiver
		for _, k := range kinds {
			var both [2]*receiver.Receiver
			for i := range both {
				both[i] = newReceiver(t, r.client, client.EndpointSettings{
					Events: []string{client.LogDelivered}, Tags: k.tags, Categories: k.categories, Batch: i == 1, Ordered: true,
				})
			}
			got = append(got, both)
		}
		want := make([]map[receiver.Update]client.State, len(kinds))
		send := func(category string, tags []string, by ...int) {
			t.Helper()
			accepted, err := r.client.CreateBatch(t.Context(), client.NewBatch{
				From: "Test <test@demo.test>", Subject: "s", Text: "t", Category: category, Tags: tags,
				To: []client.Recipient{{Email: "ann@demo.test"}, {Email: "bob@demo.test"}},
			})
			require.NoError(t, err)
			id := r.id(accepted.ID)
			r.done(id)
			for i := range want {
				if want[i] == nil {
					want[i] = map[receiver.Update]client.State{}
				}
			}
			for _, k := range by {
				for _, l := range r.logs(id, "") {
					u := client.Update{Log: l.ID, Number: 1}
					want[k][receiver.Named(&u)] = client.Delivered
				}
			}
		}
		send("news", []string{"receipt"}, 0, 1, 2, 3)
		send("", []string{"receipt", "more"}, 0, 1)
		send("bills", []string{"receipt"}, 0, 1)
		send("news", []string{"receipts"}, 0, 2)
		send("offers", []string{"other"}, 0, 1)
		send("", nil, 0)
		send("news", []string{"more", "receipt"}, 0, 1, 2, 3) // posts are in order: this one comes after all others
		for k := range kinds {
			for i, app := range got[k] {
				require.Eventually(t, func() bool { return app.Missing(want[k]) == 0 }, testkit.Patience, 20*time.Millisecond,
					"endpoint %d of %d, %+v", i, k, app.Counts())
				require.Equal(t, len(want[k]), app.Counts().Updates, "endpoint %d of %d", i, k)
			}
		}
	})
}

// TestQuotaNearIsPosted: operators get one post when a user has used most of a limit, even if the user sends more.
func TestQuotaNearIsPosted(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		r := newRig(t, b, simulator.Options{}, "SAFEDELIVR_ENDPOINT_NETWORKS="+receiver.Network,
			"SAFEDELIVR_QUOTAS_RECIPIENTS_PER_DAY=10")
		operator := r.clientWith(strings.TrimSpace(r.command("key", "add", "tester", "--scope", "send,read,operate")))
		r.command("user", "add", "other")
		other := r.clientWith(strings.TrimSpace(r.command("key", "add", "other")))
		r.serveHere()
		app := newReceiver(t, operator, client.EndpointSettings{Events: []string{client.QuotaNear}, Ordered: true},
			client.OfInstallation())
		posted := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool { return app.Counts().Posts >= n }, testkit.Patience, 20*time.Millisecond)
			require.Equal(t, n, app.Counts().Posts)
		}
		r.post(mail{n: 8}) // four fifths: not near yet
		r.post(mail{n: 1})
		posted(1)
		r.post(mail{n: 1})
		m := mail{n: 1}
		_, err := r.client.StreamBatch(t.Context(), m.batch(), m.recipients)
		require.Equal(t, "limit_reached", client.ErrorCode(err))
		m.n = 9
		_, err = other.StreamBatch(t.Context(), m.batch(), m.recipients)
		require.NoError(t, err)
		posted(2) // in order: there was no other of the first user
		require.Zero(t, app.Counts().Refused)
	})
}

// application notes the logs of the updates that it gets.
type application struct{ logs chan models.ID }

// newApplication stores an endpoint of a user.
func newApplication(t *testing.T, store models.Store, user string) *application {
	t.Helper()
	a := &application{make(chan models.ID, 1000)}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var u struct{ Data struct{ Log models.ID } }
		if json.NewDecoder(req.Body).Decode(&u) == nil {
			a.logs <- u.Data.Log
		}
	}))
	t.Cleanup(s.Close)
	id := models.NewUserID()
	require.NoError(t, endpoint.In(store).Create(t.Context(), user, id, endpoint.Endpoint{
		ID: id, Owner: user, Secrets: []endpoint.Secret{endpoint.NewSecret(client.SignatureHMAC)},
		EndpointSettings: client.EndpointSettings{URL: s.URL, Events: []string{client.LogDelivered}},
		Created:          time.Now().UTC(), Generation: 1, Replay: &feed.Position{},
	}))
	return a
}

// gets reports whether the update of a log comes within a time.
func (a *application) gets(log models.ID, within time.Duration) bool {
	late := time.After(within)
	for {
		select {
		case got := <-a.logs:
			if got == log {
				return true
			}
		case <-late:
			return false
		}
	}
}

// accepting is a provider that accepts everything.
type accepting struct {
	models.Adapter
	name string
	sent chan<- string
}

func (a *accepting) Send(_ context.Context, c *models.Call) []models.Part {
	a.sent <- a.name
	return []models.Part{{Class: models.Accepted, Recipients: c.Numbers()}}
}

func (a *accepting) MaxRecipients() int { return 1000 }
func (a *accepting) MaxWebhook() int64  { return 1 << 20 }
func (a *accepting) Close()             {}

// TestWakeThroughRabbitMQ: of two workers with connections of their own, one posts to an endpoint. It posts what the
// other has published, too, although it would read the feed by itself only in an hour. The served product has no
// setting for that time, so the workers are built here, on one embedded store.
func TestWakeThroughRabbitMQ(t *testing.T) {
	t.Parallel()
	amqp := os.Getenv("SAFEDELIVR_TEST_AMQP_URL")
	if amqp == "" {
		t.Skip("needs RabbitMQ: start it with scripts/services up and load the environment it prints")
	}
	ctx, store, user := t.Context(), memory.Open(t), models.NewUserID()
	app := newApplication(t, store, user)
	sent := make(chan string, 100)
	prefix := "t" + models.NewUserID()
	open := func() *rabbit.Broker {
		b, err := rabbit.Open(context.Background(), rabbit.Config{URL: amqp, Prefix: prefix, Providers: []string{"sg"}})
		require.NoError(t, err)
		return b
	}
	publisher := open()
	t.Cleanup(func() {
		require.NoError(t, publisher.Remove(context.Background()))
		require.NoError(t, publisher.Close())
	})
	for _, name := range []string{"one", "two"} {
		broker := open()
		e, err := consumers.New(store, broker, []provider.Spec{{
			Adapter: &accepting{name: name, sent: sent},
			Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 4, ChunkLimit: 1000, Timeout: time.Second,
				Events: models.EventsNone},
		}}, consumers.Config{
			Pace:           settings.Pace{Renewal: 20 * time.Millisecond},
			Worker:         name,
			EndpointPoll:   time.Hour,
			EndpointClient: outbound.New([]netip.Prefix{netip.MustParsePrefix(receiver.Network)}),
			Logger:         slog.New(slog.NewTextHandler(testkit.Log{T: t}, &slog.HandlerOptions{Level: slog.LevelError})),
		})
		require.NoError(t, err)
		running, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- e.Run(running, 5*time.Second) }()
		t.Cleanup(func() {
			stop()
			require.NoError(t, <-done)
			require.NoError(t, broker.Close())
		})
	}
	// send returns which worker has sent a batch, and thus publishes its update.
	send := func() (worker string, log models.ID) {
		t.Helper()
		b := models.Batch{
			ID: models.NewBatchID(time.Now()), User: user, Lane: models.Bulk, OnUnknown: models.Hold, Recipients: 1, Chunks: 1,
			Content:   models.Content{From: models.Address{Email: "a@b.c"}, Subject: "s", Text: "t"},
			ExpiresAt: time.Now().Add(time.Hour),
		}
		require.NoError(
			t,
			store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "x@y.test"}}}),
		)
		require.NoError(t, publisher.Publish(ctx, models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane}))
		select {
		case worker = <-sent:
		case <-time.After(testkit.Patience):
			require.FailNow(t, "the batch is not sent")
		}
		return worker, b.ID.Log(1)
	}
	// Wakes are lost until both workers know the endpoint and one of them listens. Then a worker's update is posted
	// although nothing follows it.
	alone := map[string]int{}
	for end := time.Now().Add(testkit.Patience); alone["one"] < 5 || alone["two"] < 5; {
		require.True(t, time.Now().Before(end), "posted because of a worker's own wake: %v", alone)
		if worker, log := send(); app.gets(log, time.Second) {
			alone[worker]++
		}
	}
}
