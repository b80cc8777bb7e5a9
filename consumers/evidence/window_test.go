package evidence

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
)

// TestExpiredWindowIsNotRechecked: once the evidence window of the newest call has expired,
// a wait for the final event of an earlier one does not keep the chunk due for the next
// recheck.
func TestExpiredWindowIsNotRechecked(t *testing.T) {
	t.Parallel()
	l := newLookups(t, nil, &eventsAPI{})
	at := time.Now()
	attempt := func(n int) models.Entry {
		return models.Entry{
			Number:     n,
			Kind:       models.Attempt,
			At:         at,
			Recipients: models.SetOf(1),
			Provider:   "mg",
			CallEnds:   at.Add(time.Minute),
		}
	}
	for _, class := range []models.Class{models.Unknown, ""} { // the answer to the newest call; empty: none yet
		facts := []models.Fact{{
			Key:    "e1",
			Events: []models.Event{{ID: "1", Recipient: 1, Attempt: 1, Provider: "mg", Kind: models.Processed, At: at}},
		}}
		if class != "" {
			parts := []models.Part{{Class: class, Recipients: models.SetOf(1)}}
			facts = append(facts, models.Fact{
				Key:     models.OutcomeKey(2),
				Outcome: &models.Outcome{Attempt: 2, At: at, Parts: parts},
			})
		}
		view := models.Resolve(1, []models.Entry{attempt(1), attempt(2)}, facts)
		c := &dispatch.Chunk{ID: models.NewBatchID(at), View: view}
		st := &policy.Step{Do: policy.Wait, Recipients: models.SetOf(1), Until: at.Add(100 * time.Hour)}
		require.True(t, l.MayEndSoon(c, st, at))
		require.False(t, l.MayEndSoon(c, st, at.Add(time.Minute+evidenceWindow)))
	}
}
