package inproc

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/brokertest"
)

func TestBroker(t *testing.T) {
	t.Parallel()
	brokertest.Run(t, func(t *testing.T, providers ...string) models.Broker {
		b, err := New(providers, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	})
}

// Only the newest parked messages may stay in memory.
func TestParkedMessagesAreBounded(t *testing.T) {
	t.Parallel()
	b, err := New(nil, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	const more = 5
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	for range maxParked + more {
		b.park(m, "cannot be read")
	}
	all, err := b.Parked(t.Context(), 2*maxParked)
	require.NoError(t, err)
	require.Len(t, all, maxParked)
	for i, p := range all {
		require.Equal(t, strconv.Itoa(more+1+i), p.ID)
	}
	require.ErrorIs(t, b.Discard(t.Context(), strconv.Itoa(more)), models.ErrNotFound)
	require.NoError(t, b.Discard(t.Context(), strconv.Itoa(more+1)))
}

// TestStandbyIsBounded: a standby refuses what is more than its handlers can do in a minute or two, waiting or delayed.
func TestStandbyIsBounded(t *testing.T) {
	t.Parallel()
	b, err := NewStandby([]string{"sg"}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	late := m
	late.NotBefore = time.Now().Add(time.Hour)
	for range maxStandby {
		require.NoError(t, b.Publish(t.Context(), late))
	}
	require.ErrorIs(t, b.Publish(t.Context(), late), models.ErrUnavailable)
	for range maxStandby {
		require.NoError(t, b.Publish(t.Context(), m))
	}
	require.ErrorIs(t, b.Publish(t.Context(), m), models.ErrUnavailable)
	m.Lane = models.Urgent
	require.NoError(t, b.Publish(t.Context(), m), "lanes do not fill each other")
}

// TestHand: a message is handed only to a handler that has nothing to do. None takes it before there are handlers,
// while all are busy, and after they have begun to stop.
func TestHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := NewStandby([]string{"sg"}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		batch := models.NewBatchID(time.Now())
		next := 0
		hand := func() bool {
			next++
			return b.Hand(models.Message{Kind: models.BatchMessage, ID: batch.Chunk(next), Lane: models.Urgent})
		}
		require.False(t, hand(), "there is no handler")

		busy := make(chan struct{})
		var handled atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- b.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}, 2,
				func(context.Context, models.Message) models.Disposition {
					<-busy
					handled.Add(1)
					return models.Done()
				})
		}()
		synctest.Wait()
		require.Equal(t, []bool{true, true, false}, []bool{hand(), hand(), hand()}, "two handlers")
		synctest.Wait()
		require.False(t, hand(), "both are busy")
		busy <- struct{}{}
		synctest.Wait()
		require.Equal(t, []bool{true, false}, []bool{hand(), hand()})
		synctest.Wait()
		stop()
		close(busy)
		synctest.Wait()
		require.False(t, hand(), "they have stopped")
		require.NoError(t, <-ended)
		require.EqualValues(t, 3, handled.Load())
	})
}
