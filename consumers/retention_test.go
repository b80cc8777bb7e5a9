package consumers

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/clientid"
)

// TestRetention: the content and the addresses of an old batch are removed, and its states are
// kept. It cannot be sent again. If a purge stops early, the next one removes the rest.
func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		cfg := fast()
		cfg.FinalEvent = time.Hour
		r := newRig(t, cfg, nil, p)
		ctx := t.Context()
		r.known()
		old := []*models.Batch{r.batch(3, true, nil), r.batch(2, true, nil)}
		for _, b := range old {
			require.EqualValues(t, b.Recipients, r.done(b).Summary().Success)
		}
		// A worker that lost the race for the first attempt writes the address index, too.
		require.Eventually(t, func() bool { return r.idle() }, patience, 5*time.Millisecond)
		found := func(address string) (n int) {
			for pr, err := range r.store.AddressIndexes(ctx, r.user, time.Now(), models.ID{}) {
				require.NoError(t, err)
				if pr.MayContain(models.Fingerprint(address)) {
					n++
				}
			}
			return n
		}
		require.Equal(t, 2, found("U2@X.test"))

		later := time.Now().Add(91 * 24 * time.Hour)
		for _, at := range []time.Time{time.Now().Add(time.Hour), later.Add(time.Hour)} {
			require.NoError(t, r.store.PutDue(ctx, r.user, models.Due{At: at, Batch: old[0].ID}))
		}
		due := func() int {
			found, err := r.store.Dues(ctx, r.user, models.ID{}, false, 10)
			require.NoError(t, err)
			return len(found)
		}
		require.NoError(t, r.engine.Purge(ctx, time.Now()), "nothing is old yet")
		require.Equal(t, 2, due())
		b, err := r.store.Batch(ctx, old[0].ID)
		require.NoError(t, err)
		require.False(t, b.Redacted)

		require.NoError(t, r.store.Redact(ctx, old[1].ID)) // a purge stopped after the newest
		for range 2 {
			require.NoError(t, r.engine.Purge(ctx, later))
			for _, o := range old {
				b, err := r.store.Batch(ctx, o.ID)
				require.NoError(t, err)
				require.True(t, b.Redacted)
				require.Empty(t, b.Content)
				_, err = r.store.Recipients(ctx, o.ID)
				require.ErrorIs(t, err, models.ErrNotFound)
				require.EqualValues(t, o.Recipients, r.view(o).Summary().Success)
			}
			require.Zero(t, found("u2@x.test"))
		}
		require.Equal(t, 1, due(), "the time that has passed is removed")
		calls := p.count()
		r.order(models.Command{Kind: models.RetryBatch, Batch: old[0].ID})
		r.announce(old[0])
		require.Eventually(t, func() bool { return r.idle() }, patience, 5*time.Millisecond)
		require.Equal(t, calls, p.count())
	})
}

// TestRetentionOfClientIDs: the ids of messages go with the logs of their last version, also those of recipients that
// were erased before. Their digests are kept as long as the logs.
func TestRetentionOfClientIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.Accepted))
		cfg := fast()
		cfg.FinalEvent, cfg.KeepLogs = time.Hour, 200*24*time.Hour
		r := newRig(t, cfg, nil, p)
		ctx := t.Context()
		r.known()
		ids := []string{"a", "b", "c"}
		b := r.batch(3, true, func(b *models.Batch, rs []models.Recipient) {
			b.ClientIDs = true
			for i := range rs {
				rs[i].ClientID = ids[i]
			}
		})
		require.EqualValues(t, 3, r.done(b).Summary().Success)
		messages := func(want ...string) {
			t.Helper()
			there, err := clientid.Read(ctx, r.store, r.user, ids)
			require.NoError(t, err)
			require.ElementsMatch(t, want, slices.Collect(maps.Keys(there)))
		}
		rows := map[string]clientid.Message{}
		for i, id := range ids {
			var m clientid.Message
			rows[id] = m.Add(clientid.Version{Log: b.ID.Log(i + 1), Hash: "h"})
		}
		_, err := clientid.Put(ctx, r.store, r.user, rows)
		require.NoError(t, err)
		there, err := clientid.Read(ctx, r.store, r.user, []string{"c"})
		require.NoError(t, err)
		newer := there["c"]
		newer = newer.Add(clientid.Version{Log: models.NewBatchID(time.Now()).Log(1), Hash: "h"})
		lost, err := clientid.Put(ctx, r.store, r.user, map[string]clientid.Message{"c": newer})
		require.NoError(t, err)
		require.Empty(t, lost)

		rs, err := r.store.Recipients(ctx, b.ID)
		require.NoError(t, err)
		require.NoError(t, clientid.Remember(ctx, r.store, b.ID, rs[:1])) // an erasure notes it before
		_, err = r.store.Erase(ctx, b.ID, rs[0].Email)
		require.NoError(t, err)
		messages("a", "b", "c")
		require.NoError(t, r.engine.Purge(ctx, time.Now().Add(91*24*time.Hour)))
		_, err = r.store.Recipients(ctx, b.ID)
		require.ErrorIs(t, err, models.ErrNotFound)
		messages("a", "b", "c")
		require.NoError(t, r.engine.Purge(ctx, time.Now().Add(300*24*time.Hour)))
		_, err = r.store.Batch(ctx, b.ID)
		require.ErrorIs(t, err, models.ErrNotFound)
		messages("c") // it has a newer version
		left, err := r.store.Documents(ctx, b.ID.String(), "message-keys", "", 10)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

// TestPurgeOfUnfinishedBatch: the content of an old batch that is unfinished is removed later, even
// if that of newer ones was removed before.
func TestPurgeOfUnfinishedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.KeepContent, cfg.FinalEvent = 24*time.Hour, time.Hour
		r := emptyRig(t, nil, "sg")
		ctx := t.Context()
		r.known()
		until := func(d time.Duration) func(*models.Batch, []models.Recipient) {
			return func(b *models.Batch, _ []models.Recipient) { b.ExpiresAt = time.Now().Add(d) }
		}
		const day = 24 * time.Hour
		first, long, last := r.batch(1, false, until(day)), r.batch(1, false, until(20*day)), r.batch(1, false, until(day))
		e, err := New(r.store, r.broker, nil, cfg)
		require.NoError(t, err)
		redacted := func() (out []bool) {
			for _, b := range []*models.Batch{first, long, last} {
				got, err := r.store.Batch(ctx, b.ID)
				require.NoError(t, err)
				out = append(out, got.Redacted)
			}
			return out
		}
		require.NoError(t, e.Purge(ctx, time.Now().Add(2*day)))
		require.Equal(t, []bool{true, false, true}, redacted())
		require.NoError(t, e.Purge(ctx, time.Now().Add(22*day)))
		require.Equal(t, []bool{true, true, true}, redacted())
	})
}

// TestPurgeKeepsMovedBatch: the content of a batch with changed times is kept until it expires by the new ones. If
// recipients have times of their own, it is kept until the last of them expires.
func TestPurgeKeepsMovedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		const day = 24 * time.Hour
		cfg.KeepContent, cfg.FinalEvent = day, time.Hour
		r := newRig(t, cfg, nil)
		r.known()
		now := time.Now()
		b := r.batch(1, false, func(b *models.Batch, _ []models.Recipient) {
			b.DeliverAt, b.ExpiresAt = now.Add(day), now.Add(2*day)
		})
		own := r.batch(1, false, func(b *models.Batch, _ []models.Recipient) {
			b.Own = []models.OwnTimes{{Schedule: models.Schedule{ExpiresAt: now.Add(11 * day)}}}
		})
		r.order(models.Command{
			Kind:     models.RescheduleBatch,
			Batch:    b.ID,
			Schedule: &models.Schedule{DeliverAt: now.Add(10 * day), ExpiresAt: now.Add(11 * day)},
		})
		for days, redacted := range []bool{2: false, 10: false, 12: true} {
			require.NoError(t, r.engine.Purge(t.Context(), now.Add(time.Duration(days)*day)))
			for _, id := range []models.ID{b.ID, own.ID} {
				got, err := r.store.Batch(t.Context(), id)
				require.NoError(t, err)
				require.Equal(t, redacted, got.Redacted, "after %d days", days)
			}
		}
	})
}

// TestPurgeSkipsDamagedBatch: a batch that cannot be read is reported, and does not stop the purge of
// others. Its content is removed when it can be read again.
func TestPurgeSkipsDamagedBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &spoilt{heads: map[models.ID]bool{}}
		r := emptyRig(t, func(store models.Store) models.Store {
			s.Store = store
			return s
		}, "sg")
		r.known()
		cfg := fast()
		cfg.KeepContent = time.Hour
		var all []*models.Batch
		for range 3 {
			all = append(
				all,
				r.batch(1, false, func(b *models.Batch, _ []models.Recipient) { b.ExpiresAt = time.Now().Add(time.Hour) }),
			)
		}
		e, err := New(r.store, r.broker, nil, cfg)
		require.NoError(t, err)
		redacted := func() (out []bool) {
			for _, b := range all {
				got, err := r.store.Batch(t.Context(), b.ID)
				require.NoError(t, err)
				out = append(out, got.Redacted)
			}
			return out
		}
		later := time.Now().Add(30 * 24 * time.Hour)
		s.heads[all[1].ID] = true
		for range 2 {
			err = e.Purge(t.Context(), later)
			require.ErrorIs(t, err, models.ErrDamaged)
			require.ErrorContains(t, err, all[1].ID.String())
			require.Equal(t, []bool{true, false, true}, redacted())
		}
		delete(s.heads, all[1].ID)
		require.NoError(t, e.Purge(t.Context(), later))
		require.Equal(t, []bool{true, true, true}, redacted())
	})
}

// TestReleaseAfterPurge: released mail that was not handed over before its content and addresses
// were removed ends with that reason. It delays no other mail, even if a block asks for its
// addresses.
func TestReleaseAfterPurge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newScripted("sg", always(models.RejectedHereClass))
		cfg := fast()
		cfg.KeepContent = time.Minute
		r := newRig(t, cfg, nil, p)
		ctx := t.Context()
		b := r.batch(3, false, func(b *models.Batch, _ []models.Recipient) {
			b.ID, b.ExpiresAt = models.NewBatchID(time.Now().Add(-time.Hour)), time.Now().Add(-time.Minute)
		})
		require.Equal(t, models.Expired, r.done(b).Status(1).Reason)
		require.Zero(t, p.count())
		r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
		r.order(models.Command{Kind: models.AddBlock, Block: &models.Block{ID: "b", Domain: "elsewhere.test"}})
		r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID})
		require.NoError(
			t,
			r.store.Schedule(
				ctx,
				models.AgendaEntry{Due: time.Now(), Kind: models.LookAtBatch, ID: b.ID, User: b.User, Chunks: 1},
			),
		)
		require.Eventually(t, func() bool { return open(r.view(b)) == 3 }, patience, 5*time.Millisecond)
		r.looked(b)
		require.NoError(t, r.store.Redact(ctx, b.ID))
		v := r.done(b)
		require.Equal(t, models.Expired, v.Status(3).Reason)
		require.Equal(t, "its content and addresses were removed after their time", v.Status(3).Detail)
		other := r.batch(1, false, nil)
		r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
		require.Equal(t, models.NoProviderLeft, r.done(other).Status(1).EndedBy)
		require.Equal(t, 1, p.count())
	})
}
