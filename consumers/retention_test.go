package consumers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestRetention: when its time is over, a batch loses its content and its
// addresses and keeps what happened to it; it can never be sent again; what a
// run that broke off has left is removed by the next.
func TestRetention(t *testing.T) {
	t.Parallel()
	p := newScripted("sg", always(models.Accepted))
	cfg := fast()
	cfg.FinalEventWait = time.Hour
	r := newRig(t, cfg, nil, p)
	ctx := t.Context()
	u := models.User{ID: r.user, Name: "u", Created: time.Now().UTC().Truncate(time.Millisecond)}
	require.NoError(t, r.store.CreateUser(ctx, u))
	old := []*models.Batch{r.batch(3, true, nil), r.batch(2, true, nil)}
	for _, b := range old {
		require.EqualValues(t, b.Recipients, r.done(b).Summary().Success)
	}
	// Who lost the race for a first attempt writes its fingerprints, too.
	require.Eventually(t, func() bool { return r.idle() }, patience, 5*time.Millisecond)
	found := func(address string) (n int) {
		for pr, err := range r.store.Prints(ctx, r.user, time.Now()) {
			require.NoError(t, err)
			if pr.May(models.Fingerprint(address)) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, found("U2@X.test"))

	later := time.Now().Add(91 * 24 * time.Hour)
	require.NoError(t, r.engine.Purge(ctx, time.Now()), "nothing is old yet")
	b, err := r.store.Batch(ctx, old[0].ID)
	require.NoError(t, err)
	require.False(t, b.Redacted)

	require.NoError(t, r.store.Redact(ctx, old[1].ID)) // a run broke off after the newest
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
	calls := p.count()
	r.announce(old[0])
	require.Eventually(t, func() bool { return r.idle() }, patience, 5*time.Millisecond)
	require.Equal(t, calls, p.count())
}
