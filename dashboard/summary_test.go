package dashboard

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
)

// TestComposeCheck: Check says what happens if the message is sent now, also of one recipient, and sends nothing. The
// message is sent by the button below that.
func TestComposeCheck(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := sentBy(t, oneMessage, b.get("/compose"))
	form.Set("do", "check")
	form.Set("tags", "spring, shop")
	form.Set("track_opens", "yes")
	for range 2 {
		a := b.post("/compose", form)
		require.Contains(t, textOf(a.text), "Send to 1 recipient? From shop@example.com Subject s Recipients 1 Leaves now "+
			"Lane urgent: sent ahead of bulk mail; chosen by the number of recipients "+
			"Category none, so there is no link to unsubscribe Tags spring, shop Tracking opens "+
			"If you send it now 1 message is sent now: ")
		form.Set("sure", sureField.FindStringSubmatch(a.text)[1])
	}
	require.Empty(t, f.composed(), "Check sent it")
	form.Set("do", "send")
	a := b.post("/compose", form)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Len(t, f.composed(), 1)
}

// TestComposeSummary: the card beside the form says what was entered so far, also if it is not complete.
func TestComposeSummary(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	require.Contains(t, textOf(b.get("/compose").text), "From no sender yet Subject none yet Recipients 0 Leaves now "+
		"Lane chosen by the number of recipients")
	at := time.Now().UTC().AddDate(0, 0, 2).Truncate(time.Minute)
	form := maps.Clone(oneMessage)
	form.Set("to", "ann@example.com\nbob@example\neve@example.com\n")
	form.Set("deliver_at", at.Format("2006-01-02T15:04"))
	form.Set("time_zone", "Etc/GMT+5")
	form.Set("category", "newsletter")
	form.Set("text", "{{unsubscribe_url}}")
	form.Set("lane", "bulk")
	form.Set("track_opens", "yes")
	form.Set("track_clicks", "yes")
	text := textOf(b.post("/compose/summary", form).text)
	require.Contains(t, text, "Recipients 3, 1 with mistakes Leaves "+
		at.Format("Monday, 2 January 2006, 15:04")+" in GMT+5 ( "+at.Add(5*time.Hour).Format("2 Jan 2006, 15:04:05 UTC")+
		" ) Lane bulk: sent after urgent mail Category newsletter, with a link to unsubscribe Tags none "+
		"Tracking opens and clicks")

	form.Set("skip", "yes")
	form.Set("time_zone", "Nowhere")
	text = textOf(b.post("/compose/summary", form).text)
	require.Contains(t, text, "Recipients 2, and 1 row is skipped Leaves ")
	require.Contains(t, text, "There is no such time zone.")
}
