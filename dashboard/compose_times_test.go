package dashboard

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/service/drafts"
)

// TestComposeTimes: the columns deliver_at and time_zone of a list are times of the recipients, as in a file that the
// API takes. The preview and the question before it is sent tell them, and mistakes name their lines.
func TestComposeTimes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 2).Truncate(time.Minute)
	local := at.Format("2006-01-02T15:04")
	form := maps.Clone(oneMessage)
	form["text"] = []string{"Dear {{first}}"}
	form["to"] = []string{"email,first,deliver_at,time_zone\nann@example.com,Ann,,\n" +
		"bob@example.com,Bob," + local + ",Etc/GMT+5\neve@example.com,Eve," + local + ",Etc/GMT-3\n"}
	first, last := at.Add(-3*time.Hour), at.Add(5*time.Hour)

	form["row"] = []string{"2"}
	a := b.post("/compose/preview", form)
	require.Contains(t, a.text, "sent at "+last.Format("2 Jan 2006, 15:04:05 UTC")+" ("+local+" Etc/GMT&#43;5)")
	form["row"] = []string{"1"}
	require.NotContains(t, b.post("/compose/preview", form).text, "sent at")

	bad := maps.Clone(form)
	bad["to"] = []string{strings.Replace(form.Get("to"), "GMT-3", "Nowhere", 1)}
	bad["row"] = []string{"3"}
	require.Contains(t, b.post("/compose/preview", bad).text, "Line 4: ")
	a = b.post("/compose", sentBy(t, bad, b.get("/compose")))
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "Line 4: ")
	bad["text"] = []string{"Dear {{deliver_at}}"}
	bad["to"] = form["to"]
	require.Contains(t, b.post("/compose", bad).text, "{{deliver_at}} is no placeholder")
	require.Empty(t, f.composed())

	a = b.post("/compose", sentBy(t, form, b.get("/compose")))
	require.Contains(t, a.text, "For 2 of the recipients the list has times.")
	require.Contains(t, a.text, last.Format(`datetime="2006-01-02T15:04:05.000Z"`))
	require.Empty(t, f.composed(), "it asks first")
	form["sure"] = []string{sureField.FindStringSubmatch(a.text)[1]}
	b.post("/compose", sentBy(t, form, a))
	all := f.composed()
	require.Len(t, all, 1)
	require.Zero(t, all[0].DeliverAt, "that of recipients without times")
	require.Len(t, all[0].Own, 2)
	require.WithinDuration(t, last, all[0].Own[0].DeliverAt, 0)
	require.WithinDuration(t, first, all[0].Own[1].DeliverAt, 0)

	form["do"] = []string{"curl"}
	require.Contains(t, b.post("/compose", form).text, "&#34;time_zone&#34;: &#34;Etc/GMT-3&#34;")
	form["do"], form["test"], form["row"] = []string{"test"}, []string{"me@example.com"}, []string{"2"}
	b.post("/compose", sentBy(t, form, b.get("/compose")))
	require.Empty(t, f.composed()[0].Own, "a test message is sent at once")
}

// TestComposeLater: a message for a later time says when before it is sent, and a draft keeps the time.
func TestComposeLater(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	at := time.Now().UTC().AddDate(0, 0, 2).Truncate(time.Minute)
	form := maps.Clone(oneMessage)
	form["deliver_at"], form["time_zone"] = []string{at.Format("2006-01-02T15:04")}, []string{"Etc/GMT+5"}
	at = at.Add(5 * time.Hour)

	require.Contains(t, b.get("/compose").text, `name="time_zone" value="UTC"`)
	require.Contains(t, b.post("/compose/preview", form).text, "sent at "+at.Format("2 Jan 2006, 15:04:05 UTC"))

	bad := maps.Clone(form)
	bad["time_zone"] = []string{"Nowhere"}
	a := b.post("/compose", sentBy(t, bad, b.get("/compose")))
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="time_zone-wrong"`)
	bad["deliver_at"], bad["time_zone"] = []string{"2020-01-01T09:00"}, form["time_zone"]
	require.Contains(t, b.post("/compose", bad).text, `id="deliver_at-wrong"`)
	require.Empty(t, f.composed())

	a = b.post("/compose", sentBy(t, form, b.get("/compose")))
	require.Contains(t, a.text, "Send to 1 recipient?")
	require.Contains(t, a.text, at.Format("15:04"))
	require.Empty(t, f.composed(), "it asks first")
	form["sure"] = []string{sureField.FindStringSubmatch(a.text)[1]}
	b.post("/compose", sentBy(t, form, a))
	all := f.composed()
	require.Len(t, all, 1)
	require.WithinDuration(t, at, all[0].DeliverAt, 0)

	form["do"] = []string{"curl"}
	require.Contains(t, b.post("/compose", form).text, "&#34;deliver_at&#34;: &#34;"+form.Get("deliver_at"))
	form["do"], form["test"] = []string{"test"}, []string{"me@example.com"}
	b.post("/compose", sentBy(t, form, b.get("/compose")))
	require.Zero(t, f.composed()[0].DeliverAt, "a test message is sent at once")

	form["draft"] = []string{drafts.NewID()}
	b.post("/drafts", form)
	kept := b.get("/compose?draft=" + form.Get("draft")).text
	require.Contains(t, kept, `type="datetime-local" value="`+form.Get("deliver_at"))
	require.Contains(t, kept, `name="time_zone" value="Etc/GMT&#43;5"`)
}
