package announce

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/models"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// hangingBroker accepts no message and blocks until the caller gives up.
type hangingBroker struct{}

func (hangingBroker) Publish(ctx context.Context, _ ...models.Message) error {
	<-ctx.Done()
	return models.ErrUnavailable
}

// TestCloseWithHangingBroker: Close returns within BrokerTime although the broker hangs
// and the queue is full.
func TestCloseWithHangingBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := New(hangingBroker{}, func([]models.Message, error) {})
		for n := range 2 * QueueSize {
			a.Add(models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()).Chunk(n), Lane: models.Bulk})
		}
		began := time.Now()
		a.Close()
		require.LessOrEqual(t, time.Since(began), BrokerTime)
	})
}
