package dispatch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// keyed is a provider with idempotency keys: it remembers the answer to a call, which it gives to the same call again.
// Before each call it does what a test says.
type keyed struct {
	models.Adapter
	copies  map[string]int // mails by key
	account string
	calls   []string // what was asked for, the number of the attempt and the recipients
	before  []func(key string, c *models.Call) []models.Part
}

func (*keyed) MaxRecipients() int { return 1000 }

func (k *keyed) Account() string { return k.account }

func (k *keyed) Send(_ context.Context, c *models.Call) []models.Part {
	key := fmt.Sprint(c.Batch, c.Attempt)
	k.calls = append(k.calls, fmt.Sprint(c.Attempt, " ", c.Numbers()))
	if n := len(k.calls); n <= len(k.before) && k.before[n-1] != nil {
		return k.before[n-1](key, c)
	}
	k.copies[key] = 1
	return []models.Part{{Class: models.Accepted, Recipients: c.Numbers()}}
}

// lost takes the mail, and its answer is lost.
func (k *keyed) lost(key string, c *models.Call) []models.Part {
	k.copies[key] = 1
	return k.unheard(key, c)
}

// unheard does not get the call, but that cannot be known.
func (*keyed) unheard(_ string, c *models.Call) []models.Part {
	return []models.Part{{Class: models.Unknown, Recipients: c.Numbers()}}
}

// says returns an answer of a class and a status; 0: nobody was asked.
func says(class models.Class, status int) func(string, *models.Call) []models.Part {
	return func(_ string, c *models.Call) []models.Part {
		return []models.Part{{Class: class, Recipients: c.Numbers(), Status: status}}
	}
}

// newKeyed returns a fixture with a provider that has keys and another one.
func newKeyed(t *testing.T) (*fixture, *keyed, *adapter) {
	t.Helper()
	k, other := &keyed{copies: map[string]int{}}, &adapter{answer: models.Accepted}
	spec := func(name string, a models.Adapter, keys time.Duration) provider.Spec {
		return provider.Spec{Adapter: a, Provider: models.Provider{Name: name, Weight: 1, Concurrency: 4, ChunkLimit: 1000,
			Timeout: time.Second, Events: models.EventsWebhook, KeyLifetime: keys}}
	}
	return fixtureOf(t, time.Hour, []provider.Spec{spec("a", k, 24*time.Hour), spec("b", other, 0)}), k, other
}

// handle handles messages about a batch until its mail waits for something that comes later than in a while.
func (f *fixture) handle(t *testing.T, b *models.Batch, while time.Duration) {
	t.Helper()
	for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(time.Second) {
		message := models.Message{Kind: models.ProviderMessage, Provider: "a", ID: b.ID, Lane: models.Bulk}
		require.True(t, f.HandleProvider(t.Context(), message).IsDone())
	}
}

func onlyA(b *models.Batch) { b.Providers = []string{"a", "b"} }

// TestRepeatSettlesOutcome: if no answer came, the same call is made again, and its answer is that of the attempt. No
// other provider gets the mail meanwhile, and the provider has it once.
func TestRepeatSettlesOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(k *keyed) []func(string, *models.Call) []models.Part
		calls  int
		state  models.State
		copies int
	}{
		"it had the mail": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost}
		}, 2, models.Sent, 1},
		"it had not": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.unheard}
		}, 2, models.Sent, 1},
		"no answer thrice": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, k.unheard, k.lost}
		}, 4, models.Sent, 1},
		"the repeat is throttled": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, says(models.Throttled, 429)}
		}, 3, models.Sent, 1},
		"it is down then": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, says(models.Unavailable, 503)}
		}, 3, models.Sent, 1},
		"another body has the key": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, says(models.Unknown, 409), says(models.Unknown, 409), says(models.Unknown, 409)}
		}, 5, models.Sent, 1},
		"it refuses the mail": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.unheard, says(models.RejectedRequest, 422)}
		}, 2, models.Failed, 0},
		"a proxy refuses the call": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, says(models.RejectedHereClass, 400)}
		}, 3, models.Sent, 1},
		"another version would not make the call": {func(k *keyed) []func(string, *models.Call) []models.Part {
			return []func(string, *models.Call) []models.Part{k.lost, says(models.RejectedRequest, 0)}
		}, 3, models.Sent, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, k, other := newKeyed(t)
				k.before = c.before(k)
				b := f.batchWith(t, 3, models.Hold, onlyA)
				f.handle(t, b, 20*time.Minute)
				m := models.Message{Kind: models.ProviderMessage, Provider: "b", ID: b.ID, Lane: models.Bulk}
				require.True(t, f.HandleProvider(t.Context(), m).IsDone())
				require.Len(t, k.calls, c.calls)
				for _, call := range k.calls {
					require.Equal(t, k.calls[0], call, "the same attempt and recipients")
				}
				require.Len(t, k.copies, c.copies)
				require.Empty(t, other.calls)
				loaded, err := f.Chunks.Load(t.Context(), b.ID)
				require.NoError(t, err)
				for r := 1; r <= 3; r++ {
					s := loaded.View.Status(r)
					require.Equal(t, c.state, s.State)
					require.Equal(t, 1, s.Attempts)
				}
			})
		})
	}
}

// TestRepeatByAnotherWorker: a worker that was killed between the call and its repeat, or during the repeat, is followed
// by another one once its call cannot run any more. Two workers never repeat a call at the same time.
func TestRepeatByAnotherWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, k, other := newKeyed(t)
		b := f.batchWith(t, 2, models.Hold, onlyA)
		now := time.Now().UTC()
		entry := models.Entry{Number: 1, Token: models.NewToken(), Kind: models.Attempt, Provider: "a",
			Recipients: models.SetTo(2), At: now, StartBy: now.Add(5 * time.Second), CallEnds: now.Add(6 * time.Second)}
		require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
		f.handle(t, b, 8*time.Second)
		require.Empty(t, k.calls, "the call of the first worker may run")
		entry.Number, entry.Token, entry.Kind, entry.Repeats = 2, models.NewToken(), models.Repeat, 1
		now = time.Now().UTC()
		entry.At, entry.StartBy, entry.CallEnds = now, now.Add(5*time.Second), now.Add(6*time.Second)
		require.NoError(t, f.store.Append(t.Context(), b.ID, entry))
		f.handle(t, b, 15*time.Second)
		require.Empty(t, k.calls, "the repeat of the second worker may run")
		f.handle(t, b, time.Minute)
		require.Equal(t, []string{fmt.Sprint(1, " ", models.SetTo(2))}, k.calls)
		require.Equal(t, models.Sent, f.status(t, b, 1).State)
		require.Empty(t, other.calls)
	})
}

// TestNoRepeatForUnwanted: once a recipient is suppressed or erased, the call is not repeated, and evidence decides.
func TestNoRepeatForUnwanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, k, other := newKeyed(t)
		k.before = []func(string, *models.Call) []models.Part{k.lost}
		b := f.batchWith(t, 2, models.Hold, onlyA)
		f.handle(t, b, time.Second)
		require.Len(t, k.calls, 1)
		f.suppress(t, b.User, "u2@x.test", models.Complaint)
		f.handle(t, b, 50*time.Minute)
		require.Len(t, k.calls, 1)
		require.Empty(t, other.calls)
		require.Equal(t, models.Queued, f.status(t, b, 1).State)
		ledger, err := f.store.Ledger(t.Context(), b.ID)
		require.NoError(t, err)
		require.Len(t, ledger, 2)
		require.Equal(t, models.Suppressed, ledger[1].Reason)
		f.handle(t, b, 15*time.Minute)
		require.Equal(t, models.OutcomeUnknown, f.status(t, b, 1).Reason)
	})
}

// TestNoRepeatAfterKey: nothing is repeated once the provider may have forgotten the key.
func TestNoRepeatAfterKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, k, _ := newKeyed(t)
		b := f.batchWith(t, 1, models.Hold, onlyA)
		at := time.Now().Add(-24 * time.Hour).UTC()
		require.NoError(t, f.store.Append(t.Context(), b.ID, models.Entry{Number: 1, Token: models.NewToken(),
			Kind: models.Attempt, Provider: "a", Recipients: models.SetTo(1), At: at, CallEnds: time.Now().UTC()}))
		f.handle(t, b, 2*time.Hour)
		require.Empty(t, k.calls)
		require.Equal(t, models.OutcomeUnknown, f.status(t, b, 1).Reason)
	})
}

// TestRepeatAfterShareHasShrunk: a repeat has the recipients of its attempt, also if they are more than the rate of the
// worker lets it save up since another one has joined.
func TestRepeatAfterShareHasShrunk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{copies: map[string]int{}}
		f := fixtureOf(t, time.Hour, []provider.Spec{{Adapter: k, Provider: models.Provider{Name: "a", Weight: 1,
			Concurrency: 4, ChunkLimit: 1000, Timeout: time.Second, Events: models.EventsWebhook, KeyLifetime: 24 * time.Hour,
			Rate: 10}}})
		b := f.batchWith(t, 100, models.Hold, func(b *models.Batch) { b.Providers = []string{"a"} })
		f.attempted(t, b, "a")
		f.handle(t, b, 2*time.Minute)
		require.Equal(t, []string{fmt.Sprint(1, " ", models.SetTo(100))}, k.calls)
	})
}

// TestLateRepeat: a repeat that waited for a slot until the key may be forgotten is not made.
func TestLateRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _, _ := newKeyed(t)
		c, err := f.Chunks.Load(t.Context(), f.batchWith(t, 1, models.Hold, onlyA).ID)
		require.NoError(t, err)
		j := &job{Provider: f.Providers.Get("a"), Step: &policy.Step{Repeats: 1, Until: time.Now().Add(time.Minute)}}
		require.NoError(t, f.commands.mayCall(t.Context(), c, j, time.Second))
		time.Sleep(time.Minute)
		require.ErrorIs(t, f.commands.mayCall(t.Context(), c, j, time.Second), errHeldBack)
	})
}

// TestNoRepeatAtAnotherAccount: another account of the provider does not know the key, and would send the mail again.
func TestNoRepeatAtAnotherAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, k, other := newKeyed(t)
		k.account, k.before = "one", []func(string, *models.Call) []models.Part{k.lost}
		b := f.batchWith(t, 2, models.Hold, onlyA)
		f.handle(t, b, time.Second)
		k.account = "two"
		f.handle(t, b, 50*time.Minute)
		require.Len(t, k.calls, 1)
		require.Empty(t, other.calls)
		ledger, err := f.store.Ledger(t.Context(), b.ID)
		require.NoError(t, err)
		require.Len(t, ledger, 2)
		require.Equal(t, models.ProviderAccount, ledger[1].Reason)
	})
}
