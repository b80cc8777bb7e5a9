package retention

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/store/memory"
)

// rig is Retention on a store with one user.
type rig struct {
	*Retention
	store *memory.Store
	user  string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	s := memory.Open(t)
	r := &rig{store: s, user: models.NewUserID()}
	cfg := Config{
		Times: settings.Times{
			KeepContent: 90 * 24 * time.Hour,
			KeepLogs:    365 * 24 * time.Hour,
			KeepUpdates: 24 * time.Hour,
			FinalEvent:  time.Hour,
		},
		Worker: "w",
		Logger: slog.New(slog.DiscardHandler),
	}
	r.Retention = New(cfg, s, control.NewFollower(s))
	u := models.User{ID: r.user, Name: "u", Created: time.Now().UTC().Truncate(time.Millisecond)}
	require.NoError(t, s.CreateUser(t.Context(), u))
	return r
}

// TestRetentionOfUpdates: updates are kept for a set time.
func TestRetentionOfUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		now := time.Now().UTC()
		for n := 1; n <= 10; n++ {
			require.NoError(t, r.store.AppendFeed(t.Context(), r.user, models.FeedEntry{
				Number:  n,
				Token:   models.NewToken(),
				At:      now.Add(time.Duration(n) * time.Hour),
				Settled: n - 1,
			}))
		}
		first := func() int {
			entries, err := r.store.Feed(t.Context(), r.user, 0, 1)
			require.NoError(t, err)
			return entries[0].Number
		}
		require.NoError(t, r.Purge(t.Context(), now.Add(25*time.Hour)))
		require.Equal(t, 1, first())
		require.NoError(t, r.Purge(t.Context(), now.Add(29*time.Hour)))
		require.Equal(t, 5, first())
		require.NoError(t, r.Purge(t.Context(), now.Add(99*time.Hour)))
		require.Equal(t, 10, first())
	})
}

// TestRetentionOfSoftBounces: what is known of the soft bounces of an address goes with its mail.
func TestRetentionOfSoftBounces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx := t.Context()
		h := models.HashAddress("ann@x.test")
		bounce := softbounce.Bounce{Log: models.NewBatchID(time.Now()).Log(1), At: time.Now(), Provider: "sg"}
		require.NoError(t, softbounce.Note(ctx, r.store, r.user, 5, map[models.AddressHash][]softbounce.Bounce{h: {bounce}}))
		require.NoError(t, r.Purge(ctx, time.Now().AddDate(0, 0, 89)))
		records, err := softbounce.Records(ctx, r.store, r.user, []models.AddressHash{h})
		require.NoError(t, err)
		require.Len(t, records, 1)
		require.NoError(t, r.Purge(ctx, time.Now().AddDate(0, 0, 91)))
		records, err = softbounce.Records(ctx, r.store, r.user, []models.AddressHash{h})
		require.NoError(t, err)
		require.Empty(t, records)
	})
}

// TestRetentionOfKeys: a key goes when it was revoked, or expired, for as long as logs are kept.
func TestRetentionOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, ctx, now := newRig(t), t.Context(), time.Now()
		names := map[string]string{}
		add := func(name string, change func(k *models.Key)) {
			t.Helper()
			k, _ := models.NewKey(r.user, name, now)
			change(&k)
			require.NoError(t, r.store.CreateKey(ctx, k))
			names[k.ID] = name
		}
		add("in use", func(*models.Key) {})
		add("revoked", func(k *models.Key) { k.Revoked = now })
		add("expired", func(k *models.Key) { k.Expires = now.Add(time.Hour) })
		left := func() (out []string) {
			keys, err := r.store.Keys(ctx, r.user)
			require.NoError(t, err)
			for i := range keys {
				out = append(out, names[keys[i].ID])
			}
			return out
		}
		kept := r.cfg.KeepLogs
		require.NoError(t, r.Purge(ctx, now.Add(kept)))
		require.ElementsMatch(t, []string{"in use", "revoked", "expired"}, left())
		require.NoError(t, r.Purge(ctx, now.Add(kept+time.Minute)))
		require.ElementsMatch(t, []string{"in use", "expired"}, left())
		require.NoError(t, r.Purge(ctx, now.Add(kept+2*time.Hour)))
		require.Equal(t, []string{"in use"}, left())
	})
}

// TestOneWorkerPurges: while another worker purges, this one does not, and takes over when that one is gone.
func TestOneWorkerPurges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		h := models.HashAddress("ann@x.test")
		old := softbounce.Bounce{Log: models.NewBatchID(time.Now()).Log(1), At: time.Now().Add(-2 * r.cfg.KeepContent)}
		require.NoError(t, softbounce.Note(t.Context(), r.store, r.user, 5,
			map[models.AddressHash][]softbounce.Bounce{h: {old}}))
		left := func() int {
			t.Helper()
			records, err := softbounce.Records(t.Context(), r.store, r.user, []models.AddressHash{h})
			require.NoError(t, err)
			return len(records)
		}
		held, err := r.store.Lease(t.Context(), "retention", "other", retentionPoll)
		require.NoError(t, err)
		require.True(t, held)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, 1, left())
		time.Sleep(2 * retentionPoll)
		synctest.Wait()
		require.Zero(t, left())
		stop()
		<-done
	})
}
