package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// often is more than the deliveries that a broker allows for panics.
const often = 2*models.MaxDeliveries + 5

// manyLaters returns Later many times. That must not park the message.
func manyLaters(t *testing.T, open Open) {
	b := open(t, "sg")
	for name, wait := range map[string]time.Duration{"now": 0, "after a moment": 60 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			lane := models.Bulk
			if wait > 0 {
				lane = models.Urgent
			}
			var box inbox
			subscribe(t, b, models.Queue{Kind: models.BatchMessage, Lane: lane}, 1,
				func(_ context.Context, m models.Message) models.Disposition {
					if box.add(m) <= often {
						return models.Later(wait)
					}
					return models.Done()
				})
			m := batch(lane)
			publish(t, b, m)
			same(t, m, box.wait(t, often+1)[often])
			waitParked(t, b, 0)
		})
	}
}

// manyStops stops a subscription many times while it has a message. That must not park
// the message.
func manyStops(t *testing.T, open Open) {
	b := open(t, "sg")
	m := batch(models.Bulk)
	publish(t, b, m)
	for range often {
		taken := make(chan struct{}, 1)
		stop := subscribe(t, b, bulk(), 1, func(ctx context.Context, _ models.Message) models.Disposition {
			taken <- struct{}{}
			<-ctx.Done()
			return models.Later(0)
		})
		select {
		case <-taken:
		case <-time.After(patience):
			waitParked(t, b, 0)
			t.Fatal("the message is gone")
		}
		stop()
	}
	var box inbox
	subscribe(t, b, bulk(), 1, box.handler)
	same(t, m, box.wait(t, 1)[0])
	waitParked(t, b, 0)
}

// manyLosses loses the connection many times while a handler has a message. The message
// must be delivered again each time and must not be parked.
func manyLosses(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	m := batch(models.Bulk)
	published := make(chan struct{})
	subscribe(t, b, bulk(), 1, func(_ context.Context, got models.Message) models.Disposition {
		<-published // the confirmation must not be lost
		if box.add(got) <= often {
			lose(b) // the acknowledgement is lost, too
		}
		return models.Done()
	})
	publish(t, b, m)
	close(published)
	want := 1
	if _, ok := b.(Remote); ok {
		want = often + 1
	}
	for _, got := range box.wait(t, want) {
		same(t, m, got)
	}
	waitParked(t, b, 0)
}
