package rollup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// check runs a check, and returns what differs.
func (f *fixture) check(repair bool) (found []string) {
	f.Helper()
	_, err := f.Check(f.Context(), CheckOptions{
		Repair: repair,
		Settle: 50 * time.Millisecond,
		Found:  func(d Difference) { found = append(found, d.What+" "+d.ID) },
	})
	require.NoError(f, err)
	return found
}

// TestCheckFindsWrongFeed: a check finds a feed that publishes something else than the logs, or less, and a repair
// publishes what is missing.
func TestCheckFindsWrongFeed(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.delivered(2)
	b := f.delivered(3)
	require.Empty(t, f.check(false))
	want := []string{"feed " + b.ID.String()}

	head, err := f.store.FeedHead(t.Context(), f.user)
	require.NoError(t, err)
	require.NoError(t, f.store.AppendFeed(t.Context(), f.user, models.FeedEntry{
		Number: head.Number + 1, Token: models.NewToken(), At: head.At.Add(time.Second), Settled: head.Settled,
		Chunks: []models.FeedChunk{{Chunk: b.ID, Version: f.stored(b).Version, Changes: []models.FeedChange{
			{State: models.Failed, Reason: models.Expired, Number: 2, Recipients: models.SetOf(1, 3)},
		}}},
	}))
	require.Equal(t, want, f.check(false))
	require.Equal(t, want, f.check(true))
	require.Empty(t, f.check(false))
	published, _ := updates(t, f.store, f.user)
	require.Equal(t, models.Success, published[b.ID.Log(3)].State)
	require.Equal(t, 3, published[b.ID.Log(3)].Number)
	require.Equal(t, 1, published[b.ID.Log(2)].Number)

	// An event whose mark was lost: its sum differs, too, and the repair of the sum publishes it.
	deferred := models.Event{
		ID: "x", Recipient: 2, Attempt: 1, Provider: "sg", Kind: models.Deferred, At: time.Now().UTC(),
	}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: models.Fact{
		Key: models.EventsKey(models.NewInboxID(time.Now())), Events: []models.Event{deferred},
	}}))
	require.Equal(t, []string{"chunk " + b.ID.String()}, f.check(true))
	require.Empty(t, f.check(false))
	_, events := updates(t, f.store, f.user)
	require.True(t, events[event{b.ID.Log(2), models.Deferred, "sg"}])
}

// TestCheckOfUnreadableFeed: a feed that cannot be read is one difference, and ends no check.
func TestCheckOfUnreadableFeed(t *testing.T) {
	t.Parallel()
	var store *unreadableFeed
	f := newFixture(t, func(s models.Store) models.Store {
		store = &unreadableFeed{Store: s}
		return store
	})
	f.delivered(2)
	f.delivered(1)
	store.user, store.err = f.user, models.ErrDamaged
	require.Equal(t, []string{"feed of all mail"}, f.check(true))
}
