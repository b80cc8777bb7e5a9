package consumers

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// Events about mail that the provider did not try to deliver are no reports.
func TestDropIsNoReport(t *testing.T) {
	t.Parallel()
	e := newRig(t, fast(), nil, newScripted("sg", always(models.Accepted))).engine
	now := time.Now()
	of := &models.Entry{At: now.Add(-time.Minute)}
	reported := func() int64 { return e.flows.Between("sg", 0, provider.Bucket(now)+1).Reported }
	for _, kind := range []models.EventKind{models.Dropped, models.Rejected, models.Processed, models.Opened} {
		e.events.CountEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.Zero(t, reported())
	for _, kind := range []models.EventKind{models.Delivered, models.Bounced, models.Blocked, models.Deferred} {
		e.events.CountEvent(&models.Event{Provider: "sg", Kind: kind, At: now}, of, now)
	}
	require.EqualValues(t, 4, reported())
}

// The counts by which silence is judged have what the engine sent and what was reported.
func TestReportsAreCounted(t *testing.T) {
	t.Parallel()
	p := &told{scripted: newScripted("mg", always(models.Accepted))}
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
	require.NoError(t, r.broker.Publish(t.Context(), models.Message{Kind: models.EventMessage, Provider: "mg", ID: in.ID}))
	require.Eventually(t, func() bool {
		f := r.engine.flows.Between("mg", 0, provider.Bucket(time.Now())+1)
		return f == provider.Flow{Accepted: 5, Reported: 3}
	}, patience, 5*time.Millisecond)
}
