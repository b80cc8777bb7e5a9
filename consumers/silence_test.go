package consumers

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// The counts by which silence is judged have what the engine sent and what was reported.
func TestReportsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &reporting{scripted: newScripted("mg", always(models.Accepted))}
		r := lookUpRig(t, fast(), p)
		b := r.batch(5, true, nil)
		r.taken(b)
		var events []models.ParsedEvent
		for n := 1; n <= 3; n++ {
			events = append(
				events,
				models.ParsedEvent{
					Log:   b.ID.Log(n),
					Event: models.Event{ID: fmt.Sprint(n), Attempt: 1, Kind: models.Delivered, At: time.Now()},
				},
			)
		}
		body, err := json.Marshal(events)
		require.NoError(t, err)
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: "mg", Posts: []models.Post{{Body: body}}}
		require.NoError(t, r.store.PutInbox(t.Context(), in))
		require.NoError(
			t,
			r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "mg", ID: in.ID}),
		)
		require.Eventually(t, func() bool {
			var sum provider.Flow
			for _, f := range r.engine.flows.Snapshot()["mg"] {
				sum.Accepted += f.Accepted
				sum.Reported += f.Reported
			}
			return sum == provider.Flow{Accepted: 5, Reported: 3}
		}, patience, 5*time.Millisecond)
	})
}
