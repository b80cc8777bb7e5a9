package consumers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestUrgentMailIsNoted: a worker that sends urgent mail notes it, so that low-priority
// work yields. It does not run in parallel, because the other tests send urgent mail.
func TestUrgentMailIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fast(), nil, newScripted("sg", always(models.Accepted)))
		send := func(lane models.Lane) {
			r.done(r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Lane = lane }))
		}
		require.Eventually(t, func() bool { return !r.engine.cfg.Priority.UrgentLately() }, patience, 20*time.Millisecond)
		send(models.Bulk)
		require.False(t, r.engine.cfg.Priority.UrgentLately())
		require.Eventually(t, func() bool {
			send(models.Urgent)
			return r.engine.cfg.Priority.UrgentLately()
		}, patience, 20*time.Millisecond)
	})
}
