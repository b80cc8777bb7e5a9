package api

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// park parks a message and returns it.
func (f *fixture) park() client.ParkedMessage {
	f.Helper()
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	require.NoError(f, f.broker.Publish(f.Context(), m))
	f.handleOne(models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}, models.Park("cannot be read"))
	list := read[struct{ Parked []client.ParkedMessage }](f, "/v1/parked").Parked
	require.NotEmpty(f, list)
	return list[len(list)-1]
}

// silentBroker unparks messages but returns an error.
type silentBroker struct{ models.Broker }

func (b silentBroker) Unpark(ctx context.Context, id string) error {
	return errors.Join(b.Broker.Unpark(ctx, id), models.ErrUnavailable)
}

// TestRepeatedRequeue: a command about a parked message is recorded before it is carried out. A
// repeat of the request succeeds if the message is gone, and records nothing.
func TestRepeatedRequeue(t *testing.T) {
	t.Parallel()
	silent := func(s *setup) { s.broker = func(b models.Broker) models.Broker { return silentBroker{b} } }
	f := newFixture(t, silent).operator()
	requeue := func(id string) *reply {
		return f.do(http.MethodPost, "/v1/parked/"+id+"/requeue", "", nil, "Idempotency-Key", "k-"+id)
	}
	p := f.park()
	require.Equal(t, http.StatusServiceUnavailable, requeue(p.ID).Status)
	require.Equal(t, []string{"parked.requeue"}, f.commands())
	require.Equal(t, http.StatusOK, requeue(p.ID).Status)
	require.Equal(t, http.StatusNotFound, requeue("nothing").Status)
	require.Equal(t, []string{"parked.requeue"}, f.commands(), "recorded once, and not for a message that does not exist")
}

// TestParked: a parked message is listed, requeued or discarded.
func TestParked(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	type parked struct{ Parked []client.ParkedMessage }
	require.Empty(t, read[parked](f, "/v1/parked").Parked)
	status := func(method, path string) int { return f.do(method, "/v1/parked/"+path, "", nil).Status }
	p := f.park()
	require.Equal(t, "cannot be read", p.Why)
	for range 2 { // the second request changes nothing
		require.Equal(t, http.StatusOK, status(http.MethodPost, p.ID+"/requeue"))
	}
	require.Equal(t, http.StatusNotFound, status(http.MethodDelete, p.ID), "requeued, not discarded")
	require.Empty(t, read[parked](f, "/v1/parked").Parked)
	f.handleOne(models.Queue{Kind: models.BatchMessage, Lane: models.Bulk}, models.Done())
	p = f.park()
	for range 2 {
		require.Equal(t, http.StatusOK, status(http.MethodDelete, p.ID))
	}
	require.Equal(t, http.StatusNotFound, status(http.MethodPost, p.ID+"/requeue"), "discarded")
	require.Equal(t, http.StatusNotFound, status(http.MethodDelete, "nothing"))
	require.Equal(t, []string{"parked.requeue", "parked.discard"}, f.commands())
	type queues struct{ Queues []client.Queue }
	require.Len(t, read[queues](f, "/v1/queues").Queues, len(models.Queues([]string{"sg", "mg"})))
	require.Contains(t, string(f.get("/v1/queues").Body), `"oldest_seconds":null`, "no message waits")
	m := models.Message{Kind: models.BatchMessage, ID: models.NewBatchID(time.Now()), Lane: models.Bulk}
	require.NoError(t, f.broker.Publish(t.Context(), m))
	report := []byte(`{"batch.bulk": "` + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + `"}`)
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.QueuesReport, "w", report, time.Hour))
	for _, q := range read[queues](f, "/v1/queues").Queues {
		if q.Name == "batch.bulk" {
			require.InDelta(t, time.Hour, q.Age(), float64(10*time.Minute))
		}
	}
}
