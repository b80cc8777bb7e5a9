package inproc

import (
	"strconv"
	"testing"
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
