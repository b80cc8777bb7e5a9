package control

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// No command sends failed mail again to a recipient who complained about it.
func TestNoReleaseAfterComplaint(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	id := models.NewBatchID(at)
	both := models.SetTo(2)
	event := func(key string, recipient int, kind models.EventKind, reason models.Reason) models.Fact {
		return models.Fact{Key: key, Events: []models.Event{{
			ID:        key,
			Recipient: recipient,
			Attempt:   1,
			Provider:  "sg",
			Kind:      kind,
			Reason:    reason,
			At:        at,
		}}}
	}
	v := models.Resolve(2, []models.Entry{
		{Number: 1, Kind: models.Attempt, At: at, Recipients: both, Provider: "sg"},
		{Number: 2, Kind: models.Ending, At: at, Recipients: both, Reason: models.NoProviderLeft},
	}, []models.Fact{
		event("a", 1, models.Blocked, models.PolicyReputation),
		event("b", 2, models.Blocked, models.PolicyReputation),
		event("c", 2, models.Complained, ""),
	})
	require.Equal(t, models.Failed, v.Status(2).State)
	require.Equal(t, models.SetOf(1), Released(v, &models.Command{Kind: models.RetryBatch, Batch: id}))
	one := models.Command{Kind: models.ReleaseBatch, Batch: id, Log: id.Log(1)}
	require.Equal(t, models.SetOf(1), Released(v, &one))
	one.Log = id.Log(2)
	require.True(t, Released(v, &one).Empty())
}
