package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// TestChangeTime: the page of a scheduled batch has a form for its time, which says what will happen and what is wrong;
// the list and the audit log show the change.
func TestChangeTime(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	id := f.batchOf("local", map[string]string{"deliver_at": at.Format(time.RFC3339)},
		service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	path := "/batches/" + id.String()
	require.Contains(t, b.get(path).text, path+"/reschedule")
	require.Contains(t, b.get("/batches").text, at.Format("2 Jan, 15:04 UTC"))
	form := b.get(path + "/reschedule")
	require.Contains(t, textOf(form.text), "2 messages are to be sent at "+at.Format("2 Jan 2006, 15:04:05 UTC"))
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

var batchLink = regexp.MustCompile(`href="(/batches/[0-9a-f-]{36})"`)

// TestScheduledBatches: a list has the batches that wait for their time, next first, and says when that is, until they
// are cancelled, which it offers, as their page does.
func TestScheduledBatches(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	send := func(name string, fields map[string]string) string {
		id := f.batchOf("local", fields, service.Recipient{Email: name + "@example.com"})
		return "/batches/" + id.String()
	}
	send("now", nil)
	last := send("last", map[string]string{"deliver_at": at.AddDate(0, 0, 1).Format(time.RFC3339)})
	later := send("later", map[string]string{"deliver_at": at.Format(time.RFC3339)})
	listed := func(want ...string) string {
		t.Helper()
		page := b.get("/batches?state=scheduled")
		var got []string
		for _, m := range batchLink.FindAllStringSubmatch(page.text, -1) {
			got = append(got, m[1])
		}
		require.Equal(t, want, slices.Compact(got), "next first")
		return page.text
	}
	list := listed(later, last)
	require.Contains(t, list, at.Format("2 Jan, 15:04 UTC"))
	require.Contains(t, list, `href="`+later+`/reschedule"`)
	require.Contains(t, list, `href="`+last+`/cancel"`)
	require.NotContains(t, list, "Retry selected", "nothing of them has failed")
	require.Contains(t, b.get("/batches").text, "Retry selected")
	require.Contains(t, b.get(later).text, later+"/cancel")
	done := b.post(later+"/cancel", nil)
	require.Equal(t, later, done.Request.URL.Path)
	require.NotContains(t, b.get(later).text, later+"/reschedule")
	listed(last)
}

// TestDefaultTimes: the settings have a form for the hours and the time zone of batches that name none, which says what
// is wrong.
func TestDefaultTimes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	wrong := b.post("/settings/times", url.Values{
		"send_window/from": {"9"}, "send_window/to": {"17:00"}, "time_zone": {"Mars"},
	})
	require.Equal(t, http.StatusUnprocessableEntity, wrong.StatusCode)
	require.Contains(t, wrong.text, "There is no such time zone")
	require.Contains(t, wrong.text, "from must be a time of day")
	require.Contains(t, wrong.text, `value="Mars"`)
	saved := b.post("/settings/times", url.Values{
		"send_window/from":     {"09:00"},
		"send_window/to":       {"17:00"},
		"send_window/weekdays": {"monday", "friday"},
		"send_window/strict":   {"yes"},
		"time_zone":            {"UTC"},
	})
	require.Equal(t, "/settings/times", saved.Request.URL.Path)
	require.Contains(t, saved.text, `value="friday" checked`)
	id := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"}, service.Recipient{Email: "bob@example.com"})
	require.Contains(t, b.get("/batches/"+id.String()).text, "09:00 to 17:00 on Monday, Friday (UTC), strictly")
	require.Contains(t, b.get("/operations/audit").text, "set the time zone and the hours of a user")
	require.Contains(t, b.post("/settings/times", nil).text, `placeholder="any time; or 09:00"`)
	require.NotContains(t, b.get("/settings/times").text, `value="friday" checked`)
}

// TestPagesOfOwnTimes: the list and the page of a batch say when the first and the last recipient get their mail, and
// the page of a recipient when it leaves. A change of the times is offered only if it affects a recipient.
func TestPagesOfOwnTimes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 3).Truncate(time.Second)
	first, last := at.AddDate(0, 0, -1), at.AddDate(0, 0, 1)
	times := func(at time.Time) intake.Times { return intake.Times{DeliverAt: at.Format(time.RFC3339)} }
	const full = "2 Jan 2006, 15:04:05 UTC"
	id := f.batchOf("local", map[string]string{"deliver_at": at.Format(time.RFC3339)},
		service.Recipient{Email: "ann@example.com"},
		service.Recipient{Email: "bob@example.com", Times: times(first)},
		service.Recipient{Email: "eve@example.com", Times: times(last)})
	require.Contains(t, b.get("/batches").text, first.Format("2 Jan, 15:04 UTC"))
	page := b.get("/batches/" + id.String()).text
	for _, want := range []string{
		"2 of the recipients", first.Format(full), at.Format(full), last.Format(full), "/reschedule",
	} {
		require.Contains(t, page, want)
	}
	require.Contains(t, textOf(b.get("/batches/"+id.String()+"/reschedule").text),
		"All but 2 messages to recipients with times of their own, which stay, are to be sent at "+at.Format(full))
	log := b.get("/logs/" + id.Chunk(1).Log(1).String()).text
	require.Contains(t, log, first.Format(full))
	require.NotContains(t, log, at.Format(full))
	export := b.get("/batches/" + id.String() + "/export.csv").text
	require.Contains(t, export, ","+last.Format(time.RFC3339)+",")

	all := f.batchOf("local", nil, service.Recipient{Email: "bob@example.com", Times: times(first)},
		service.Recipient{Email: "eve@example.com", Times: times(last)})
	require.NotContains(t, b.get("/batches/"+all.String()).text, "/reschedule")
}
