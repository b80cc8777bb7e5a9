package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/events"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// brokenOff is a store that stores facts and returns an error once.
type brokenOff struct {
	models.Store
	next atomic.Bool
}

func (s *brokenOff) PutFacts(ctx context.Context, facts ...models.ChunkFact) error {
	err := s.Store.PutFacts(ctx, facts...)
	if s.next.CompareAndSwap(true, false) {
		return models.ErrUnavailable
	}
	return err
}

// TestReplayAfterFailure: after a replay that failed when its facts were stored, the next one
// renews logs and sums, although it parses nothing differently.
func TestReplayAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &brokenOff{}
		p := &buggyParser{scripted: newScripted("mg", always(models.Accepted))}
		other := newScripted("sg", always(models.Accepted))
		r := emptyRig(t, func(store models.Store) models.Store {
			s.Store = store
			return s
		}, "mg", "sg")
		r.known()
		providers := []provider.Spec{specOf(p, "mg", time.Second), specOf(other, "sg", time.Second)}
		r.engine = r.start(fast(), providers)
		b := r.batch(4, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"mg", "sg"} })
		r.taken(b)
		for n := 1; n <= 4; n++ {
			body, err := json.Marshal(
				[]models.ParsedEvent{{Log: b.ID.Log(n), Event: models.Event{ID: fmt.Sprint(n), Attempt: 1, Kind: models.Blocked,
					Reason: models.PolicyReputation, Text: "no such user", At: time.Now()}}},
			)
			require.NoError(t, err)
			in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "mg", Posts: []models.Post{{Body: body}}}
			require.NoError(t, r.store.PutInbox(t.Context(), in))
			require.NoError(
				t,
				r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "mg", ID: in.ID}),
			)
		}
		require.EqualValues(t, 4, r.done(b).Summary().Success, "as the buggy parser read it")
		require.Eventually(t, func() bool {
			for sum, err := range r.store.Summaries(t.Context(), b.User, b.ID, 0) {
				return err == nil && sum.Summary.Success == 4 && r.engine.Pending() == 0
			}
			return false
		}, patience, 20*time.Millisecond)
		r.stop()

		p.fixed = true
		e, err := New(r.store, r.broker, providers, fast()) // the command's engine does not run
		require.NoError(t, err)
		t.Cleanup(e.work.Stop)
		replay := func() (events.Replayed, error) {
			return e.Replay(t.Context(), b.Created().Add(-time.Minute), time.Now().Add(time.Minute), func(events.Replayed) {})
		}
		s.next.Store(true)
		_, err = replay()
		require.ErrorIs(t, err, models.ErrUnavailable)
		out, err := replay()
		require.NoError(t, err)
		require.Zero(t, out.Events, "it was parsed before")
		require.EqualValues(t, 4, open(r.view(b)))
		require.EqualValues(t, 4, stored(t, r, b).Queued)
		require.NotEmpty(
			t,
			r.dueWithin(b, time.Now().Add(-time.Minute), time.Now().Add(time.Hour)),
			"the reopened mail is on the agenda",
		)

		r.engine = r.start(fast(), providers)
		require.Eventually(
			t,
			func() bool { return other.copiesOf(b.ID.Log(1)) == 1 && other.copiesOf(b.ID.Log(4)) == 1 },
			patience,
			time.Millisecond,
		)
	})
}

// unnaming is a provider whose events name no log.
type unnaming struct{ *scripted }

func (p unnaming) Parse(body []byte) (out models.Parsed) {
	_ = json.Unmarshal(body, &out)
	return out
}

// TestReplayMatchesEvents: an event that fitted no mail when it came in is matched by a replay.
func TestReplayMatchesEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			return []models.Part{{Class: models.Accepted, Recipients: c.Numbers(), MessageID: "m1"}}
		})
		r := emptyRig(t, nil, "sg")
		r.known()
		r.engine = r.start(fast(), []provider.Spec{{
			Adapter: unnaming{p},
			Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 4, ChunkLimit: 1000,
				Timeout: time.Second, Events: models.EventsWebhook},
		}})
		body, err := json.Marshal(models.Parsed{Unnamed: []models.UnnamedEvent{{
			MessageID: "m1",
			Address:   "U2@x.test",
			Event:     models.Event{ID: "e", Kind: models.Delivered, At: time.Now().UTC()},
		}}})
		require.NoError(t, err)
		from := time.Now().Add(-time.Minute)
		r.inbox(models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg", Posts: []models.Post{{Body: body}}})
		require.Eventually(t, r.idle, patience, 5*time.Millisecond)
		b := r.batch(2, true, nil)
		r.taken(b)
		require.Eventually(t, func() bool { // the address index is stored in the background
			hours, err := r.store.AddressIndexHours(t.Context(), r.user, time.Now().Add(time.Hour), 1)
			return err == nil && len(hours) == 1
		}, patience, 5*time.Millisecond)
		require.Equal(t, models.Sent, r.view(b).Status(2).State)

		for _, want := range []int64{1, 0} { // the second one changes nothing
			out, err := r.engine.Replay(t.Context(), from, time.Now().Add(time.Minute), func(events.Replayed) {})
			require.NoError(t, err)
			require.Equal(t, want, out.Events)
			require.Equal(t, models.Success, r.view(b).Status(2).State)
		}
		require.Equal(t, models.Sent, r.view(b).Status(1).State)
	})
}
