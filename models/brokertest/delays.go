package brokertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func notBefore(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 4, box.handler)
	var ms []models.Message
	for _, wait := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond, 1300 * time.Millisecond,
		-time.Second} {
		m := batch(models.Bulk)
		m.NotBefore = time.Now().Add(wait)
		ms = append(ms, m)
	}
	publish(t, b, ms...)
	got := box.wait(t, len(ms))
	for i, m := range got {
		box.mu.Lock()
		at := box.at[i]
		box.mu.Unlock()
		require.GreaterOrEqual(t, at.Sub(m.NotBefore), -55*time.Millisecond, "too early")
	}
	m := models.Message{
		Kind:      models.ProviderMessage,
		Provider:  "unknown",
		ID:        models.NewBatchID(time.Now()),
		Lane:      models.Bulk,
		NotBefore: time.Now().Add(time.Second),
	}
	require.ErrorIs(t, b.Publish(context.Background(), m), models.ErrUnroutable, "delayed or not")
}

// enqueueTime checks that a handler learns when its message was enqueued, by whichever
// way that happened.
func enqueueTime(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	began := time.Now().Round(0)
	first, delayed, given := batch(models.Bulk), batch(models.Bulk), batch(models.Bulk)
	delayed.NotBefore = began.Add(400 * time.Millisecond)
	given.At = began.Add(-time.Hour).UTC()
	ms := []models.Message{first, delayed, given}
	require.NoError(t, b.Publish(ctx, ms...))
	require.Equal(t, []models.Message{first, delayed, given}, ms, "the caller's messages stay as they are")
	published := time.Now().Round(0)

	var box inbox
	var later, park sync.Once
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		box.add(m)
		disposition := models.Done()
		switch m.ID {
		case first.ID:
			later.Do(func() { disposition = models.Later(300 * time.Millisecond) })
		case delayed.ID:
			park.Do(func() { disposition = models.Park("for a while") })
		}
		return disposition
	})
	parked := waitParked(t, b, 1)[0]
	unparked := time.Now().Round(0)
	require.NoError(t, b.Unpark(ctx, parked.ID))
	box.wait(t, 5)
	box.mu.Lock()
	defer box.mu.Unlock()
	seen := map[models.ID][]time.Time{}
	for i := range box.all {
		seen[box.all[i].ID] = append(seen[box.all[i].ID], box.in[i])
	}
	between := func(at, from, to time.Time) {
		t.Helper()
		require.False(t, at.Before(from) || at.After(to), "%v is not between %v and %v", at, from, to)
	}
	between(seen[first.ID][0], began, published)
	require.GreaterOrEqual(t, seen[first.ID][1].Sub(seen[first.ID][0]), 300*time.Millisecond, "it was enqueued again")
	require.True(t, seen[delayed.ID][0].Equal(delayed.NotBefore), "it was not in its queue before")
	between(seen[delayed.ID][1], unparked, time.Now())
	require.True(t, seen[given.ID][0].Equal(given.At), "the publisher's At is kept")
}

func shortPassesLong(t *testing.T, open Open) {
	b := open(t, "sg")
	long, short := batch(models.Bulk), batch(models.Bulk)
	long.NotBefore = time.Now().Add(time.Hour)
	short.NotBefore = time.Now().Add(300 * time.Millisecond)
	publish(t, b, long, short)
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	same(t, short, box.wait(t, 1)[0])
}

func later(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if box.add(m) < 3 {
			return models.Later(300 * time.Millisecond)
		}
		return models.Done()
	})
	m := batch(models.Bulk)
	m.Retry = 4
	publish(t, b, m)
	for _, got := range box.wait(t, 3) {
		require.Equal(t, m.Key(), got.Key(), "it keeps its key")
	}
	box.mu.Lock()
	defer box.mu.Unlock()
	require.GreaterOrEqual(t, box.at[1].Sub(box.at[0]), 240*time.Millisecond)
}

func laterNow(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	subscribe(t, b, bulk(), 1, func(_ context.Context, m models.Message) models.Disposition {
		if box.add(m) == 1 {
			return models.Later(0)
		}
		return models.Done()
	})
	m := batch(models.Bulk)
	publish(t, b, m)
	same(t, m, box.wait(t, 2)[1])
}
