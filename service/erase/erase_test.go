package erase_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/erase"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestErasure erases an address from the batches of several users and from the inbox, in the
// smallest parts. Each part goes on from the one before, and one of them is done twice.
func TestErasure(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	ctx := t.Context()
	const address = "ann@x.test"
	now := time.Now()
	var chunks []models.ID
	owner := map[models.ID]string{}
	for u := range 2 {
		user := models.User{ID: models.NewUserID(), Name: fmt.Sprint("u", u), Created: now.UTC().Truncate(time.Millisecond)}
		require.NoError(t, store.CreateUser(ctx, user))
		for n := range 3 {
			b := models.Batch{ID: models.NewBatchID(now.Add(-time.Duration(n) * time.Hour)), User: user.ID, Lane: models.Bulk,
				OnUnknown: models.Hold, Recipients: 4, Chunks: 2, Sizes: []int{2, 2}, ExpiresAt: now.Add(time.Hour)}
			for k := 1; k >= 0; k-- {
				c := models.Chunk{ID: b.ID.Chunk(k), Recipients: []models.Recipient{
					{Email: fmt.Sprint("other", k, "@x.test"), Name: "Other"},
					{Email: "Ann@x.test", Name: "Ann", Vars: map[string]string{"city": "Łódź"}, ClientID: "ann-1"}}}
				if k == 1 {
					require.NoError(t, store.PutChunk(ctx, c))
				} else {
					require.NoError(t, store.PutBatch(ctx, b, c))
				}
				require.NoError(t, store.PutAddressIndex(ctx, user.ID, models.NewAddressIndex(c.ID, c.Recipients)))
				require.NoError(
					t,
					store.PutFacts(ctx, models.ChunkFact{Chunk: c.ID, Fact: models.Fact{Key: "e", Events: []models.Event{
						{ID: "1", Recipient: 2, Attempt: 1, Provider: "sg", Kind: models.Bounced, At: now, Text: "550 " + address}}}}),
				)
				chunks = append(chunks, c.ID)
				owner[c.ID] = user.ID
			}
		}
	}
	post := models.Inbox{ID: models.NewInboxID(now.Add(-26 * time.Hour)), Provider: "sg",
		Posts: []models.Post{{Body: []byte(`[{"email":"` + address + `"}]`)}}}
	require.NoError(t, store.PutInbox(ctx, post))

	woken := map[models.ID]int{}
	e := erase.Erasure{Store: store, Address: address, InboxKeep: 48 * time.Hour, Budget: time.Nanosecond,
		Erased: func(_ *models.Batch, chunk models.ID) { woken[chunk]++ }}
	var sum erase.Part
	parts := 0
	for at := ""; !sum.Done; parts++ {
		part, err := e.Part(ctx, at)
		require.NoError(t, err)
		if parts == 3 {
			_, err := e.Part(ctx, at)
			require.NoError(t, err)
		}
		require.NotEqual(t, part.Done, part.Next != "")
		sum.Batches, sum.Recipients = sum.Batches+part.Batches, sum.Recipients+part.Recipients
		sum.Posts += part.Posts
		sum.Done, at = part.Done, part.Next
	}
	require.Greater(t, parts, len(chunks))
	require.Equal(t, erase.Part{Done: true, Batches: 6, Recipients: 12, Posts: 1}, sum)
	for _, id := range chunks {
		require.Equal(t, 1, woken[id])
		rs, err := store.Recipients(ctx, id)
		require.NoError(t, err)
		require.Equal(t, models.Recipient{}, rs[1])
		noted, err := store.Documents(ctx, id.Batch().String(), "message-keys", "", 10)
		require.NoError(t, err)
		require.Len(t, noted, 2, "so that the purge of the logs finds the message")
		require.NotContains(t, string(noted[0].Value), "ann")
		require.Equal(t, "Other", rs[0].Name)
		_, facts, err := store.Record(ctx, id)
		require.NoError(t, err)
		require.Equal(t, "550 "+models.ErasedAddress, facts[0].Events[0].Text)
		for p, err := range store.AddressIndexes(ctx, owner[id], id.Time(), models.ID{}) {
			require.NoError(t, err)
			require.False(t, p.MayContain(models.Fingerprint(address)))
			require.True(t, p.MayContain(models.Fingerprint(rs[0].Email)) || p.Chunk != id)
		}
	}
	in, err := store.Inbox(ctx, post.ID)
	require.NoError(t, err)
	require.NotContains(t, strings.ToLower(string(in[0].Posts[0].Body)), address)
	for _, bad := range []string{"x", "posts/", "posts/-1", "batches/a/b/1", "batches/a"} {
		_, err := e.Part(ctx, bad)
		require.ErrorIs(t, err, models.ErrInvalid, bad)
	}
}
