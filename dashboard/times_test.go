package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service"
)

// TestChangeTime: the page of a scheduled batch has a form for its time, which says what will happen and what is wrong;
// the list and the audit log show the change.
func TestChangeTime(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	id := f.batchOf("local", map[string]string{"deliver_at": at.Format(time.RFC3339)},
		service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	path := "/batches/" + id.String()
	require.Contains(t, b.get(path).text, path+"/reschedule")
	require.Contains(t, b.get("/batches").text, at.Format("2 Jan, 15:04 UTC"))
	form := b.get(path + "/reschedule")
	require.Contains(t, form.text, "2 messages are to be sent at "+at.Format("2 Jan 2006, 15:04:05 UTC"))
	require.Contains(t, form.text, at.Format(`value="2006-01-02T15:04:05"`))

	once := onceField.FindStringSubmatch(form.text)[1]
	wrong := b.post(path+"/reschedule", url.Values{
		"once":       {once},
		"deliver_at": {"2026-01-01T09:00"},
		"time_zone":  {"Mars"},
	})
	require.Equal(t, http.StatusUnprocessableEntity, wrong.StatusCode)
	require.Contains(t, wrong.text, "There is no such time zone")
	require.Contains(t, wrong.text, `value="Mars"`)

	later := at.AddDate(0, 0, 1)
	typed := url.Values{
		"once":       {once},
		"deliver_at": {later.Format("2006-01-02T15:04")},
		"time_zone":  {"UTC"},
		"why":        {"the shop is closed"},
	}
	for range 2 { // a second press changes nothing
		done := b.post(path+"/reschedule", typed)
		require.Equal(t, path, done.Request.URL.Path)
		require.Contains(t, done.text, "The time is changed.")
		require.Contains(t, done.text, later.Truncate(time.Minute).Format("2 Jan 2006, 15:04:05 UTC"))
	}
	require.Contains(t, b.get("/batches").text, later.Format("2 Jan, 15:04 UTC"))
	require.Contains(t, b.post(path+"/reschedule", url.Values{
		"deliver_at": typed["deliver_at"],
		"time_zone":  typed["time_zone"],
	}).text, "Nothing changed.")
	require.Contains(t, b.get("/operations/audit").text, "changed the times of a batch")

	now := b.post(path+"/reschedule", url.Values{"now": {"yes"}})
	require.NotContains(t, now.text, path+"/reschedule", "it has begun")
	typed.Del("once")
	refused := b.post(path+"/reschedule", typed)
	require.Equal(t, http.StatusConflict, refused.StatusCode)
	require.Equal(t, http.StatusNotFound, b.get("/batches/x/reschedule").StatusCode)
}

// TestDefaultTimes: the settings have a form for the hours and the time zone of batches that name none, which says what
// is wrong.
func TestDefaultTimes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	wrong := b.post("/settings/times", url.Values{"from": {"9"}, "until": {"17:00"}, "time_zone": {"Mars"}})
	require.Equal(t, http.StatusUnprocessableEntity, wrong.StatusCode)
	require.Contains(t, wrong.text, "There is no such time zone")
	require.Contains(t, wrong.text, "from must be a time of day")
	require.Contains(t, wrong.text, `value="Mars"`)
	saved := b.post("/settings/times", url.Values{
		"from":      {"09:00"},
		"until":     {"17:00"},
		"weekdays":  {"Monday friday"},
		"time_zone": {"UTC"},
		"strict":    {"yes"},
	})
	require.Equal(t, "/settings", saved.Request.URL.Path)
	require.Contains(t, saved.text, `value="monday, friday"`)
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	require.Contains(t, b.get("/batches/"+id.String()).text, "09:00 to 17:00 on Monday, Friday (UTC), strictly")
	require.Contains(t, b.get("/operations/audit").text, "set the time zone and the hours of a user")
	require.Contains(t, b.post("/settings/times", nil).text, `placeholder="any time; or 09:00"`)
	require.NotContains(t, b.get("/settings").text, "monday, friday")
}
