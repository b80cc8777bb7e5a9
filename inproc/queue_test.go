package inproc

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// Millions of messages may wait in a queue. Each must be small and come out unchanged
// and in order, and the memory of those that were taken must be released.
func TestQueueKeepsMessagesSmallAndInOrder(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, unsafe.Sizeof(item{}), uintptr(40))
	q := newQueue(models.Queue{Kind: models.EventMessage})
	message := func(i int) models.Message {
		m := models.Message{
			Kind:     models.EventMessage,
			Provider: []string{"sg", "mg", "ses"}[i%3],
			ID:       models.NewInboxID(time.UnixMilli(int64(i))),
			Retry:    i % 5,
			At:       time.UnixMicro(int64(i)).UTC(),
		}
		if i%7 == 0 {
			m.NotBefore = time.Unix(int64(i), 5).UTC()
		}
		return m
	}
	var want []models.Message
	taken := 0
	take := func() {
		d := q.pop(context.Background())
		require.Equal(t, want[taken], d.m)
		require.Equal(t, taken%3, d.panics)
		taken++
	}
	for i := range 5 * block {
		m := message(i)
		want = append(want, m)
		q.push(&delivery{m: m, q: q, panics: i % 3})
		if i%2 == 0 {
			take()
		}
		require.Equal(t, len(want)-taken, q.len())
	}
	require.LessOrEqual(t, len(q.blocks), 5*block/2/block+2)
	for taken < len(want) {
		take()
	}
	require.Zero(t, q.len())
	require.LessOrEqual(t, len(q.blocks), 1)
	ready, unacked := q.depth()
	require.Zero(t, ready)
	require.Equal(t, len(want), unacked)
}
