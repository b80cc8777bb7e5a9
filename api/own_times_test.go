package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// inThreeWeeks is the same day during all tests.
var inThreeWeeks = time.Now().AddDate(0, 0, 21)

// morning is at nine on a clock in a zone, on a day in three weeks.
func morning(t testing.TB, zone string) time.Time {
	t.Helper()
	z, err := time.LoadLocation(zone)
	require.NoError(t, err)
	y, m, d := inThreeWeeks.Date()
	return time.Date(y, m, d, 9, 0, 0, 0, z).UTC()
}

// inTheMorning is a batch that leaves at nine in Vienna, or where a recipient is, or when Eve and Dan want it.
func inTheMorning(t testing.TB) string {
	t.Helper()
	return batchOf(t, fmt.Sprintf(`{"deliver_at": %q, "time_zone": "Europe/Vienna", "to": [
		"ann@example.com",
		{"email": "bob@example.com", "time_zone": "America/New_York"},
		{"email": "eve@example.com", "deliver_at": %q, "expires_at": %q},
		"lou@example.com",
		{"email": "max@example.com", "time_zone": "America/New_York", "name": "Max"},
		{"email": "BOB@example.com", "deliver_at": %[2]q},
		{"email": "dan@example.com", "send_window": {"from": "10:00", "to": "11:00", "strict": true}, "deliver_at": null}
	]}`, morning(t, "Europe/Vienna").In(vienna(t)).Format("2006-01-02T15:04"),
		morning(t, "UTC").Add(-24*time.Hour).Format(time.RFC3339), morning(t, "UTC").Format(time.RFC3339)))
}

// postOnce posts a batch with a key.
func (f *fixture) postOnce(body string) *reply {
	f.Helper()
	return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), "Idempotency-Key", "k")
}

// TestOwnTimes: recipients have the times that they name, and those of the batch for the rest. The batch, its logs and
// a dry run tell them.
func TestOwnTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, to := f.accepted(f.postOnce(inTheMorning(t)))
	_, again, _ := f.accepted(f.postOnce(inTheMorning(t)))
	require.Equal(t, b, again)
	other := strings.Replace(inTheMorning(t), "New_York", "Chicago", 1)
	require.Equal(t, http.StatusUnprocessableEntity, f.postOnce(other).Status)

	names := make([]string, len(to))
	for i := range to {
		names[i], _, _ = strings.Cut(to[i].Email, "@")
	}
	require.Equal(t, []string{"ann", "lou", "bob", "max", "eve", "dan"}, names)
	require.Equal(t, []int{2, 2, 1, 1}, b.Sizes)
	at, abroad, early := morning(t, "Europe/Vienna"), morning(t, "America/New_York"), morning(t, "UTC").Add(-24*time.Hour)
	week := 7 * 24 * time.Hour
	window := &models.SendWindow{From: 10 * 60, To: 11 * 60, Zone: "Europe/Vienna", Strict: true}
	require.Equal(t, at, b.DeliverAt)
	require.Equal(t, []models.OwnTimes{
		{Schedule: models.Schedule{DeliverAt: abroad, ExpiresAt: abroad.Add(week)}, From: 1},
		{Schedule: models.Schedule{DeliverAt: early, ExpiresAt: early.Add(24 * time.Hour)}, From: 2},
		{Schedule: models.Schedule{DeliverAt: at, ExpiresAt: at.Add(week), Window: window}, From: 3},
	}, b.Own)

	own := &client.OwnTimes{Recipients: 4, First: early, Last: abroad}
	v := read[mail.BatchView](f, batchPath(a.ID))
	require.Equal(t, own, v.OwnTimes)
	require.Equal(t, at, v.DeliverAt)
	require.Equal(t, models.BatchScheduled, v.State)
	require.Equal(t, models.WaitSchedule, v.Waits.Code)
	require.Equal(t, early, v.Waits.Until, "when the first mail leaves")
	require.Equal(t, own, read[batchList](f, "/v1/batches?state=scheduled").Batches[0].OwnTimes)
	for n, want := range []struct{ leaves, expires time.Time }{
		{at, at.Add(week)}, {abroad, abroad.Add(week)}, {early, early.Add(24 * time.Hour)}, {at, at.Add(week)},
	} {
		l := read[mail.LogStory](f, "/v1/logs/"+a.ID.Chunk(n).Log(1).String())
		require.Equal(t, want.leaves, l.DeliverAt)
		require.Equal(t, want.expires, l.ExpiresAt)
		if n == 3 {
			want.leaves = want.leaves.Add(time.Hour)
			require.Equal(t, window, l.Window)
		}
		require.Equal(t, want.leaves, l.Waits.Until)
	}

	r := f.do(http.MethodPost, "/v1/batches?dry_run=true", "application/json", strings.NewReader(inTheMorning(t)))
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	var dry service.DryRun
	require.NoError(t, json.Unmarshal(r.Body, &dry))
	require.Equal(t, own, dry.OwnTimes)
	require.Len(t, dry.Routes, 1)
	require.Equal(t, 6, dry.Routes[0].Recipients)
	require.Equal(t, early, dry.Routes[0].Waits.Until)
	require.Equal(t, abroad, dry.Routes[0].LastUntil)
}

// TestOwnTimesStay: a change of the times of a batch reaches the recipients without own times. If there are none, it is
// refused.
func TestOwnTimesStay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, _ := f.accepted(f.post(inTheMorning(t)))
	at := morning(t, "UTC").AddDate(0, 0, 1)
	body := fmt.Sprintf(`{"deliver_at": %q}`, at.Format(time.RFC3339))
	done := f.rescheduled(a.ID, "", body)
	require.Equal(t, 2, *done.Recipients)
	require.Equal(t, at, done.DeliverAt)
	for n, want := range []time.Time{at, b.Own[0].DeliverAt, b.Own[1].DeliverAt, b.Own[2].DeliverAt} {
		l := read[mail.LogStory](f, "/v1/logs/"+a.ID.Chunk(n).Log(1).String())
		require.Equal(t, want, l.DeliverAt)
	}
	v := read[mail.BatchView](f, batchPath(a.ID))
	require.Equal(t, at, v.DeliverAt)
	require.Equal(t, &client.OwnTimes{Recipients: 4, First: b.Own[1].DeliverAt, Last: at}, v.OwnTimes)

	all, _, _ := f.accepted(f.post(batchOf(t, `{"to": [{"email": "a@b.de", "deliver_at": "`+at.Format(time.RFC3339)+
		`"}]}`)))
	for _, query := range []string{"", "?dry_run=true"} {
		r := f.reschedule(all.ID, query, body)
		require.Equal(t, http.StatusConflict, r.Status, string(r.Body))
		require.Equal(t, "own_times", r.problem(t).Code)
	}
	begun := read[mail.BatchView](f, batchPath(f.begunForOne(at)))
	require.Equal(t, models.BatchQueued, begun.State)
	require.True(t, f.rescheduled(begun.ID, "", body).Changed, "the mail with own times has begun, the other has not")
}

// begunForOne accepts a batch for a time that is sent to one recipient at once.
func (f *fixture) begunForOne(at time.Time) models.ID {
	f.Helper()
	a, _, _ := f.accepted(f.post(batchOf(f, fmt.Sprintf(`{"deliver_at": %q, "to": ["a@b.de",
		{"email": "c@d.de", "deliver_at": %q}]}`, at.AddDate(0, 0, 1).Format(time.RFC3339),
		time.Now().Format(time.RFC3339)))))
	return a.ID
}

// TestMistakesInOwnTimes: mistakes are reported at the field of the recipient.
func TestMistakesInOwnTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for to, want := range map[string]string{
		`"deliver_at": 7`:                                  "/to/1/deliver_at wrong_type",
		`"deliver_at": "tomorrow"`:                         "/to/1/deliver_at invalid_value",
		`"deliver_at": "2099-01-01T09:00"`:                 "/to/1/deliver_at invalid_value",
		`"deliver_at": "2001-01-01T09:00:00Z"`:             "/to/1/deliver_at invalid_value",
		`"expires_at": "2001-01-01T09:00:00Z"`:             "/to/1/expires_at invalid_value",
		`"time_zone": "Moon/North"`:                        "/to/1/time_zone invalid_value",
		`"time_zone": "UTC", "time_zone": "UTC"`:           "/to/1/time_zone repeated",
		`"send_window": "any"`:                             "/to/1/send_window wrong_type",
		`"send_window": {"from": "09:00", "till": "10"}`:   "/to/1/send_window/till unknown_field",
		`"send_window": {"from": "09:00", "to": "17:00"}`:  "/to/1/send_window/time_zone required",
		`"time_zone": "UTC", "send_window": {"from": "9"}`: "/to/1/send_window/from invalid_value",
		`"send_at": "2099-01-01T09:00:00Z"`:                "/to/1/send_at unknown_field",
	} {
		r := f.post(batchOf(t, `{"to": ["ann@example.com", {"email": "bob@example.com", `+to+`}]}`))
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, "%s: %s", to, r.Body)
		p := r.problem(t)
		require.Contains(t, p.pointers(), want, to)
	}
	r := f.post(batchOf(t, `{"cc": ["cc@example.com"], "to": [{"email": "bob@example.com", "time_zone": "UTC"}]}`))
	p := r.problem(t)
	require.Equal(t, []string{"/to/0/time_zone conflict"}, p.pointers())
	require.Empty(t, f.store.writes(), "something was stored")

	answer := f.permissive(batchOf(t, `{"to": ["ann@example.com", {"email": "bob@example.com", "deliver_at": "never"}]}`))
	require.Equal(t, http.StatusAccepted, answer.Status, string(answer.Body))
	require.Equal(t, []string{"1 /to/1/deliver_at invalid_value"}, places(rejectedOf(t, answer).First))
	answer = f.permissive(batchOf(t, `{"to": [{"email": "bob@example.com", "deliver_at": "never"}]}`))
	p = answer.problem(t)
	require.Equal(t, []string{"/to/0/deliver_at invalid_value"}, p.pointers())
}

// TestOwnTimesInFiles: the columns deliver_at and time_zone of a table are times, as are the fields of recipients in
// lines of JSON. Empty cells are none.
func TestOwnTimesInFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := morning(t, "Asia/Tokyo")
	local := at.In(time.FixedZone("", 9*3600)).Format("2006-01-02T15:04")
	for name, content := range map[string]string{
		"a.csv": "email,first,deliver_at,time_zone\nann@example.com,A,,\nbob@example.com,B," + local + ",Asia/Tokyo\n",
		"a.ndjson": `{"email": "ann@example.com", "vars": {"first": "A"}}` + "\n" +
			`{"email": "bob@example.com", "vars": {"first": "B"}, "deliver_at": "` + local + `", "time_zone": "Asia/Tokyo"}`,
	} {
		_, b, to := f.accepted(f.postFile(name, content))
		require.Equal(t, []models.Recipient{
			{Email: "ann@example.com", Vars: map[string]string{"first": "A"}},
			{Email: "bob@example.com", Vars: map[string]string{"first": "B"}},
		}, to)
		require.True(t, b.DeliverAt.IsZero())
		require.Equal(t, 1, b.Own[0].From)
		require.Equal(t, at, b.Own[0].DeliverAt)
	}
	r := f.postFile("a.csv", "email,first,deliver_at\nann@example.com,A,2001-01-01\n")
	p := r.problem(t)
	require.Equal(t, []string{"/to/0/deliver_at invalid_value"}, p.pointers())
}

// TestOwnTimesRetry: a repeat of a request whose first attempt was cut off never mixes the recipients of two attempts.
func TestOwnTimesRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.store.failing("PutBatch", func(n int) error {
		if n == 1 {
			return models.ErrUnavailable
		}
		return nil
	})
	require.Equal(t, http.StatusServiceUnavailable, f.postOnce(inTheMorning(t)).Status)
	r := f.postOnce(inTheMorning(t))
	require.Equal(t, http.StatusConflict, r.Status)
	require.Equal(t, "attempt_abandoned", r.problem(t).Code)
	_, b, _ := f.accepted(f.postOnce(inTheMorning(t)))
	require.Len(t, b.Own, 3)
}
