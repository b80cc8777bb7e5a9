package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func everyKey(t *testing.T, open Open) {
	providers := []string{"sg", "mg", "sg-eu"}
	b := open(t, providers...)
	boxes := map[string]*inbox{}
	for _, q := range models.Queues(providers) {
		boxes[q.Name()] = &inbox{}
		subscribe(t, b, q, 2, boxes[q.Name()].handler)
	}
	want := map[string][]models.Message{}
	total := 0
	send := func(queue string, m models.Message) {
		want[queue] = append(want[queue], m)
		publish(t, b, m)
		total++
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		id := models.NewBatchID(time.Now())
		send("batch."+string(lane), models.Message{Kind: models.BatchMessage, ID: id.Chunk(7), Lane: lane})
		send("batch."+string(lane), models.Message{
			Kind:  models.BatchMessage,
			ID:    id,
			Lane:  lane,
			Retry: 2,
		})
		for _, a := range providers {
			send(a+"."+string(lane), models.Message{
				Kind:     models.ProviderMessage,
				Provider: a,
				ID:       id,
				Lane:     lane,
			})
			send(a+"."+string(lane), models.Message{
				Kind:     models.ProviderMessage,
				Provider: a,
				ID:       id,
				Lane:     lane,
				Retry:    3,
			})
			send("log."+a+"."+string(lane), models.Message{
				Kind:     models.LogMessage,
				Provider: a,
				ID:       id.Log(9),
				Lane:     lane,
				Retry:    1,
			})
		}
	}
	for _, a := range providers {
		send("event", models.Message{Kind: models.EventMessage, Provider: a, ID: models.NewInboxID(time.Now())})
	}
	for queue, ms := range want {
		got := boxes[queue].wait(t, len(ms))
		require.ElementsMatch(t, ms, got, queue)
	}
	n := 0
	for _, box := range boxes {
		n += len(box.list())
	}
	require.Equal(t, total, n, "each message in one queue")
}

func order(t *testing.T, open Open) {
	b := open(t, "sg")
	var want []models.Message
	for range 200 {
		want = append(want, batch(models.Bulk))
	}
	publish(t, b, want...)
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	require.Equal(t, want, box.wait(t, len(want)))
}

func unroutable(t *testing.T, open Open) {
	b := open(t, "sg")
	m := models.Message{
		Kind:     models.ProviderMessage,
		Provider: "unknown",
		ID:       models.NewBatchID(time.Now()),
		Lane:     models.Bulk,
	}
	require.ErrorIs(t, b.Publish(context.Background(), m), models.ErrUnroutable)
	m.Kind, m.ID = models.LogMessage, m.ID.Log(1)
	require.ErrorIs(t, b.Publish(context.Background(), batch(models.Urgent), m), models.ErrUnroutable)
	publish(t, b, batch(models.Bulk)) // and it goes on working
}

func invalid(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	good := batch(models.Bulk)
	for _, m := range []models.Message{
		{}, {Kind: "other", ID: good.ID, Lane: models.Bulk}, {Kind: models.BatchMessage, Lane: models.Bulk},
		{Kind: models.BatchMessage, ID: good.ID, Lane: "middle"},
		{Kind: models.ProviderMessage, ID: good.ID, Lane: models.Bulk},
		{
			Kind:     models.ProviderMessage,
			Provider: "a.b",
			ID:       good.ID,
			Lane:     models.Bulk,
		}, {
			Kind:  models.BatchMessage,
			ID:    good.ID,
			Lane:  models.Bulk,
			Retry: -1,
		},
	} {
		require.ErrorIs(t, b.Publish(ctx, m), models.ErrInvalid, "%+v", m)
	}
	h := func(context.Context, models.Message) models.Disposition { return models.Done() }
	require.ErrorIs(t, b.Subscribe(ctx, models.Queue{Kind: models.ProviderMessage, Provider: "unknown", Lane: models.Bulk},
		1, h), models.ErrInvalid)
	require.ErrorIs(t, b.Subscribe(ctx, bulk(), 0, h), models.ErrInvalid)
}

func lanes(t *testing.T, open Open) {
	b := open(t, "sg")
	hold := make(chan struct{})
	var box inbox
	subscribe(t, b, bulk(), 1, func(context.Context, models.Message) models.Disposition {
		<-hold
		return models.Done()
	})
	subscribe(t, b, models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}, 1, box.handler)
	for range 50 {
		publish(t, b, batch(models.Bulk))
	}
	m := batch(models.Urgent)
	publish(t, b, m)
	require.Equal(t, m, box.wait(t, 1)[0], "urgent mail does not queue behind bulk")
	close(hold)
}

func depths(t *testing.T, open Open) {
	b := open(t, "sg")
	for range 5 {
		publish(t, b, batch(models.Bulk))
	}
	publish(t, b, models.Message{
		Kind:     models.ProviderMessage,
		Provider: "sg",
		ID:       models.NewBatchID(time.Now()),
		Lane:     models.Urgent,
	})
	require.Eventually(t, func() bool {
		ds, err := b.Depths(context.Background())
		if err != nil || len(ds) != len(models.Queues([]string{"sg"})) {
			return false
		}
		for _, d := range ds {
			want := map[string]int{"batch.bulk": 5, "sg.urgent": 1}[d.Queue.Name()]
			if d.Ready != want {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond)
}

func purge(t *testing.T, open Open) {
	b := open(t, "sg")
	ctx := context.Background()
	for range 10 {
		m := batch(models.Bulk)
		publish(t, b, m, batch(models.Urgent))
		m.NotBefore = time.Now().Add(4 * time.Second) // not before the purge, on a slow machine either
		publish(t, b, m)
	}
	require.NoError(t, b.Purge(ctx))
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	m := batch(models.Bulk)
	m.NotBefore = time.Now().Add(5 * time.Second) // after all that was purged
	publish(t, b, m)
	same(t, m, box.wait(t, 1)[0])
	require.Len(t, box.list(), 1)
}
