package brokertest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// waitParked waits until n messages are parked and returns them.
func waitParked(t *testing.T, b models.Broker, n int) []models.Parked {
	t.Helper()
	var got []models.Parked
	require.Eventually(t, func() bool {
		var err error
		got, err = b.Parked(context.Background(), 100)
		return err == nil && len(got) == n
	}, patience, 50*time.Millisecond, "%d parked", n)
	return got
}

// parksFirst subscribes a handler that parks messages while the returned switch is on,
// and puts them into the returned inbox after that.
func parksFirst(t *testing.T, b models.Broker, concurrency int, why string) (*inbox, *atomic.Bool) {
	box, parkIt := new(inbox), new(atomic.Bool)
	parkIt.Store(true)
	subscribe(t, b, bulk(), concurrency, func(ctx context.Context, m models.Message) models.Disposition {
		if parkIt.Load() {
			return models.Park(why)
		}
		return box.handler(ctx, m)
	})
	return box, parkIt
}

func parking(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	box, parkIt := parksFirst(t, b, 1, "cannot be read")
	m1, m2 := batch(models.Bulk), batch(models.Bulk)
	publish(t, b, m1, m2)
	for _, p := range waitParked(t, b, 2) {
		require.Equal(t, "cannot be read", p.Why)
		require.Equal(t, p.Message.Key(), p.Key)
		require.WithinDuration(t, time.Now(), p.At, time.Minute)
		require.Nil(t, p.Raw)
	}
	require.NoError(t, b.Purge(ctx), "Purge keeps the parking lot")
	waitParked(t, b, 2)
	one, err := b.Parked(ctx, 1)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.ErrorIs(t, b.Discard(ctx, "no such id"), models.ErrNotFound)
	require.ErrorIs(t, b.Unpark(ctx, "no such id"), models.ErrNotFound)
	parkIt.Store(false)
	for _, p := range waitParked(t, b, 2) {
		if p.Message.ID == m1.ID {
			require.NoError(t, b.Discard(ctx, p.ID))
		} else {
			require.NoError(t, b.Unpark(ctx, p.ID))
		}
	}
	same(t, m2, box.wait(t, 1)[0])
	waitParked(t, b, 0)
}

// parkingOfTwo lets two processes unpark or discard the same message at once. One of
// them must succeed and the other get ErrNotFound. Calls of Parked meanwhile must not
// hide messages.
func parkingOfTwo(t *testing.T, open Open) {
	b := open(t, "sg")
	two := []models.Broker{b, peer(t, b)}
	ctx := context.Background()
	const n = 12
	box, parkIt := parksFirst(t, b, 4, "for now")
	for range n {
		publish(t, b, batch(models.Bulk))
	}
	lot := waitParked(t, b, n)
	parkIt.Store(false)

	var lists sync.WaitGroup
	for i := range 10 {
		lists.Go(func() {
			got, err := two[i%2].Parked(ctx, 100)
			if err != nil || len(got) != n {
				t.Errorf("a concurrent call of Parked saw %d of %d messages: %v", len(got), n, err)
			}
		})
	}
	lists.Wait()

	var back []models.Message
	for i, p := range lot {
		do := [2]func(models.Broker) error{}
		for k := range do {
			do[k] = func(b models.Broker) error { return b.Discard(ctx, p.ID) }
			if i%3 == 0 || i%3 == 1 && k == 0 {
				do[k] = func(b models.Broker) error { return b.Unpark(ctx, p.ID) }
			}
		}
		var errs [2]error
		var both sync.WaitGroup
		for k := range do {
			both.Go(func() { errs[k] = do[k](two[k]) })
		}
		both.Go(func() {
			got, err := two[i%2].Parked(ctx, 100)
			if err != nil || len(got) < n-i-1 {
				t.Errorf("a concurrent call of Parked saw %d messages: %v", len(got), err)
			}
		})
		both.Wait()
		won := slices.Index(errs[:], nil)
		require.GreaterOrEqual(t, won, 0, "one wins: %v", errs)
		require.ErrorIs(t, errs[1-won], models.ErrNotFound)
		if i%3 == 0 || i%3 == 1 && won == 0 {
			back = append(back, p.Message)
		}
	}
	waitParked(t, b, 0)
	last := batch(models.Bulk)
	publish(t, b, last)
	require.Eventually(t, func() bool { return has(box.list(), last.ID) }, patience, 5*time.Millisecond)
	var want, got []models.ID
	for _, m := range back {
		want = append(want, m.ID)
	}
	for _, m := range box.wait(t, len(back)+1) {
		if m.ID != last.ID {
			got = append(got, m.ID)
		}
	}
	require.ElementsMatch(t, want, got, "each was unparked once or discarded")
}

// failedUnpark checks that a message stays parked, unchanged and in its place, if it
// cannot be unparked.
func failedUnpark(t *testing.T, open Open) {
	b := open(t, "sg")
	subscribe(t, b, bulk(), 1, func(context.Context, models.Message) models.Disposition { return models.Park("for now") })
	for i := range 3 {
		publish(t, b, batch(models.Bulk))
		waitParked(t, b, i+1)
	}
	before := waitParked(t, b, 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, p := range before {
		require.ErrorIs(t, b.Unpark(ctx, p.ID), models.ErrUnavailable)
		require.Equal(t, before, waitParked(t, b, 3))
	}
}

// longReasons parks messages for a reason, and after panics, whose text is very long and
// no valid UTF-8. The reason must be cut, and the broker must go on.
func longReasons(t *testing.T, open Open) {
	b := open(t, "sg")
	began := time.Now()
	long := strings.Repeat("ä", 200_000) + "\xff"
	said, panicked, after := batch(models.Bulk), batch(models.Bulk), batch(models.Bulk)
	var box inbox
	subscribe(t, b, bulk(), 2, func(ctx context.Context, m models.Message) models.Disposition {
		switch m.ID {
		case said.ID:
			return models.Park("said " + long)
		case panicked.ID:
			panic("died " + long)
		}
		return box.handler(ctx, m)
	})
	publish(t, b, said, panicked)
	for _, p := range waitParked(t, b, 2) {
		require.True(t, utf8.ValidString(p.Why))
		require.LessOrEqual(t, len(p.Why), models.MaxParkedWhy)
		what := map[models.ID]string{said.ID: "said ää", panicked.ID: "died ää"}[p.Message.ID]
		require.NotEmpty(t, what)
		require.Contains(t, p.Why, what)
		require.WithinRange(t, p.At, began.Truncate(time.Second), time.Now(), "when it was parked, by whichever way")
	}
	publish(t, b, after)
	same(t, after, box.wait(t, 1)[0])
}
