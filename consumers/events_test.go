package consumers

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// received stores a post of sg and returns its id.
func received(t *testing.T, store models.Store, body []byte) models.ID {
	t.Helper()
	id := models.NewInboxID(time.Now())
	require.NoError(
		t,
		store.PutInbox(context.Background(), models.Inbox{ID: id, Provider: "sg", Posts: []models.Post{{Body: body}}}),
	)
	return id
}

// TestEventOfTheFuture: an event whose time is centuries ahead does not delay the end of a
// wait.
func TestEventOfTheFuture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b := unsettled(t, 1)
		r.event(
			"sg",
			b.ID.Log(1),
			models.Event{
				ID:      "1",
				Attempt: r.view(b).Entries[0].Number,
				Kind:    models.Processed,
				At:      time.Date(5138, 1, 1, 0, 0, 0, 0, time.UTC),
			},
		)
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).Last.Verdict == models.VerdictAccepted },
			patience,
			time.Millisecond,
		)
		require.WithinDuration(t, time.Now(), r.view(b).Status(1).Last.At, time.Minute)
	})
}

// TestEvents: events change the logs of their attempts. Events that belong to no attempt are
// refused.
func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", always(models.Accepted))
		mg := newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil)
		providers := make([]provider.Spec, 0, 2)
		b2, err := newBrokerFor(r, "sg", "mg")
		require.NoError(t, err)
		r.broker = b2
		for _, p := range []*scripted{sg, mg} {
			providers = append(
				providers,
				provider.Spec{
					Adapter: p,
					Provider: models.Provider{
						Name:        p.name,
						Weight:      1,
						Concurrency: 4,
						ChunkLimit:  1000,
						Timeout:     time.Second,
						Events:      models.EventsWebhook,
					},
				},
			)
		}
		r.engine = r.start(fast(), providers)
		b := r.batch(5, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		require.Eventually(
			t,
			func() bool { return r.view(b).Summary().Providers["sg"].Waiting == 5 },
			patience,
			time.Millisecond,
		)
		at := time.Now()
		r.event("sg", b.ID.Log(1), models.Event{ID: "1", Attempt: 1, Kind: models.Delivered, At: at})
		r.event(
			"sg",
			b.ID.Log(2),
			models.Event{ID: "2", Attempt: 1, Kind: models.Bounced, Reason: models.MailboxInvalid, At: at},
		)
		r.event(
			"sg",
			b.ID.Log(3),
			models.Event{ID: "3", Attempt: 1, Kind: models.Blocked, Reason: models.PolicyReputation, At: at},
		)
		r.event(
			"mg",
			b.ID.Log(4),
			models.Event{ID: "4", Attempt: 1, Kind: models.Bounced, Reason: models.MailboxInvalid, At: at},
		) // not mg's attempt
		r.event(
			"sg",
			models.NewBatchID(at).Log(1),
			models.Event{ID: "5", Attempt: 1, Kind: models.Delivered, At: at},
		) // no such batch
		r.event(
			"sg",
			b.ID.Log(900),
			models.Event{ID: "6", Attempt: 1, Kind: models.Delivered, At: at},
		) // no such recipient
		require.Eventually(t, func() bool {
			_, forged, _, _ := r.engine.EventCounts()
			v := r.view(b) // posts are processed in any order
			return forged == 3 && mg.copiesOf(b.ID.Log(3)) == 1 && v.Status(1).State == models.Success &&
				v.Status(2).State == models.Failed
		}, patience, 2*time.Millisecond)
		r.taken(b)
		v := r.view(b)
		require.Equal(t, models.MailboxInvalid, v.Status(2).Reason)
		require.Equal(t, models.Sent, v.Status(3).State, "rerouted to mg, which has it now")
		require.Equal(t, models.Sent, v.Status(4).State)
		require.Equal(t, 1, mg.count())

		// The sums follow, and every post is marked as processed.
		require.Eventually(t, func() bool {
			nodes, err := r.store.Nodes(
				context.Background(),
				r.user,
				models.Day,
				at.Add(-48*time.Hour),
				at.Add(48*time.Hour),
			)
			require.NoError(t, err)
			if len(nodes) != 1 {
				return false
			}
			want := r.view(b).Summary()
			got := nodes[0].Summary
			return got.Success == want.Success && got.Failed == want.Failed && got.Sent == want.Sent &&
				got.Accepted == 5
		}, patience, 5*time.Millisecond)
		r.workedOff()
	})
}

// TestUnannouncedPost: a post that was not announced is processed.
func TestUnannouncedPost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b := unsettled(t, 1)
		p := postOf(t, "", b.ID.Log(1), models.Event{ID: "x", Attempt: 1, Kind: models.Delivered, At: time.Now()})
		require.NoError(
			t,
			r.store.PutInbox(
				context.Background(),
				models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{p}},
			),
		)
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).State == models.Success },
			patience,
			5*time.Millisecond,
		)
	})
}

// TestReplayedToken: a post is refused if its token was used before for another body.
func TestReplayedToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b := unsettled(t, 2)
		at := time.Now()
		post := func(log int, kind models.EventKind) {
			p := postOf(
				t,
				"one token",
				b.ID.Log(log),
				models.Event{ID: fmt.Sprint(log, kind), Attempt: 1, Kind: kind, Reason: models.MailboxInvalid, At: at},
			)
			r.inbox(models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{p}})
		}
		post(1, models.Delivered)
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).State == models.Success },
			patience,
			time.Millisecond,
		)
		post(2, models.Bounced)   // another body under the token
		post(1, models.Delivered) // the same post again, as providers repeat them
		require.Eventually(t, func() bool {
			_, _, replayed, _ := r.engine.EventCounts()
			return replayed == 1
		}, patience, 20*time.Millisecond)
		require.Equal(t, models.Queued, r.view(b).Status(2).State)
	})
}

// TestReplayedTokenInOneEntry: this holds for posts in the same entry of the inbox, too. Posts with
// other tokens are not affected.
func TestReplayedTokenInOneEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, b := unsettled(t, 3)
		at := time.Now()
		post := func(log int, kind models.EventKind, token string) models.Post {
			return postOf(
				t,
				token,
				b.ID.Log(log),
				models.Event{ID: fmt.Sprint(log, kind), Attempt: 1, Kind: kind, Reason: models.MailboxInvalid, At: at},
			)
		}
		r.inbox(models.Inbox{ID: models.NewInboxID(at), Provider: "sg", Posts: []models.Post{
			post(1, models.Delivered, "1.a"),
			post(2, models.Bounced, "1.a"),
			post(1, models.Delivered, "1.a"),
			post(3, models.Delivered, "1.b"),
		}})
		require.Eventually(t, func() bool {
			return r.view(b).Status(1).State == models.Success && r.view(b).Status(3).State == models.Success
		}, patience, 20*time.Millisecond)
		_, _, replayed, _ := r.engine.EventCounts()
		require.EqualValues(t, 1, replayed)
		require.Equal(t, models.Queued, r.view(b).Status(2).State)
	})
}
