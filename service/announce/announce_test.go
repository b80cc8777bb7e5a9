package announce

import (
	"context"
	"log/slog"
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

// TestCloseWithHangingBroker: Close returns within brokerTime although the broker hangs
// and the queue is full.
func TestCloseWithHangingBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := New(hangingBroker{}, slog.New(slog.DiscardHandler))
		a.Add(models.NewBatchID(time.Now()), 2*queueSize, models.Bulk)
		began := time.Now()
		a.Close()
		require.LessOrEqual(t, time.Since(began), brokerTime)
	})
}
