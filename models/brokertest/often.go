package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// often is more than handlers may die over a message.
const often = 2*models.MaxDeliveries + 5

// laterOften: who asks for a message later does not die over it, however often.
func laterOften(t *testing.T, open Open) {
	b := open(t, "sg")
	for name, wait := range map[string]time.Duration{"now": 0, "after a moment": 60 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			lane := models.Bulk
			if wait > 0 {
				lane = models.Urgent
			}
			var box inbox
			subscribe(t, b, models.Queue{Kind: models.BatchMessage, Lane: lane}, 1, func(_ context.Context, m models.Message) models.Disposition {
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

// stopsOften: a subscription that is stopped gives back what it has, and nobody
// dies of that.
func stopsOften(t *testing.T, open Open) {
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

// lossesOften: each time that a connection is lost, the messages that are with
// handlers come back, and nobody has died over them.
func lossesOften(t *testing.T, open Open) {
	b := open(t, "sg")
	var box inbox
	m := batch(models.Bulk)
	subscribe(t, b, bulk(), 1, func(_ context.Context, got models.Message) models.Disposition {
		if box.add(got) <= often {
			lose(b) // and with it the acknowledgement
		}
		return models.Done()
	})
	publish(t, b, m)
	want := 1
	if _, ok := b.(Remote); ok {
		want = often + 1
	}
	for _, got := range box.wait(t, want) {
		same(t, m, got)
	}
	waitParked(t, b, 0)
}
