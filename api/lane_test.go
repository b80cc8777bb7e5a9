package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mail"
)

// urgentLimit returns a fixture whose users may have so many urgent recipients in an hour.
func urgentLimit(t *testing.T, n int64) *fixture {
	t.Helper()
	testkit.WithinHour()
	return newFixture(t, func(s *setup) {
		s.service.Quotas = models.Limits{models.UrgentRecipientsPerHour: n}
		s.service.UnsubscribeURL = "https://mail.example.com/u/"
	})
}

// inLane requires that a batch is accepted in a lane, and that the answer and the batch say so.
func (f *fixture) inLane(want models.Lane, r *reply) models.Batch {
	f.Helper()
	a, b, _ := f.accepted(r)
	limit := models.Limit("")
	if want == models.Bulk {
		limit = models.UrgentRecipientsPerHour
	}
	require.Equal(f, []any{want, limit, want, limit}, []any{a.Lane, a.LaneLimit, b.Lane, b.LaneLimit})
	return b
}

// urgentBefore returns how many recipients wait in the urgent lane before a batch.
func (f *fixture) urgentBefore(id models.ID) (recipients int) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	q := models.Queue{Kind: models.BatchMessage, Lane: models.Urgent}
	require.NoError(f, f.broker.Subscribe(ctx, q, 1, func(_ context.Context, m models.Message) models.Disposition {
		b, err := f.store.Batch(f.Context(), m.ID.Batch())
		switch {
		case err != nil:
			f.Error(err)
			cancel()
		case b.ID == id:
			cancel()
		default:
			recipients += b.ChunkSize(m.ID.ChunkNumber())
		}
		return models.Done()
	}))
	return recipients
}

// TestUrgentMailIsLimited: all processes together accept only as much urgent mail of a user as the limit allows. They
// accept the rest as bulk, also if the request asks for urgent. Another user's urgent mail waits for no more than that.
func TestUrgentMailIsLimited(t *testing.T) {
	t.Parallel()
	f := urgentLimit(t, 10)
	again := func() *reply {
		return f.do(
			http.MethodPost,
			"/v1/batches",
			"application/json",
			strings.NewReader(batchTo(5)),
			"Idempotency-Key",
			"1",
		)
	}
	f.inLane(models.Urgent, f.post(batchTo(6)))
	first := f.inLane(models.Bulk, again())
	repeated := again()
	require.Equal(t, "true", repeated.Header.Get("Idempotency-Replayed"))
	require.Equal(t, first.ID, f.inLane(models.Bulk, repeated).ID)
	f.inLane(models.Bulk, f.post(batchOf(t, `{"lane": "urgent", "allow_duplicates": true,
		"to": ["a@x.de", "a@x.de", "a@x.de", "a@x.de", "a@x.de"]}`)))
	f.inLane(models.Urgent, f.post(batchTo(4)))
	for range 20 {
		f.inLane(models.Bulk, f.post(batchTo(1)))
	}
	a, _, _ := f.accepted(f.post(batchOf(t, `{"lane": "bulk"}`)))
	require.Empty(t, a.LaneLimit, "it is bulk as requested")

	bob := *f
	bob.secret = f.foreign
	other := f.inLane(models.Urgent, bob.post(batchTo(10)))
	require.LessOrEqual(t, f.urgentBefore(other.ID), 10)

	require.Equal(t, models.UrgentRecipientsPerHour, read[mail.BatchView](f, batchPath(first.ID)).LaneLimit)
	_, used := limitsOf(t, f.get("/v1/usage"))
	require.EqualValues(t, 10, used[models.UrgentRecipientsPerHour].Used)
	require.Empty(t, f.get("/v1/usage").Header.Get("RateLimit"), "nothing is refused")
	f.serve(Config{}) // another process
	f.inLane(models.Bulk, f.post(batchTo(1)))
	var found struct{ Notices []models.Notice }
	require.NoError(t, json.Unmarshal(f.operator().get("/v1/notices").Body, &found))
	require.Len(t, found.Notices, 2, "each user's hour once")
	require.Equal(t, models.UrgentRecipientsPerHour, found.Notices[0].Limit)
}

// TestOnlyTheLaneChanges: mail that becomes bulk because of the limit stays what it was as urgent mail.
func TestOnlyTheLaneChanges(t *testing.T) {
	t.Parallel()
	f := urgentLimit(t, 1)
	f.secret = f.key(models.KeyOptions{Scopes: []models.Scope{models.ScopeSend, models.ScopePass}})
	for _, want := range []models.Lane{models.Urgent, models.Bulk} {
		b := f.inLane(want, f.post(batchOf(t, `{"category": "receipts"}`)))
		require.Nil(t, b.Unsubscribe)
		require.True(t, b.PassUnsubscribes)
	}
}

// TestUrgentLimitOfKey: a key has a limit of its own.
func TestUrgentLimitOfKey(t *testing.T) {
	t.Parallel()
	f := urgentLimit(t, 10)
	keys, err := f.store.Keys(t.Context(), f.user)
	require.NoError(t, err)
	limits := "/v1/users/ann/keys/" + keys[0].ID + "/limits"
	limitsOf(t, f.operator().do(http.MethodPut, limits, "application/json",
		strings.NewReader(`{"urgent_recipients_per_hour": 1}`)))
	f.inLane(models.Bulk, f.post(batchTo(2)))
	f.inLane(models.Urgent, f.post(batchTo(1)))
	_, used := limitsOf(t, f.get("/v1/usage"))
	require.EqualValues(t, 1, used[models.UrgentRecipientsPerHour].Used, "of the user only what is urgent is counted")
}

// TestUrgentMessagesAreLimited: messages by client ids count as others.
func TestUrgentMessagesAreLimited(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(f *fixture) []models.ID{
		"by client id": func(f *fixture) (batches []models.ID) {
			return putBatches(f, "")
		},
		"strict": func(f *fixture) (batches []models.ID) {
			return putBatches(f, "?mode=strict")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := urgentLimit(t, 2)
			lanes := map[models.Lane]int{}
			for _, id := range send(f) {
				b, err := f.store.Batch(t.Context(), id)
				require.NoError(t, err)
				lanes[b.Lane]++
				require.Equal(t, b.Lane == models.Bulk, b.LaneLimit != "")
			}
			require.Equal(t, map[models.Lane]int{models.Urgent: 2, models.Bulk: 3}, lanes)
		})
	}
}

// putBatches puts five messages that become batches of their own.
func putBatches(f *fixture, query string) (batches []models.ID) {
	f.Helper()
	var all []string
	for i := range 5 {
		all = append(all, record("new", fmt.Sprint(i), fmt.Sprint(i), "a@example.com"))
	}
	for _, r := range putResults(f, f.put(query, all...)) {
		batches = append(batches, r.Log.Batch())
	}
	return batches
}

// TestScheduledUrgentMailIsLimited: mail counts in the hour in which it may leave.
func TestScheduledUrgentMailIsLimited(t *testing.T) {
	t.Parallel()
	f := urgentLimit(t, 2)
	nine := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 2).Add(9 * time.Hour)
	at := func(hours int) string {
		return nine.Add(time.Duration(hours)*time.Hour + time.Minute).Format(time.RFC3339)
	}
	scheduled := func(hours int) *reply { return f.post(batchOf(t, fmt.Sprintf(`{"deliver_at": %q}`, at(hours)))) }
	f.inLane(models.Urgent, scheduled(0))
	f.inLane(models.Urgent, scheduled(0))
	f.inLane(models.Bulk, scheduled(0))
	f.inLane(models.Urgent, scheduled(1))
	f.inLane(models.Bulk, f.post(batchOf(t, fmt.Sprintf(`{"deliver_at": %q, "time_zone": "UTC",
		"send_window": {"from": "09:00", "to": "09:30"}}`, at(-3)))))
	own := func(hours int) string {
		return fmt.Sprintf(`{"to": ["a@x.de", {"email": "b@x.de", "deliver_at": %q}]}`, at(hours))
	}
	f.inLane(models.Bulk, f.post(batchOf(t, own(0))))
	f.inLane(models.Urgent, f.post(batchOf(t, own(1))))
	f.inLane(models.Bulk, scheduled(1))
	f.inLane(models.Urgent, f.post(batchTo(1)))
	f.inLane(models.Bulk, f.post(batchTo(1)))
}
