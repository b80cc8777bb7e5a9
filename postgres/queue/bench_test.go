package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// BenchmarkPublishConsume publishes b.N messages from ten goroutines, 20 at once, while a subscription of eight
// handlers takes them.
func BenchmarkPublishConsume(b *testing.B) {
	q := openWith(b, newConfig(b, "sg"))
	ctx, stop := context.WithCancel(context.Background())
	var got atomic.Int64
	over := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = q.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}, 8,
			func(context.Context, models.Message) models.Disposition {
				if got.Add(1) == int64(b.N) {
					close(over)
				}
				return models.Done()
			})
	})
	b.ResetTimer()
	var publishers sync.WaitGroup
	var next atomic.Int64
	for range 10 {
		publishers.Go(func() {
			for {
				first := next.Add(20) - 20
				var ms []models.Message
				for i := first; i < min(first+20, int64(b.N)); i++ {
					ms = append(ms, models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk})
				}
				if len(ms) == 0 {
					return
				}
				if err := q.Publish(ctx, ms...); err != nil {
					b.Error(err)
				}
			}
		})
	}
	publishers.Wait()
	published := b.Elapsed()
	<-over
	b.ReportMetric(float64(b.N)/published.Seconds(), "published/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	stop()
	all.Wait()
	require.EqualValues(b, b.N, got.Load())
}
