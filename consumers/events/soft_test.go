package events

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/store/memory"
)

// softRig is a worker that suppresses an address after three soft bounces in a row.
type softRig struct {
	*matchRig
	cfg        Config
	soft       *SoftDecider
	suppressor *suppressor
}

func newSoftRig(t *testing.T) *softRig {
	r := &softRig{matchRig: newMatchRig(t), cfg: testConfig()}
	r.cfg.Worker, r.cfg.SoftBounces = "w", 3
	r.cfg.SoftBounceExpiry, r.cfg.SoftBouncePoll = 7*24*time.Hour, 10*time.Second
	r.cfg.KeepContent = 90 * 24 * time.Hour
	r.restart(r.store)
	return r
}

// restart replaces the worker by another one, with a store and the configuration as it is now.
func (r *softRig) restart(store interface {
	Store
	suppression.Store
}) {
	lists := suppression.New(store, suppression.DefaultMemory)
	r.soft = NewSoftDecider(r.cfg, store, r.Chunks, lists)
	r.suppressor = &suppressor{store, r.Chunks, lists, r.cfg.SoftBounces}
}

// mail sends mail to an address and to another one, and returns the log of the address.
func (r *softRig) mail(ago time.Duration, address string) models.ID {
	r.Helper()
	chunk := r.send(ago, "sg", address, "other@x.test")
	r.answer(chunk, models.Accepted, "")
	return chunk.Log(1)
}

// end ends a log, because no provider is left.
func (r *softRig) end(log models.ID) {
	r.Helper()
	require.NoError(r, r.store.Append(r.Context(), log.ChunkID(), models.Entry{
		Number:     2,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		Reason:     models.NoProviderLeft,
		Recipients: models.SetOf(log.Recipient()),
		At:         time.Now(),
	}))
}

// group returns a group with one event of a log.
func group(log models.ID, ev models.Event) *eventGroup {
	ev.Recipient, ev.Attempt, ev.Provider = log.Recipient(), 1, "sg"
	ev.ID = fmt.Sprint(log, ev.Kind, ev.At.UnixNano())
	g := newEventGroup(0)
	g.fact(log.ChunkID(), models.Fact{Key: "e" + ev.ID, Events: []models.Event{ev}})
	return g
}

// take stores an event of a log and what follows from it for the lists.
func (r *softRig) take(log models.ID, kind models.EventKind, reason models.Reason, at time.Time) {
	r.Helper()
	g := group(log, models.Event{Kind: kind, Reason: reason, At: at})
	require.NoError(r, r.store.PutFacts(r.Context(), g.facts...))
	require.NoError(r, r.suppressor.suppress(r.Context(), g))
}

// bounced sends mail some time ago that bounced a minute later and was given up.
func (r *softRig) bounced(ago time.Duration, address string) models.ID {
	r.Helper()
	log := r.mail(ago, address)
	r.take(log, models.Bounced, models.MailboxFull, time.Now().Add(time.Minute-ago))
	r.end(log)
	return log
}

func (r *softRig) decide() {
	r.Helper()
	require.NoError(r, r.soft.Decide(r.Context(), time.Now()))
}

// entries returns the entries of an address in the list of the user.
func (r *softRig) entries(address string) []models.Suppression {
	es, err := r.store.SuppressionsOf(r.Context(), r.user.ID, models.HashAddress(address))
	require.NoError(r, err)
	return es
}

// held reports whether mail to an address is held back, as a process that has just started finds.
func (r *softRig) held(address string) bool {
	r.Helper()
	found, err := suppression.New(r.store, suppression.DefaultMemory).Suppressed(r.Context(),
		suppression.Mail{User: r.user.ID, PassUnsubscribes: true}, 1, func(int) string { return address }, 0)
	require.NoError(r, err)
	return len(found.Suppressed) == 1
}

// record returns the mails that bounced, as they are stored.
func (r *softRig) record(address string) (bounces []softbounce.Bounce) {
	records, err := softbounce.Records(
		r.Context(),
		r.store,
		r.user.ID,
		[]models.AddressHash{models.HashAddress(address)},
	)
	require.NoError(r, err)
	for _, record := range records {
		bounces = append(bounces, record.Bounces...)
	}
	return bounces
}

// due counts the addresses that are not decided, also those of later.
func (r *softRig) due() (n int) {
	for shard := range softbounce.Shards {
		byUser, err := softbounce.DueOf(r.Context(), r.store, shard, time.Now().Add(24*time.Hour))
		require.NoError(r, err)
		for _, due := range byUser {
			n += len(due)
		}
	}
	return n
}

// TestSoftBouncesInARow: three mails that bounced in a row suppress an address, also for urgent mail that
// passes unsubscribes, until the entry expires. Nothing less does.
func TestSoftBouncesInARow(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	for _, ago := range []time.Duration{3 * time.Hour, 2 * time.Hour} {
		r.bounced(ago, "Ann@x.test")
		r.bounced(ago, "two@x.test")
	}
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	last := r.bounced(time.Hour, "ann@x.test")
	one := r.mail(time.Hour, "one@x.test")
	r.end(one)
	for i := range 5 {
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		r.take(one, models.Bounced, models.MailboxFull, at)
		r.take(one, models.Blocked, models.DNSOrConnect, at)
		r.take(r.mail(time.Hour, "slow@x.test"), models.Deferred, models.MailboxFull, at)
		for _, reason := range []models.Reason{models.PolicyContent, models.PolicyReputation, models.RateLimited} {
			log := r.mail(time.Hour, "sender@x.test")
			r.take(log, models.Blocked, reason, at)
			r.end(log)
		}
	}
	r.decide()
	es := r.entries("ann@x.test")
	require.Len(t, es, 1)
	require.Equal(t, models.SoftBounce, es[0].Reason)
	require.Equal(t, models.FromEvent, es[0].Origin)
	require.Equal(t, last, es[0].Log)
	require.Equal(t, "sg", es[0].By)
	require.Equal(t, "3 mails in a row; the last one: the mailbox is full or not available", es[0].Why)
	require.Equal(t, es[0].At.Add(7*24*time.Hour), es[0].Expires)
	require.True(t, r.held("ann@x.test"))
	for _, address := range []string{"one@x.test", "two@x.test", "slow@x.test", "sender@x.test", "other@x.test"} {
		require.Empty(t, r.entries(address), address)
	}
	require.Zero(t, r.due())
}

// TestDeliveryEndsTheRow: what bounced before a delivery does not count, whichever mail it was.
func TestDeliveryEndsTheRow(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	old := r.mail(50*time.Hour, "ann@x.test") // the provider tried for two days
	r.bounced(5*time.Hour, "ann@x.test")
	r.bounced(4*time.Hour, "ann@x.test")
	r.take(old, models.Delivered, "", time.Now().Add(-3*time.Hour))
	r.bounced(2*time.Hour, "ann@x.test")
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	require.Len(t, r.record("ann@x.test"), 1)
	r.bounced(time.Hour, "ann@x.test")
	r.bounced(time.Minute, "ann@x.test")
	r.decide()
	require.Len(t, r.entries("ann@x.test"), 1)
}

// TestMailOnItsWay: nothing is decided while one of the mails may still be delivered through another provider.
func TestMailOnItsWay(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	var last []models.ID
	for _, address := range []string{"ann@x.test", "bob@x.test"} {
		r.bounced(3*time.Hour, address)
		r.bounced(2*time.Hour, address)
		last = append(last, r.mail(time.Minute, address))
		r.take(last[len(last)-1], models.Blocked, models.DNSOrConnect, time.Now())
	}
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	require.Equal(t, 2, r.due())
	r.end(last[0])
	require.NoError(t, r.store.Append(t.Context(), last[1].ChunkID(), models.Entry{
		Number: 2, Token: models.NewToken(), Kind: models.Attempt, Provider: "mg", Recipients: models.SetOf(1), At: time.Now(),
	}))
	delivered := models.Event{ID: "d", Kind: models.Delivered, Recipient: 1, Attempt: 2, Provider: "mg", At: time.Now()}
	require.NoError(t, r.store.PutFacts(t.Context(), models.ChunkFact{Chunk: last[1].ChunkID(),
		Fact: models.Fact{Key: "d", Events: []models.Event{delivered}}}))
	r.decide()
	require.Equal(t, 2, r.due(), "it is looked again after a pause")
	require.NoError(t, r.soft.Decide(t.Context(), time.Now().Add(time.Minute)))
	require.Len(t, r.entries("ann@x.test"), 1)
	require.Empty(t, r.entries("bob@x.test"))
	require.Zero(t, r.due())
}

// TestAfterTheEntry: what bounced before an address was removed from the list does not count any more. When
// an entry has expired, the next bounce in the row renews it. An entry that a person added stays as it is.
func TestAfterTheEntry(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	forever := models.NewSuppression("kept@x.test", models.SoftBounce, models.FromAPI, time.Now().Add(-24*time.Hour))
	require.NoError(t, r.suppressor.suppressions.Add(t.Context(), r.user.ID, forever))
	for _, ago := range []time.Duration{40, 30, 20} {
		for _, address := range []string{"removed@x.test", "expired@x.test", "kept@x.test"} {
			r.bounced(ago*24*time.Hour, address)
		}
	}
	r.decide()
	require.Empty(t, r.entries("expired@x.test"), "it would have expired")
	removed := models.NewSuppression("removed@x.test", models.SoftBounce, models.FromAPI, time.Now().Add(-24*time.Hour))
	removed.Removed = true
	require.NoError(t, r.store.PutSuppressions(t.Context(), r.user.ID, removed))
	for _, address := range []string{"removed@x.test", "expired@x.test", "kept@x.test"} {
		r.bounced(3*time.Hour, address)
	}
	r.decide()
	require.Equal(t, []models.Suppression{forever}, r.entries("kept@x.test"))
	require.True(t, r.held("expired@x.test"))
	require.False(t, r.held("removed@x.test"))
	require.Len(t, r.record("removed@x.test"), 1)
}

// TestOldBounces: a bounce does not count when it is not known any more what was delivered after it.
func TestOldBounces(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	for _, ago := range []time.Duration{91 * 24 * time.Hour, 2 * time.Hour, time.Hour} {
		r.bounced(ago, "ann@x.test")
	}
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	require.Len(t, r.record("ann@x.test"), 2)
}

// TestFewerSoftBounces: when the number is lowered, only the newest bounces count, and what was delivered among them.
func TestFewerSoftBounces(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	r.cfg.SoftBounces = 6
	r.restart(r.store)
	for _, ago := range []time.Duration{8, 7, 6, 4, 3, 1} {
		r.bounced(ago*time.Hour, "ann@x.test")
	}
	r.take(r.mail(15*time.Hour/2, "ann@x.test"), models.Delivered, "", time.Now().Add(-13*time.Hour/2))
	r.take(r.mail(9*time.Hour, "ann@x.test"), models.Delivered, "", time.Now().Add(-5*time.Hour/2))
	r.cfg.SoftBounces = 3
	r.restart(r.store)
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	require.Len(t, r.record("ann@x.test"), 1)
}

// TestErasedAddress: the record of an address whose mail names it no more is removed, and nothing is suppressed.
func TestErasedAddress(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	for _, ago := range []time.Duration{3 * time.Hour, 2 * time.Hour, time.Hour} {
		_, err := r.store.Erase(t.Context(), r.bounced(ago, "ann@x.test").ChunkID(), "ann@x.test")
		require.NoError(t, err)
	}
	require.Len(t, r.record("ann@x.test"), 3)
	r.decide()
	require.Empty(t, r.entries("ann@x.test"))
	require.Empty(t, r.record("ann@x.test"))
	require.Zero(t, r.due())
}

// TestSoftBouncesInAnyOrder: whatever the order of the reports, however often they are repeated and whenever it is
// decided, the list has what a count of the mails gives.
func TestSoftBouncesInAnyOrder(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	begin := time.Now().UTC().Truncate(time.Millisecond).Add(-time.Hour)
	checks := 0
	rapid.Check(t, func(t *rapid.T) {
		checks++
		address := fmt.Sprintf("u%d@x.test", checks)
		minute := func(name string) time.Time {
			return begin.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, name)) * time.Minute)
		}
		type report struct {
			log models.ID
			at  time.Time
		}
		var reports []report
		var delivered time.Time
		ends := map[models.ID]time.Time{} // when the mails bounced at last
		for range rapid.IntRange(1, 6).Draw(t, "mails") {
			log := r.mail(2*time.Hour, address)
			if rapid.IntRange(0, 4).Draw(t, "delivered") == 0 {
				at := minute("delivered at")
				r.take(log, models.Delivered, "", at)
				delivered = models.LaterOf(delivered, at)
				continue
			}
			for range rapid.IntRange(1, 2).Draw(t, "reports") {
				at := minute("bounced at")
				reports = append(reports, report{log, at})
				ends[log] = models.LaterOf(ends[log], at)
			}
			r.end(log)
		}
		n, newest := 0, time.Time{}
		for _, at := range ends {
			if at.After(delivered) {
				n, newest = n+1, models.LaterOf(newest, at)
			}
		}
		again := append(reports, reports[:len(reports)/2]...)
		if len(again) > 1 {
			again = rapid.Permutation(again).Draw(t, "order")
		}
		for _, b := range again {
			r.take(b.log, models.Bounced, models.MailboxFull, b.at)
			if rapid.Bool().Draw(t, "decide") {
				r.decide()
			}
		}
		r.decide()
		es := r.entries(address)
		if n < 3 {
			require.Empty(t, es)
			return
		}
		require.Len(t, es, 1)
		require.Equal(t, newest, es[0].At)
	})
}

var errKilled = errors.New("killed")

// killedStore is a store whose process is killed before its n-th call.
type killedStore struct {
	*memory.Store
	left int
}

func (k *killedStore) killed() error {
	if k.left--; k.left < 0 {
		return errKilled
	}
	return nil
}

func (k *killedStore) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	return errors.Join(k.killed(), unlessKilled(k, func() error { return k.Store.PutDocument(ctx, owner, kind, d) }))
}

func (k *killedStore) PutDocuments(ctx context.Context, owner, kind string, ds []models.Document) ([]int, error) {
	if err := k.killed(); err != nil {
		return nil, err
	}
	return k.Store.PutDocuments(ctx, owner, kind, ds)
}

func (k *killedStore) RemoveDocuments(ctx context.Context, owner, kind string, ds []models.Document) error {
	return errors.Join(
		k.killed(),
		unlessKilled(k, func() error { return k.Store.RemoveDocuments(ctx, owner, kind, ds) }),
	)
}

func (k *killedStore) PutSuppressions(ctx context.Context, list string, es ...models.Suppression) error {
	return errors.Join(k.killed(), unlessKilled(k, func() error { return k.Store.PutSuppressions(ctx, list, es...) }))
}

func (k *killedStore) AppendAddition(ctx context.Context, list string, a models.SuppressionAddition) error {
	return errors.Join(k.killed(), unlessKilled(k, func() error { return k.Store.AppendAddition(ctx, list, a) }))
}

func unlessKilled(k *killedStore, f func() error) error {
	if k.left < 0 {
		return nil
	}
	return f()
}

// TestKilledWhileItCounts: a worker is killed before each of its writes, from the first bounce to the end of the
// decision, and another one goes on. The address is suppressed, its marks are known, and each mail counts once.
func TestKilledWhileItCounts(t *testing.T) {
	t.Parallel()
	r := newSoftRig(t)
	for writes := 0; ; writes++ {
		require.Less(t, writes, 30)
		address, other := fmt.Sprintf("u%d@x.test", writes), fmt.Sprintf("v%d@x.test", writes)
		store := &killedStore{r.store, writes}
		kills := 0
		// try does something until a worker was not killed. The first one is killed after some writes.
		try := func(do func() error) {
			t.Helper()
			r.restart(store)
			err := do()
			if errors.Is(err, errKilled) {
				kills++
				store.left = 1000
				r.restart(store)
				err = do()
			}
			require.NoError(t, err)
		}
		for i := range 3 {
			for _, to := range []string{address, other}[:2-i/2] {
				log := r.mail(time.Hour, to)
				r.end(log)
				ev := models.Event{Kind: models.Bounced, Reason: models.MailboxFull, At: time.Now()}
				for range 2 {
					try(func() error { return r.suppressor.suppress(t.Context(), group(log, ev)) })
				}
			}
		}
		try(func() error { return r.soft.Decide(t.Context(), time.Now()) })
		require.True(t, r.held(address), "%d writes", writes)
		require.False(t, r.held(other))
		require.Len(t, r.entries(address), 1)
		require.Len(t, r.record(address), 3)
		require.Len(t, r.record(other), 2)
		require.Zero(t, r.due())
		if kills == 0 {
			require.Greater(t, writes, 8)
			return
		}
	}
}
