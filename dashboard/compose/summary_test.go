package compose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestLaneWords: the card says which lane a message has, and why.
func TestLaneWords(t *testing.T) {
	t.Parallel()
	plan := &service.DryRun{Lane: models.Bulk}
	require.Equal(t, "bulk: sent after urgent mail; chosen by the number of recipients", laneWords("", plan))
	require.Equal(t, "bulk: sent after urgent mail", laneWords(models.Bulk, plan))
	plan.LaneLimit = models.UrgentRecipientsPerHour
	require.Contains(t, laneWords(models.Urgent, plan), "the limit of urgent recipients per hour was reached")
}
