package operate

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/store/memory"
)

// countingStore counts the reads of reports.
type countingStore struct {
	models.Store
	n atomic.Int64
}

func (s *countingStore) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	s.n.Add(1)
	return s.Store.Transients(ctx, kind)
}

// operator is a caller who may do everything.
var operator = caller.Caller{By: "boss", Operator: true}

// newInstallation returns an installation with providers and this process alone.
func newInstallation(store models.Store, broker models.Broker, providers ...string) *Installation {
	log := slog.New(slog.DiscardHandler)
	trail := audit.New(audit.Deps{
		Store: store, Follower: control.NewFollower(store), Sole: true, RetryTime: time.Minute, Log: log,
	})
	d := Deps{
		Store: store, Broker: broker, Audit: trail, Guard: &idempotency.Guard{Store: store, Log: log},
		People: people.New(people.Deps{Store: store, Audit: trail, Log: log}), Known: map[string]bool{}, Log: log,
	}
	for _, name := range providers {
		d.Configured = append(d.Configured, models.Provider{Name: name})
		d.Known[name] = true
	}
	return New(d)
}

// newReportRig returns a service with the providers mg and sg.
func newReportRig(t *testing.T) (*Installation, *countingStore, models.Broker) {
	t.Helper()
	broker, err := inproc.New([]string{"mg", "sg"}, nil)
	require.NoError(t, err)
	reads := &countingStore{Store: memory.Open(t)}
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return newInstallation(reads, broker, "mg", "sg"), reads, broker
}

// putHistory stores the tally of a worker for one minute.
func putHistory(
	t *testing.T,
	store models.Store,
	worker string,
	at time.Time,
	provider string,
	change func(*telemetry.ProviderTally),
) {
	t.Helper()
	h := telemetry.HistoryHour{}
	change(h.At(provider, at.UTC().Minute()))
	require.NoError(t, store.PutTransient(t.Context(), telemetry.HistoryKind(at), worker, h.Encode(), time.Hour))
}

// TestHistorySteps: the tallies of several workers are added up in the right steps of each
// range. Tallies before the range are not counted.
func TestHistorySteps(t *testing.T) {
	t.Parallel()
	s, store, _ := newReportRig(t)
	now := time.Now().UTC()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	moments := []time.Duration{
		0,
		30 * time.Minute,
		61 * time.Minute,
		20 * time.Hour,
		26 * time.Hour,
		6 * 24 * time.Hour,
		8 * 24 * time.Hour,
		29 * 24 * time.Hour,
		32 * 24 * time.Hour,
	}
	for i, d := range moments {
		for _, worker := range []string{"one", "two"} {
			putHistory(t, store, worker+string(rune('a'+i)), ago(d), "sg", func(t *telemetry.ProviderTally) {
				t.Calls, t.Accepted, t.Delivered = 1, 10, 9
				t.Answers.Add(200 * time.Millisecond)
				t.Delivery.Add(3 * time.Second)
			})
		}
	}
	putHistory(t, store, "three", now, "gone", func(t *telemetry.ProviderTally) { t.Calls++ })
	require.NoError(t, store.PutTransient(t.Context(), telemetry.HistoryKind(now), "odd", []byte("?"), time.Hour))
	for back, want := range map[client.HistoryRange]int64{client.Hour: 2, client.Day: 4, client.Week: 6, client.Month: 8,
		"": 2} {
		h, err := s.historyAt(t.Context(), back, now)
		require.NoError(t, err)
		require.Len(t, h.Providers, 2, "the configured providers")
		require.Equal(t, "mg", h.Providers[0].Provider)
		require.Zero(t, h.Providers[0].Totals)
		sg := h.Providers[1]
		require.Equal(t, 20*want, sg.Totals.Accepted, back)
		require.InEpsilon(t, 200, sg.Totals.AnswerMS, .2)
		require.InEpsilon(t, 3000, sg.Totals.Delivery90MS, .2)
		require.LessOrEqual(t, len(sg.Steps), 120)
		require.True(t, h.From.Equal(sg.Steps[0].At))
		require.True(t, h.To.After(now))
		sum, found := int64(0), 0
		for i, p := range sg.Steps {
			require.True(t, p.At.Equal(h.From.Add(time.Duration(i*h.Step)*time.Second)))
			sum += p.Accepted
			for _, d := range moments {
				if at := ago(d); !at.Before(p.At) && at.Before(p.At.Add(time.Duration(h.Step)*time.Second)) {
					found++
					require.NotZero(t, p.Accepted, "%s: %v ago", back, d)
				}
			}
		}
		require.Equal(t, sg.Totals.Accepted, sum)
		require.EqualValues(t, want, found)
	}
	_, err := s.History(t.Context(), "year")
	require.ErrorContains(t, err, "not valid")
}

// TestHistoryIsCached: hours that are over are read once, however often they are requested.
func TestHistoryIsCached(t *testing.T) {
	t.Parallel()
	s, store, _ := newReportRig(t)
	now := time.Now().UTC().Truncate(time.Hour).Add(30 * time.Minute)
	for range 50 {
		_, err := s.historyAt(t.Context(), client.Month, now)
		require.NoError(t, err)
	}
	require.Less(t, store.n.Load(), int64(30*24+1+50*2))
	store.n.Store(0)
	_, err := s.historyAt(t.Context(), client.Week, now)
	require.NoError(t, err)
	require.LessOrEqual(t, store.n.Load(), int64(4), "the hours of the week are cached with those of the month")
}

// TestQueueAge: the newest report of a queue counts. A queue without waiting messages has no
// age, nor has a queue without reports.
func TestQueueAge(t *testing.T) {
	t.Parallel()
	s, store, broker := newReportRig(t)
	ctx := t.Context()
	for _, provider := range []string{"mg", "sg"} {
		require.NoError(t, broker.Publish(ctx, models.Message{
			Kind:     models.ProviderMessage,
			Provider: provider,
			Lane:     models.Bulk,
			ID:       models.NewBatchID(time.Now()),
		}))
	}
	for worker, age := range map[string]time.Duration{"one": time.Minute, "two": time.Hour} {
		at := time.Now().Add(-age).Format(time.RFC3339Nano)
		report := []byte(`{"sg.bulk": "` + at + `", "sg.urgent": "` + at + `"}`)
		require.NoError(t, store.PutTransient(ctx, telemetry.QueuesReport, worker, report, time.Hour))
	}
	require.NoError(t, store.PutTransient(ctx, telemetry.QueuesReport, "odd", []byte(`?`), time.Hour))
	queues, err := s.Queues(ctx, caller.Caller{Operator: true})
	require.NoError(t, err)
	ages := map[string]*float64{}
	for i := range queues {
		ages[queues[i].Name] = queues[i].OldestSeconds
	}
	require.InDelta(t, 60, *ages["sg.bulk"], 30)
	require.Nil(t, ages["sg.urgent"], "no message waits")
	require.Nil(t, ages["mg.bulk"], "no worker has reported the queue")
}
