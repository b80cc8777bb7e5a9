package evidence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestSharedQueryAnswersEachChunk: chunks that share a query have answers of their own. An
// event of one does not delay the answer of the other.
func TestSharedQueryAnswersEachChunk(t *testing.T) {
	t.Parallel()
	store, api := memory.Open(t), &eventsAPI{}
	l := newLookups(t, store, api)
	quiet, loud := unknownBatch(t, store, 1), unknownBatch(t, store, 1)
	now := time.Now()
	api.report(loud.Log(1), models.Processed, now)
	for _, id := range []models.ID{quiet, loud} {
		l.request("mg", id, 1, now.Add(-time.Minute), now.Add(time.Minute), time.Now())
	}
	groups := groupByTime(l.due("mg", now.Add(expiry)))
	require.Len(t, groups, 1)
	l.query(t.Context(), "mg", groups[0])
	require.False(t, l.open[lookupKey{"mg", quiet}].answered.IsZero())
	require.True(t, l.open[lookupKey{"mg", loud}].answered.IsZero(), "its event is not processed yet")
}

// TestFoundEventIsFiledOnce: an event that a query found is found by the next one, too, but
// it is not put into the inbox twice. Once it is a fact, it does not count.
func TestFoundEventIsFiledOnce(t *testing.T) {
	t.Parallel()
	store, api := memory.Open(t), &eventsAPI{}
	l := newLookups(t, store, api)
	id, at := unknownBatch(t, store, 2), time.Now()
	find := func() int {
		found := findings{}
		err := l.search(
			t.Context(),
			"mg",
			api,
			models.LookupQuery{From: at.Add(-time.Minute), To: at.Add(time.Minute)},
			found,
		)
		require.NoError(t, err)
		return found.total()
	}
	posts := func() (n int) {
		for shard := range store.Shards() {
			for in, err := range store.Pending(t.Context(), shard, time.Time{}, at.Add(time.Hour)) {
				require.NoError(t, err)
				full, err := store.Inbox(t.Context(), in.ID)
				require.NoError(t, err)
				n += len(full[0].Posts)
			}
		}
		return n
	}
	first := api.report(id.Log(1), models.Delivered, at)
	require.Equal(t, 1, find())
	require.Equal(t, 1, find(), "an event that waits in the inbox counts")
	second := api.report(id.Log(2), models.Delivered, at)
	require.Equal(t, 2, find())
	require.Equal(t, 2, posts())

	first.Recipient, first.Provider, second.Recipient, second.Provider = 1, "mg", 2, "mg"
	fact := models.Fact{Key: models.EventsKey(models.NewInboxID(at)), Events: []models.Event{first, second}}
	require.NoError(t, store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	require.Zero(t, find())
	for _, ev := range []models.Event{first, second} {
		isFact, ok := l.filed.Get(eventKey{"mg", ev.ID})
		require.True(t, ok && isFact, "its chunk is not read again")
	}
	require.Zero(t, find())
	require.Equal(t, 2, posts())
}

// TestEventOfChunkIsFiled: an event that names its chunk and an address is filed if that is the address of one
// recipient whose outcome is unknown.
func TestEventOfChunkIsFiled(t *testing.T) {
	t.Parallel()
	store, api := memory.Open(t), &eventsAPI{}
	l := newLookups(t, store, api)
	id, at := unknownBatch(t, store, 2), time.Now()
	for _, address := range []string{"U2@x.test", "unknown@x.test", ""} {
		api.events = append(api.events, models.ParsedEvent{Log: id, Address: address,
			Event: models.Event{ID: address, Attempt: 1, Kind: models.Delivered, At: at}})
	}
	found := findings{}
	q := models.LookupQuery{From: at.Add(-time.Minute), To: at.Add(time.Minute)}
	require.NoError(t, l.search(t.Context(), "mg", api, q, found))
	require.Equal(t, findings{id: {filed: 1}}, found)
}

// TestQueryNamesAttempts: a query names the attempts whose events are wanted, by their chunk.
func TestQueryNamesAttempts(t *testing.T) {
	t.Parallel()
	api := &asked{}
	l := newLookups(t, nil, api)
	now := time.Now()
	one, two := models.NewBatchID(now), models.NewBatchID(now)
	for _, r := range []struct {
		chunk   models.ID
		attempt int
	}{{one, 1}, {one, 4}, {one, 1}, {two, 2}} {
		l.request("mg", r.chunk, r.attempt, now.Add(-time.Minute), now.Add(time.Minute), now)
	}
	groups := groupByTime(l.due("mg", now.Add(expiry)))
	require.Len(t, groups, 1)
	l.query(t.Context(), "mg", groups[0])
	require.Equal(t, map[models.ID]bool{one: true, two: true}, api.query.Chunks)
	require.Equal(t, map[models.ID][]int{one: {1, 4}, two: {2}}, api.query.Attempts)
}

// TestAnswerIsOfItsAttempts: the answer to a query about one attempt of a chunk says nothing of another attempt, even
// if that is requested while the query runs.
func TestAnswerIsOfItsAttempts(t *testing.T) {
	t.Parallel()
	api := &asked{}
	l := newLookups(t, nil, api)
	now, id := time.Now(), models.NewBatchID(time.Now())
	request := func(attempt int) time.Time {
		return l.request("mg", id, attempt, now.Add(-time.Minute), now.Add(time.Minute), now)
	}
	group := func() []dueLookup { return groupByTime(l.due("mg", now.Add(expiry)))[0] }
	require.Zero(t, request(1))
	l.query(t.Context(), "mg", group())
	require.NotZero(t, request(1))
	require.Zero(t, request(2))
	running := group()
	require.Zero(t, request(3))
	l.query(t.Context(), "mg", running)
	require.Equal(t, []int{1, 2}, api.query.Attempts[id])
	require.Zero(t, request(2))
	require.Zero(t, request(3))
	l.query(t.Context(), "mg", group())
	require.NotZero(t, request(3))
	require.NotZero(t, request(1))
}

// TestEventOfHeldMailIsFiled: an event counts even if its log ended meanwhile, because the
// outcome was unknown.
func TestEventOfHeldMailIsFiled(t *testing.T) {
	t.Parallel()
	store, api := memory.Open(t), &eventsAPI{}
	l := newLookups(t, store, api)
	id, at := unknownBatch(t, store, 2), time.Now()
	require.NoError(t, store.Append(t.Context(), id, models.Entry{
		Number:     2,
		Token:      models.NewToken(),
		Kind:       models.Ending,
		At:         at,
		Recipients: models.SetTo(2),
		Reason:     models.OutcomeUnknown,
	}))
	api.report(id.Log(1), models.Delivered, at)
	found := findings{}
	err := l.search(
		t.Context(),
		"mg",
		api,
		models.LookupQuery{From: at.Add(-time.Minute), To: at.Add(time.Minute)},
		found,
	)
	require.NoError(t, err)
	require.Equal(t, findings{id: {filed: 1}}, found)
}

// paged is a provider whose events API returns pages, a minute apart, and then may hang.
type paged struct {
	eventsAPI
	pages int
	hangs bool
}

func (p *paged) LookUp(ctx context.Context, _ models.LookupQuery, post func([]byte) error) error {
	for range p.pages {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := post([]byte("[]")); err != nil {
			return err
		}
	}
	if p.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

// TestQueryTimeout: a query may take as long as it needs while pages arrive, or a long
// outage would never be read to its end. A query that hangs is cancelled.
func TestQueryTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &paged{pages: 100}
		l := newLookups(t, nil, p)
		search := func() error {
			return l.search(
				t.Context(),
				"mg",
				p,
				models.LookupQuery{From: time.Now().Add(-time.Hour), To: time.Now()},
				findings{},
			)
		}
		require.NoError(t, search())
		p.hangs = true
		require.ErrorIs(t, search(), context.Canceled)
	})
}
