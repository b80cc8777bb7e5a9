package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hangingBroker takes no message and holds whoever asks until they give up.
type hangingBroker struct{ models.Broker }

func (hangingBroker) Publish(ctx context.Context, _ ...models.Message) error {
	<-ctx.Done()
	return models.ErrUnavailable
}

// TestAnnouncerCloses: with a broker that hangs and a full queue, Close takes
// announceTime and no longer.
func TestAnnouncerCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := inproc.New(nil, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		a := newAnnouncer(hangingBroker{b}, (&Config{}).withDefaults().Logger)
		a.add(&models.Batch{ID: models.NewBatchID(time.Now()), Lane: models.Bulk, Chunks: 2 * announceQueue})
		began := time.Now()
		a.close()
		require.LessOrEqual(t, time.Since(began), announceTime)
	})
}
