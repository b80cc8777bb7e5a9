package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/people"
)

// setDefaults sets the defaults of a user.
func (f *fixture) setDefaults(user, body string, header ...string) *reply {
	f.Helper()
	return f.do(http.MethodPut, "/v1/users/"+user+"/defaults", "application/json", strings.NewReader(body), header...)
}

// TestDefaults: a batch that names no window has that of its user, stored with it; one that names a window, or "none",
// does not. A time without an offset is one of the time zone of the user.
func TestDefaults(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	accept := func(fields string) mail.BatchView {
		t.Helper()
		_, b, _ := f.accepted(f.post(batchOf(f, fields)))
		return read[mail.BatchView](f, batchPath(b.ID))
	}
	require.Equal(t, people.Defaults{User: f.user}, read[people.Defaults](f, "/v1/users/ann/defaults"))
	r := f.setDefaults("ann",
		`{"time_zone": "Europe/Vienna", "send_window": {"from": "09:00", "to": "17:00"}, "why": "office"}`)
	require.Equal(t, http.StatusOK, r.Status, string(r.Body))
	var set people.Defaults
	require.NoError(t, json.Unmarshal(r.Body, &set))
	require.Equal(t, "09:00 to 17:00 (Europe/Vienna)", set.Window.String())
	require.Equal(t, set, read[people.Defaults](f, "/v1/users/"+f.user+"/defaults"))
	require.Equal(t, []string{"user.defaults office"}, f.commands())

	before := accept(`{}`)
	require.Equal(t, set.Window, before.Window)
	require.Nil(t, accept(`{"send_window": "none"}`).Window)
	own := accept(`{"send_window": {"from": "08:00", "to": "09:00", "time_zone": "UTC"}}`)
	require.Equal(t, "08:00 to 09:00 (UTC)", own.Window.String())
	day := time.Now().In(vienna(t)).AddDate(0, 0, 2)
	at := accept(`{"deliver_at": "` + day.Format("2006-01-02") + `T12:00"}`)
	noon := time.Date(day.Year(), day.Month(), day.Day(), 12, 0, 0, 0, vienna(t))
	require.True(t, noon.Equal(at.DeliverAt), at.DeliverAt)
	r = f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded",
		strings.NewReader("from=a@one.example&subject=s&text=t&to=x@two.example&send_window=none"))
	require.Equal(t, http.StatusAccepted, r.Status, string(r.Body))
	log := f.changed(record("new", "m", "s", "x@two.example"))[0].Log
	require.Equal(t, set.Window, read[mail.BatchView](f, batchPath(log.Batch())).Window)

	other := *f
	other.secret = f.foreign
	require.Equal(t, http.StatusForbidden, other.setDefaults("ann", `{}`).Status)
	require.Equal(t, http.StatusForbidden, other.get("/v1/users/ann/defaults").Status)
	for body, at := range map[string]string{
		`{"time_zone": "Mars"}`:                             "/time_zone",
		`{"send_window": {"from": "09:00", "to": "17:00"}}`: "/send_window/time_zone",
		`{"send_window": 5}`:                                "/send_window",
		`{"deliver_at": "2099-01-01T00:00:00Z"}`:            "/deliver_at",
	} {
		r := f.setDefaults("ann", body)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, body)
		require.Equal(t, at, r.problem(t).Errors[0].Pointer, body)
	}

	g := f.operator()
	require.Equal(t, http.StatusOK, g.setDefaults("bob", `{"time_zone": "UTC"}`).Status)
	require.Equal(t, "UTC", read[audit.Page](g, "/v1/audit").Commands[0].Defaults.Zone)
	for range 2 { // a repeat changes nothing
		require.Equal(t, http.StatusOK, f.setDefaults("ann", `{"send_window": null}`).Status)
	}
	require.Len(t, f.commands(), 3)
	require.Nil(t, accept(`{}`).Window)
	require.Equal(t, before.Window, read[mail.BatchView](f, batchPath(before.ID)).Window,
		"an accepted batch keeps its window")
}
