package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/mail"
)

// scheduled accepts a batch for a time.
func (f *fixture) scheduled(at time.Time) models.ID {
	f.Helper()
	_, b, _ := f.accepted(f.post(batchOf(f, fmt.Sprintf(`{"deliver_at": %q}`, at.Format(time.RFC3339)))))
	return b.ID
}

// reschedule changes the times of a batch.
func (f *fixture) reschedule(id models.ID, query, body string) *reply {
	f.Helper()
	return f.do(http.MethodPatch, batchPath(id)+query, "application/json", strings.NewReader(body))
}

// rescheduled returns the answer to a change that is carried out.
func (f *fixture) rescheduled(id models.ID, query, body string) (out commands.Result) {
	f.Helper()
	r := f.reschedule(id, query, body)
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	require.NoError(f, json.Unmarshal(r.Body, &out))
	return out
}

// TestReschedule: the times of a batch that has not begun are changed, each change once. Times that the request does
// not name stay, but a batch expires as long after its time as before.
func TestReschedule(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	id := f.scheduled(at)
	first := read[mail.BatchView](f, batchPath(id))
	require.Equal(t, at, first.DeliverAt)

	later := at.AddDate(0, 1, 0)
	body := fmt.Sprintf(`{"deliver_at": %q, "time_zone": "Europe/Vienna", "why": "too early"}`,
		later.In(vienna(t)).Format("2006-01-02T15:04:05"))
	want := commands.Result{
		BatchID:    id,
		Command:    models.RescheduleBatch,
		Changed:    true,
		Recipients: new(1),
		InFlight:   new(0),
		Schedule:   &models.Schedule{DeliverAt: later, ExpiresAt: first.ExpiresAt.Add(later.Sub(at))},
	}
	dry := want
	dry.DryRun = true
	require.Equal(t, dry, f.rescheduled(id, "?dry_run=true", body))
	require.Equal(t, first, read[mail.BatchView](f, batchPath(id)), "a dry run changes nothing")
	require.Equal(t, want, f.rescheduled(id, "", body))
	want.Changed, want.Recipients = false, new(0)
	require.Equal(t, want, f.rescheduled(id, "", body), "a repeat changes nothing")
	v := read[mail.BatchView](f, batchPath(id))
	require.Equal(t, later, v.DeliverAt)
	require.Equal(t, models.BatchScheduled, v.State)
	require.Equal(t, later, v.Waits.Until)
	listed := read[batchList](f, "/v1/batches?state=scheduled").Batches[0]
	require.Equal(t, []time.Time{v.ExpiresAt, later}, []time.Time{listed.ExpiresAt, listed.DueAt})

	window := `"send_window": {"from": "09:00", "to": "17:00", "time_zone": "UTC"}`
	require.Equal(t, "09:00 to 17:00 (UTC)", f.rescheduled(id, "", "{"+window+"}").Window.String())
	require.Equal(t, later, f.rescheduled(id, "", `{"send_window": null}`).DeliverAt)
	require.Nil(t, read[mail.BatchView](f, batchPath(id)).Window)
	end := later.Add(time.Hour)
	require.Equal(t, end, f.rescheduled(id, "", fmt.Sprintf(`{"expires_at": %q}`, end.Format(time.RFC3339))).ExpiresAt)
	require.Equal(t, []string{"batch.reschedule too early"}, f.commands()[:1])
	g := f.operator()
	entry := read[audit.Page](g, "/v1/audit").Commands[0]
	require.Equal(t, end, entry.ExpiresAt)
	require.Equal(t, f.user, entry.By)

	now := f.rescheduled(id, "", fmt.Sprintf(`{"deliver_at": %q}`, time.Now().Format(time.RFC3339)))
	require.True(t, now.Changed)
	require.Equal(t, models.BatchQueued, read[mail.BatchView](f, batchPath(id)).State)
	r := f.reschedule(id, "", body)
	require.Equal(t, http.StatusConflict, r.Status)
	require.Equal(t, "batch_begun", r.problem(t).Code)
}

func vienna(t testing.TB) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Vienna")
	require.NoError(t, err)
	return zone
}

// TestRescheduleRefused: a batch keeps its times if the new ones are not those of a new batch, or if it has begun, is
// cancelled or belongs to another user.
func TestRescheduleRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	day := 24 * time.Hour
	id := f.scheduled(time.Now().Add(3 * day))
	before := read[mail.BatchView](f, batchPath(id))
	in := func(d time.Duration) string { return `"` + time.Now().Add(d).Format(time.RFC3339) + `"` }
	for body, at := range map[string]string{
		`{}`:                                  "",
		`{"deliver_at": ` + in(366*day) + `}`: "/deliver_at",
		`{"deliver_at": ` + in(-2*time.Hour) + `}`:                   "/deliver_at",
		`{"deliver_at": "2099-01-01T09:00"}`:                         "/deliver_at",
		`{"deliver_at": null}`:                                       "/deliver_at",
		`{"deliver_at": ""}`:                                         "/deliver_at",
		`{"expires_at": ` + in(2*day) + `}`:                          "/expires_at",
		`{"expires_at": ` + in(34*day) + `}`:                         "/expires_at",
		`{"send_window": {"from": "09:00", "to": "17:00"}}`:          "/send_window/time_zone",
		`{"send_window": {"from": "9", "to": "8", "x": 1}}`:          "/send_window/x",
		`{"send_window": "any"}`:                                     "/send_window",
		`{"lane": "urgent"}`:                                         "/lane",
		`{"deliver_at": ` + in(day) + `, "time_zone": "Moon/North"}`: "/time_zone",
	} {
		r := f.reschedule(id, "?dry_run=true", body)
		for r.Status == http.StatusTooManyRequests { // there are more cases than a batch takes commands in a minute
			id = f.scheduled(before.DeliverAt)
			r = f.reschedule(id, "?dry_run=true", body)
		}
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, "%s: %s", body, r.Body)
		require.Equal(t, at, r.problem(t).Errors[0].Pointer, body)
	}
	require.Empty(t, f.commands())

	refused := func(id models.ID, status int, code string, header ...string) {
		t.Helper()
		r := f.do(http.MethodPatch, batchPath(id), "application/json",
			strings.NewReader(`{"deliver_at": `+in(day)+`}`), header...)
		require.Equal(t, status, r.Status, string(r.Body))
		require.Equal(t, code, r.problem(t).Code)
	}
	refused(id, http.StatusNotFound, "not_found", "Authorization", "Bearer "+f.foreign)
	refused(f.four().ID, http.StatusConflict, "batch_begun")
	refused(f.scheduled(time.Now().Add(time.Second)), http.StatusConflict, "batch_begun")
	control(f, batchPath(id)+"/cancel", `{}`)
	refused(id, http.StatusConflict, "batch_cancelled")
}

// TestRescheduleTwiceAtOnce: of two changes of different times at once neither is lost.
func TestRescheduleTwiceAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	id := f.scheduled(at)
	done := make(chan *reply, 2)
	moved := at.AddDate(0, 0, 1)
	for _, body := range []string{
		fmt.Sprintf(`{"deliver_at": %q}`, moved.Format(time.RFC3339)),
		`{"send_window": {"from": "00:00", "to": "24:00", "time_zone": "UTC"}}`,
	} {
		go func() { done <- f.reschedule(id, "", body) }()
	}
	for range 2 {
		r := <-done
		require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	}
	v := read[mail.BatchView](f, batchPath(id))
	require.Equal(t, moved, v.DeliverAt)
	require.NotNil(t, v.Window)
}

// checkTimes changes the times of a batch, and the defaults of users.
func (c *contract) checkTimes() {
	c.Helper()
	const js = "application/json"
	moved := batchPath(c.scheduled(time.Now().AddDate(0, 0, 1)))
	c.check("PATCH", moved, js, `{"send_window": {"from": "09:00", "to": "17:00"}, "time_zone": "UTC"}`, 200)
	c.check("PATCH", moved, js, `{"send_window": null, "why": "a test"}`, 200, "Idempotency-Key", "k")
	for _, user := range []string{"ann", "bob"} {
		c.check("PUT", "/v1/users/"+user+"/defaults", js,
			`{"time_zone": "UTC", "send_window": {"from": "00:00", "to": "24:00"}}`, 200)
		c.check("GET", "/v1/users/"+user+"/defaults", "", "", 200)
		c.check("PUT", "/v1/users/"+user+"/defaults", js, `{"send_window": "none"}`, 200)
	}
	c.check("PATCH", moved+"?dry_run=true", js, `{}`, 422)
	c.check("POST", "/v1/batches?dry_run=true", js, inTheMorning(c.TB), 200)
	own := c.check("POST", "/v1/batches", js, inTheMorning(c.TB), 202)
	c.check("GET", own.Header.Get("Location"), "", "", 200)
	c.check("GET", own.Header.Get("Location")+"/logs", "", "", 200)
}
