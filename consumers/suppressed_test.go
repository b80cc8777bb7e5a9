package consumers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// entriesOf returns the entries of an address in the list of the rig's user.
func (r *rig) entriesOf(address string) []models.Suppression {
	r.t.Helper()
	es, err := r.store.SuppressionsOf(r.t.Context(), r.user, models.HashAddress(address))
	require.NoError(r.t, err)
	return es
}

// TestEventsSuppress: hard bounces, complaints and unsubscribes put an address on the list of the user once, with the
// reason and the log, also if they are reported again. The feed has the addition. The user's next mail is not sent to
// these addresses, through no provider, and another user's is.
func TestEventsSuppress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		specs := []provider.Spec{specOf(sg, "sg", time.Second), specOf(mg, "mg", time.Second)}
		r.engine = r.start(fast(), specs)
		report := func(log models.ID, kind models.EventKind, reason models.Reason, guess bool) {
			ev := models.Event{
				ID:      fmt.Sprint(log, kind),
				Attempt: 1,
				Kind:    kind,
				Reason:  reason,
				At:      time.Now(),
				Guess:   guess,
			}
			r.event("sg", log, ev)
		}
		send := func(user, category string) *models.Batch {
			return r.batch(6, true, func(b *models.Batch, _ []models.Recipient) {
				b.User, b.Category, b.Providers = user, category, []string{"sg", "mg"}
			})
		}
		first := send(r.user, "news")
		r.taken(first)
		at := time.Now()
		report(first.ID.Log(1), models.Bounced, models.MailboxInvalid, false)
		report(first.ID.Log(2), models.Complained, "", false)
		for _, token := range []string{"a", "b"} { // reported twice
			ev := models.Event{ID: "u", Attempt: 1, Kind: models.Unsubscribed, At: at}
			r.inbox(models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "sg",
				Posts: []models.Post{postOf(t, token, first.ID.Log(3), ev)}})
		}
		report(first.ID.Log(4), models.Bounced, models.MailboxFull, false)
		report(first.ID.Log(5), models.Bounced, models.MailboxInvalid, true)
		report(first.ID.Log(6), models.Delivered, "", false)
		want := []models.SuppressionReason{models.HardBounce, models.Complaint, models.Unsubscribe}
		require.Eventually(t, func() bool {
			return r.idle() &&
				len(r.entriesOf("u1@x.test"))+len(r.entriesOf("u2@x.test"))+len(r.entriesOf("u3@x.test")) == 3
		}, patience, 5*time.Millisecond)
		for i, reason := range want {
			e := r.entriesOf(fmt.Sprintf("u%d@x.test", i+1))[0]
			require.Equal(t, reason, e.Reason)
			require.Equal(t, models.FromEvent, e.Origin)
			require.Equal(t, first.ID.Log(i+1), e.Log)
			require.Equal(t, reason == models.Unsubscribe, e.Category == "news")
		}
		published := func() []string {
			out := map[string]bool{} // one that is reported twice at once may be published twice
			page, err := feed.Read(t.Context(), r.store, r.user, feed.Query{After: feed.Begin, Limit: 1000})
			require.NoError(t, err)
			for i := range page.Updates {
				if s := page.Updates[i].Suppression; s != nil {
					out[fmt.Sprint(s.Reason, " ", s.Log.Recipient(), " ", s.ID(r.user))] = true
				}
			}
			return slices.Sorted(maps.Keys(out))
		}
		require.Eventually(t, func() bool { return len(published()) == 3 }, patience, 5*time.Millisecond)
		for i, about := range []string{"complaint 2 ", "hard_bounce 1 ", "unsubscribe 3 "} {
			require.True(t, strings.HasPrefix(published()[i], about))
		}
		require.Empty(t, r.entriesOf("u4@x.test"), "a full mailbox may be emptied")
		require.Empty(t, r.entriesOf("u5@x.test"), "a guess")

		sentTo := func(b *models.Batch) (out []int) {
			for n := range b.Recipients {
				if sg.copiesOf(b.ID.Log(n+1))+mg.copiesOf(b.ID.Log(n+1)) > 0 {
					out = append(out, n+1)
				}
			}
			return out
		}
		for category, suppressed := range map[string][]int{"news": {1, 2, 3}, "": {1, 2}} {
			b := send(r.user, category)
			r.taken(b)
			for n := range b.Recipients {
				if s := r.view(b).Status(n + 1); slices.Contains(suppressed, n+1) {
					require.Equal(t, models.Suppressed, s.Reason)
					require.Equal(t, models.Failed, s.State)
					require.Contains(t, s.Detail, want[n].Words())
				}
			}
			require.Len(t, sentTo(b), 6-len(suppressed))
			require.NotContains(t, sentTo(b), suppressed[0])
		}
		b := send(models.NewUserID(), "news")
		r.taken(b)
		require.Len(t, sentTo(b), 6)
	})
}

// TestSoftBouncesSuppress: mail after mail bounces because the mailbox is full. Then
// the address gets no more mail, and its logs say why; a mailbox that takes mail in between goes on getting it.
func TestSoftBouncesSuppress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		specs := []provider.Spec{specOf(sg, "sg", time.Second), specOf(mg, "mg", time.Second)}
		cfg := fast()
		cfg.SoftBounces, cfg.SoftBouncePoll = 3, 20*time.Millisecond
		r.engine = r.start(cfg, specs)
		report := func(b *models.Batch, n int, kind models.EventKind, reason models.Reason) {
			t.Helper()
			last := r.view(b).Status(n).Last
			ev := models.Event{ID: fmt.Sprint(last.Provider, n, kind), Attempt: last.Attempt, Kind: kind, Reason: reason,
				At: time.Now()}
			for range 2 { // reported twice
				r.event(last.Provider, b.ID.Log(n), ev)
			}
		}
		send := func() *models.Batch {
			return r.batch(3, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
		}
		for i := range 3 {
			b := send()
			r.taken(b)
			report(b, 1, models.Bounced, models.MailboxFull)
			report(b, 2, models.Blocked, models.PolicyReputation)
			report(b, 3, models.Delivered, "")
			require.Eventually(t, func() bool { // the other provider has it
				s := r.view(b).Status(2)
				return s.Attempts == 2 && s.Last.Verdict == models.VerdictAccepted
			}, patience, 5*time.Millisecond)
			if i == 1 {
				report(b, 2, models.Delivered, "")
			} else {
				report(b, 2, models.Blocked, models.PolicyReputation)
			}
			r.done(b)
		}
		require.Eventually(t, func() bool { return len(r.entriesOf("u1@x.test")) == 1 }, patience, 5*time.Millisecond)
		e := r.entriesOf("u1@x.test")[0]
		require.Equal(t, models.SoftBounce, e.Reason)
		require.Equal(t, 7*24*time.Hour, e.Expires.Sub(e.At))
		b := send()
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).Reason == models.Suppressed },
			patience,
			5*time.Millisecond,
		)
		r.taken(b)
		require.Contains(t, r.view(b).Status(1).Detail, models.SoftBounce.Words())
		require.Zero(t, sg.copiesOf(b.ID.Log(1))+mg.copiesOf(b.ID.Log(1)))
		require.Empty(t, r.entriesOf("u2@x.test"))
		require.Empty(t, r.entriesOf("u3@x.test"))
	})
}

// TestSuppressedByProvider: mail that a provider drops because of an earlier bounce goes through another one. It does
// not if a list confirms the bounce, of the user or for the mail of all, also one that grew after the provider had the
// mail; and not if a second provider knows of a bounce, too.
func TestSuppressedByProvider(t *testing.T) {
	t.Parallel()
	own := func(r *rig) string { return r.user }
	for name, c := range map[string]struct {
		list   func(r *rig) string // that confirms the bounce
		drops  int                 // by as many providers
		calls  int
		state  models.State
		reason models.Reason
		ended  models.Reason
	}{
		"one provider": {drops: 1, calls: 2, state: models.Success},
		"two providers": {
			drops: 2, calls: 2, state: models.Failed, reason: models.SuppressedBounce, ended: models.NoProviderLeft,
		},
		"on the user's list": {
			list: own, drops: 1, calls: 1, state: models.Failed, reason: models.Suppressed,
		},
		"on everybody's list": {
			list:  func(*rig) string { return models.EveryonesList },
			drops: 1, calls: 1, state: models.Failed, reason: models.Suppressed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var specs []provider.Spec
				for _, name := range []string{"sg", "mg", "x"} {
					specs = append(specs, provider.Spec{
						Adapter: newScripted(name, always(models.Accepted)),
						Provider: models.Provider{Name: name, Weight: 1, Concurrency: 4, ChunkLimit: 1000,
							Timeout: time.Second, Events: models.EventsWebhook},
					})
				}
				r := emptyRig(t, nil, "sg", "mg", "x")
				r.engine = r.start(fast(), specs)
				b := r.batch(1, true, nil)
				r.taken(b)
				if c.list != nil {
					e := models.NewSuppression("u1@x.test", models.HardBounce, models.FromEvent, time.Now())
					require.NoError(t, suppression.New(r.store, 1<<20).Add(t.Context(), c.list(r), e))
					time.Sleep(control.MaxRuleAge) // until every worker knows it
				}
				report := func(n int, kind models.EventKind, reason models.Reason) {
					r.event(r.view(b).Status(1).Last.Provider, b.ID.Log(1),
						models.Event{ID: fmt.Sprint(n), Attempt: n, Kind: kind, Reason: reason, At: time.Now()})
				}
				for n := 1; n <= c.drops; n++ {
					report(n, models.Dropped, models.SuppressedBounce)
					require.Eventually(t, func() bool {
						s := r.view(b).Status(1)
						return !s.State.Open() || s.Attempts == n+1 && s.Last.Verdict == models.VerdictAccepted
					}, patience, 5*time.Millisecond)
				}
				if c.state == models.Success {
					report(2, models.Delivered, "")
				}
				s := r.done(b).Status(1)
				require.Equal(t, c.state, s.State)
				require.Equal(t, c.reason, s.Reason)
				require.Equal(t, c.ended, s.EndedBy)
				require.Equal(t, c.calls, s.Attempts)
				if c.list != nil {
					require.Contains(t, s.Detail, models.HardBounce.Words())
				}
				calls := 0
				for i := range specs {
					calls += specs[i].Adapter.(*scripted).count() //nolint:forcetypeassert // made above
				}
				require.Equal(t, c.calls, calls)
			})
		})
	}
}
