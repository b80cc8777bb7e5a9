package drill

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestLimitGrowsWithMail: a scenario that posts twice as much mail may take twice as long, and no longer.
func TestLimitGrowsWithMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &drill{
			scenario: &scenario{},
			incident: &incident{began: time.Now()},
			mail:     &traffic{known: map[models.ID]posted{}},
		}
		ctx, end := context.WithCancelCause(t.Context())
		defer end(nil)
		go d.limit(ctx, end)
		time.Sleep(scenarioLimit - time.Second)
		d.mail.keep(posted{n: 2 * fewRecipients})
		time.Sleep(scenarioLimit)
		require.NoError(t, ctx.Err())
		time.Sleep(time.Second)
		synctest.Wait()
		require.ErrorContains(t, context.Cause(ctx), "longer than 8m0s")
	})
}
