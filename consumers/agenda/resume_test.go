package agenda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestResumedUser: a command that resumes one user costs nothing for the mail of others, so that
// a user who pauses and resumes all the time delays no other user.
func TestResumedUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory.Open(t), inproctest.New(t, "sg"), testConfig())
	due := time.Now().Add(time.Hour)
	of := func(user string) func(*models.Batch) { return func(b *models.Batch) { b.User = user } }
	f.putBatch(t, due, of("one"))
	for range 3 {
		f.putBatch(t, due, of("other"))
	}
	f.acquireShards(t.Context())
	order := func(c models.Command) {
		done, err := f.Follower.Append(t.Context(), &c, nil)
		require.NoError(t, err)
		require.True(t, done)
	}
	order(models.Command{Kind: models.PauseUser, User: "one"})
	order(models.Command{Kind: models.ResumeUser, User: "one"})
	require.NoError(t, f.requeueEarly(t.Context(), 1))
	require.Equal(t, 1, f.announced(t)[models.Bulk])
	require.NoError(t, f.requeueEarly(t.Context(), 2))
	require.Equal(t, 1, f.announced(t)[models.Bulk], "it was resumed before")
	order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
	order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
	require.NoError(t, f.requeueEarly(t.Context(), 2))
	require.Equal(t, 1+4, f.announced(t)[models.Bulk], "mail of all users is resumed")
}
