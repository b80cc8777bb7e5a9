package evidence

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// keyless is a provider whose key allows no look-ups.
type keyless struct{ eventsAPI }

func (*keyless) LookUp(context.Context, models.LookupQuery, func([]byte) error) error {
	return fmt.Errorf("%w: it answered 403", models.ErrNoLookup)
}

// TestNothingWaitsForRefusedLookups: if a provider allows no look-ups, no log waits for one.
// After a while the provider is queried again.
func TestNothingWaitsForRefusedLookups(t *testing.T) {
	t.Parallel()
	store, p := memory.Open(t), &keyless{}
	l := newLookups(t, store, p)
	id, now := unknownBatch(t, store, 1), time.Now()
	c, err := l.Chunks.Load(t.Context(), id)
	require.NoError(t, err)
	answered := func() bool {
		return l.tryAnswered(c, &c.View.Tries(1)[0], now)
	}
	require.False(t, answered())
	due := l.due("mg", now)
	require.Len(t, due, 1)
	l.query(t.Context(), "mg", due)
	require.True(t, answered())
	l.refused["mg"] = now.Add(-refusedPause)
	require.False(t, answered())
}

// repeating is a provider that repeats the posts that it cannot deliver.
type repeating struct {
	eventsAPI
	queries int
}

func (*repeating) Repeats() time.Duration { return 24 * time.Hour }

func (p *repeating) LookUp(context.Context, models.LookupQuery, func([]byte) error) error {
	p.queries++
	return nil
}

// TestRepeatedPostsAreNotLookedUp: a provider that repeats its posts for a day is queried only
// after an outage that was about as long.
func TestRepeatedPostsAreNotLookedUp(t *testing.T) {
	t.Parallel()
	p := &repeating{}
	l := newLookups(t, memory.Open(t), p)
	now := time.Now()
	l.lookUpSpan(t.Context(), "", now.Add(-time.Hour), now)
	require.Zero(t, p.queries)
	l.lookUpSpan(t.Context(), "", now.Add(-23*time.Hour), now)
	require.Equal(t, 1, p.queries)
}

// TestQuerySaysWhenMailWasSent: a query about mail that waits for its final event for days says
// that the mail was sent at their beginning.
func TestQuerySaysWhenMailWasSent(t *testing.T) {
	t.Parallel()
	store, p := memory.Open(t), &asked{}
	l := newLookups(t, store, p)
	l.cfg.FinalEvent = 100 * time.Hour
	id := unknownBatch(t, store, 1)
	o := models.Outcome{Attempt: 1, At: time.Now(), Parts: []models.Part{{
		Class:      models.Accepted,
		Recipients: models.SetOf(1),
	}}}
	fact := models.Fact{Key: models.OutcomeKey(1), Outcome: &o}
	require.NoError(t, store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	c, err := l.Chunks.Load(t.Context(), id)
	require.NoError(t, err)
	require.False(t, l.tryAnswered(c, &c.View.Tries(1)[0], time.Now()))
	l.query(t.Context(), "mg", l.due("mg", time.Now()))
	require.Greater(t, p.query.To.Sub(p.query.From), 99*time.Hour)
	require.Less(t, p.query.SentBy.Sub(p.query.From), time.Hour)
}

// asked is a provider that keeps the query.
type asked struct {
	eventsAPI
	query models.LookupQuery
}

func (p *asked) LookUp(_ context.Context, q models.LookupQuery, _ func([]byte) error) error {
	p.query = q
	return nil
}

// crowded is a provider that lists only a part of its logs, unless one recipient is asked for.
type crowded struct {
	eventsAPI
	asked []string
}

func (p *crowded) LookUp(_ context.Context, q models.LookupQuery, _ func([]byte) error) error {
	p.asked = append(p.asked, q.Recipient)
	if q.Recipient == "" {
		return fmt.Errorf("%w: too many messages", models.ErrPartialLogs)
	}
	return nil
}

// TestPartialLogsAreReadByRecipient: if a provider lists only a part of its logs, it is queried
// for each recipient, so that no log waits for an answer that cannot come.
func TestPartialLogsAreReadByRecipient(t *testing.T) {
	t.Parallel()
	store, p := memory.Open(t), &crowded{}
	l := newLookups(t, store, p)
	id, now := unknownBatch(t, store, 2), time.Now()
	c, err := l.Chunks.Load(t.Context(), id)
	require.NoError(t, err)
	require.False(t, l.tryAnswered(c, &c.View.Tries(1)[0], now))
	l.query(t.Context(), "mg", l.due("mg", now))
	require.Len(t, p.asked, 3)
	require.Empty(t, p.asked[0])
	require.NotEmpty(t, p.asked[2])
	require.True(t, l.tryAnswered(c, &c.View.Tries(1)[0], now))
}
