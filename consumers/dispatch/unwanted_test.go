package dispatch

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// suppress adds an address to the list of a batch's user.
func (f *fixture) suppress(t *testing.T, list, address string, reason models.SuppressionReason) {
	t.Helper()
	e := models.NewSuppression(address, reason, models.FromAPI, time.Now())
	require.NoError(t, f.caller.unwanted.suppressions.Add(t.Context(), list, e))
}

// status returns what is known of a recipient.
func (f *fixture) status(t *testing.T, b *models.Batch, r int) *models.Status {
	t.Helper()
	c, err := f.Chunks.Load(t.Context(), b.ID)
	require.NoError(t, err)
	return c.View.Status(r)
}

// TestSuppressedEnds: the logs of suppressed recipients end with the cause, without a call, and
// the others are sent.
func TestSuppressedEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b := f.batch(t, 4, models.Hold)
	f.suppress(t, b.User, "U2@x.test", models.Complaint)
	f.suppress(t, models.EveryonesList, "u4@x.test", models.HardBounce)
	require.True(t, f.HandleBatch(t.Context(), models.Message{Kind: models.BatchMessage, ID: b.ID}).IsDone())
	for r, words := range map[int]string{2: "the recipient complained", 4: "the mailbox does not exist"} {
		s := f.status(t, b, r)
		require.Equal(t, models.Failed, s.State)
		require.Equal(t, models.Suppressed, s.Reason)
		require.Contains(t, s.Detail, words)
		require.False(t, s.Called)
	}
	for _, r := range []int{1, 3} {
		require.Equal(t, models.Success, f.status(t, b, r).State)
	}
}

// TestSuppressedBeforeCall: an address that was suppressed after the attempt was appended is not
// in the call.
func TestSuppressedBeforeCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b := f.batch(t, 2, models.Hold)
	f.store = f.caller.Store.(models.Store) //nolint:forcetypeassert // the fixture's
	f.caller.Store = &appendHook{Store: f.caller.Store, after: func() {
		f.suppress(t, b.User, "u1@x.test", models.Unsubscribe)
	}}
	require.True(t, f.HandleBatch(t.Context(), models.Message{Kind: models.BatchMessage, ID: b.ID}).IsDone())
	s := f.status(t, b, 1)
	require.False(t, s.Called)
	require.Equal(t, models.StartByPassed, s.Last.Reason)
	require.Contains(t, s.Last.Text, "were suppressed meanwhile")
}

// appendHook calls after once, after the first append.
type appendHook struct {
	Store
	after func()
	once  sync.Once
}

func (h *appendHook) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	err := h.Store.Append(ctx, chunk, e)
	h.once.Do(h.after)
	return err
}

// TestUnsubscribeURLPerRecipient: the recipients of a chunk get links of their own in one call.
func TestUnsubscribeURLPerRecipient(t *testing.T) {
	t.Parallel()
	f := newFixture(t, models.Accepted, "sg")
	b := f.batch(t, 3, models.Hold)
	b.Unsubscribe = models.NewUnsubscription("https://mail.example.com/unsubscribe/")
	f.Chunks.batches.add(b)
	require.True(t, f.HandleBatch(t.Context(), models.Message{Kind: models.BatchMessage, ID: b.ID}).IsDone())
	sg, ok := f.Providers.Get("sg").Adapter.(*adapter)
	require.True(t, ok)
	require.Len(t, sg.calls, 1)
	links := map[string]bool{}
	for _, r := range sg.calls[0].Recipients {
		link := r.Vars[models.UnsubscribeURL]
		require.Contains(t, link, "https://mail.example.com/unsubscribe/")
		token, err := models.ParseUnsubscribeToken(link[len(b.Unsubscribe.URL):])
		require.NoError(t, err)
		require.True(t, b.Unsubscribe.Verify(&token))
		require.Equal(t, r.Log, token.Log)
		links[link] = true
	}
	require.Len(t, links, 3)
}
