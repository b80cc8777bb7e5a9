package endpoints

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// TestNoticesArePosted: endpoints of the installation get notices, signed or as Slack wants them, and no updates of
// users' mail, and endpoints of users no notices.
func TestNoticesArePosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		all, some, users := newReceiver(f, nil), newReceiver(f, nil), newReceiver(f, nil)
		slack := make(chan string, 10)
		app := f.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // what is missing is seen below
			slack <- r.Header.Get("webhook-signature") + string(body)
		}))
		f.endpoint(users, func(e *endpoint.Endpoint) { e.Events = []string{string(feed.All)} })
		of := func(e *endpoint.Endpoint) { e.Owner = feed.Installation }
		f.endpoint(all, func(e *endpoint.Endpoint) { of(e); e.Batch = true })
		f.endpoint(some, func(e *endpoint.Endpoint) { of(e); e.Events = []string{client.FailoverEnded} })
		f.endpoint(&receiver{url: app}, func(e *endpoint.Endpoint) { of(e); e.Format = client.FormatSlack })
		since := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
		require.NoError(t, feed.Announce(t.Context(), f.store, func(*feed.Status) []models.Notice {
			return []models.Notice{
				{Kind: models.FailoverStarted, Provider: "sg", Since: since, Why: "503\n<busy> & slow"},
				{Kind: models.FailoverEnded, Provider: "sg", Since: since},
			}
		}))
		f.publish(f.batch(1, nil), 1, models.Success, 1)
		f.run("w")
		f.eventually(func() bool {
			return len(all.accepted()) == 2 && len(some.accepted()) == 1 && len(users.accepted()) == 1
		})
		require.Len(t, all.got(), 1, "one batch")
		require.Equal(t, []feed.Type{feed.FailoverEnded}, some.got()[0].types)
		require.Equal(t, []feed.Type{feed.Delivered}, users.got()[0].types)
		v := some.accepted()[0]
		require.Equal(t, []any{2, "sg", since}, []any{v.Number, v.Provider, v.Since})
		require.ElementsMatch(t, []string{
			`{"text":"Calls to provider sg fail since 12:00:00 UTC on 31 January. Other providers carry its mail if they accept it. ` +
				`Reason: 503 \u0026lt;busy\u0026gt; \u0026amp; slow"}`,
			`{"text":"Calls to provider sg succeed again. They failed since 12:00:00 UTC on 31 January."}`,
		}, []string{<-slack, <-slack})
	})
}

// TestNoticesAreMailed: endpoints of the format mail hand the text for people to the mailer with the ID of the post,
// until it is accepted. The ID is the same when a worker is killed after that and another one repeats the post.
func TestNoticesAreMailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		e := f.endpoint(&receiver{url: "mailto:ops@x.test"}, func(e *endpoint.Endpoint) {
			e.Owner, e.Format = feed.Installation, client.FormatMail
			e.User, e.Sender = "ada", "alerts@x.test"
		})
		require.NoError(t, feed.Announce(t.Context(), f.store, func(*feed.Status) []models.Notice {
			return []models.Notice{{Kind: models.ProviderRecovered, Provider: "sg", Since: time.Unix(0, 0)}}
		}))
		var mu sync.Mutex
		var mails []string
		f.mailer = func(_ context.Context, got *endpoint.Endpoint, post string, body []byte) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			mails = append(mails, post+string(body))
			require.Equal(t, e.EndpointSettings, got.EndpointSettings)
			if len(mails) == 1 {
				return "", models.ErrUnavailable
			}
			return "accepted", nil
		}
		mailed := func(n int) {
			t.Helper()
			f.eventually(func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(mails) >= n
			})
		}
		stop := f.run("w")
		mailed(2)
		f.eventually(func() bool { return f.state(e).Posted == 1 })
		stop()
		_, version, err := endpoint.StateOf(t.Context(), f.store, e)
		require.NoError(t, err)
		first := endpoint.State{} // as if the worker had been killed before it stored what it did
		require.NoError(t, endpoint.PutState(t.Context(), f.store, e, &first, version))
		f.run("v")
		mailed(3)
		require.Equal(t, []string{mails[0], mails[0]}, mails[1:3])
		require.Contains(t, mails[0], `{"subject":"Safedelivr: provider recovered (sg)","text":"Provider sg has recovered. `+
			`It was suspended since 00:00:00 UTC on 1 January.","provider":"sg"}`)
	})
}

// TestSuppressionsArePosted: endpoints that ask for them get additions to the list of their user, those that are
// about mail by its tags and category, too. A repeat has the same ID. After the erasure of an address no retry has
// it.
func TestSuppressionsArePosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		all, tagged, none, slack := newReceiver(f, nil), newReceiver(f, status(503, 1)), newReceiver(f, nil),
			make(chan string, 9)
		app := f.serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // what is missing is seen below
			slack <- string(body)
		}))
		of := func(e *endpoint.Endpoint) { e.Events = []string{client.SuppressionAdded} }
		f.endpoint(all, func(e *endpoint.Endpoint) { of(e); e.Ordered = true })
		f.endpoint(tagged, func(e *endpoint.Endpoint) { of(e); e.Tags, e.Categories = []string{"a"}, []string{"news"} })
		f.endpoint(none, func(e *endpoint.Endpoint) { e.Events = []string{client.LogDelivered} })
		f.endpoint(&receiver{url: app}, func(e *endpoint.Endpoint) {
			of(e)
			e.Owner, e.Format = feed.Installation, client.FormatSlack
		})
		about := models.NewSuppression("ada@x.test", models.HardBounce, models.FromEvent, time.Now())
		about.Log = f.batch(1, nil).Log(1)
		plain := models.NewSuppression("bob@x.test", models.Manual, models.FromAPI, time.Now())
		everyones := models.NewSuppression("eve@x.test", models.HardBounce, models.FromProvider, time.Now())
		store := func(list string, es ...models.Suppression) {
			t.Helper()
			require.NoError(t, f.store.PutSuppressions(t.Context(), list, es...))
		}
		publish := func(list string, e models.Suppression) {
			t.Helper()
			require.NoError(t, feed.PublishSuppressions(t.Context(), f.store, list, []models.FeedSuppression{e.ForFeed()}))
		}
		store(f.user, about, plain)
		store(models.EveryonesList, everyones)
		publish(f.user, about)
		publish(f.user, plain)
		publish(f.user, about)
		publish(models.EveryonesList, everyones)
		stop := f.run("w", time.Hour)
		f.eventually(func() bool { return len(all.accepted()) == 3 && len(tagged.got()) == 2 })
		v := all.accepted()
		require.Equal(t, "ada@x.test", v[0].Suppression.Email)
		require.Equal(t, v[0].Suppression, v[2].Suppression)
		require.Equal(t, "bob@x.test", v[1].Suppression.Email)
		posts := all.got()
		require.Equal(t, posts[0].id, posts[2].id)
		require.NotEqual(t, posts[0].id, posts[1].id)
		require.Equal(t, "ada@x.test", tagged.got()[0].updates[0].Suppression.Email)
		require.Empty(t, none.got())
		require.JSONEq(t, `{"text":"eve@x.test is on everyone's suppression list: `+
			`earlier mail bounced because the mailbox does not exist."}`, <-slack)
		stop()

		about.Email, about.At = "", about.At.Add(time.Millisecond)
		store(f.user, about)
		list, err := endpoint.In(f.store).Page(t.Context(), f.user, "", 10)
		require.NoError(t, err)
		for i := range list {
			f.change(&list[i], func(e *endpoint.Endpoint) { e.Generation++; e.Replay = nil }) // retries are due
		}
		f.run("w")
		f.eventually(func() bool { return len(tagged.accepted()) == 2 })
		for _, p := range tagged.got()[2:] {
			require.Empty(t, p.updates[0].Suppression.Email)
			require.Equal(t, posts[0].updates[0].Suppression.ID, p.updates[0].Suppression.ID)
		}
	})
}
