package dashboard

import (
	"html"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/templates"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
)

// TestComposeColumns: the page shows the columns of a table with its first rows. A column with an unknown heading has
// addresses if its cells are addresses. The mail has the columns that the user chose, also from a draft.
func TestComposeColumns(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := maps.Clone(oneMessage)
	form.Set("subject", "Hi {{Vorname}}")
	form.Set("to", "Vorname;Mailadresse privat;Stadt\nAnn;ann@example.com;Köln\nBob;bob@example.com;Wien\n;;\n")
	part := b.post("/compose/columns", form).text
	for _, want := range []string{
		`aria-label="Use of the column Mailadresse privat"><option value="email" selected>`, "<td>Köln</td>",
		`<option value="Stadt" selected>{{Stadt}}</option>`, "2 recipients.",
	} {
		require.Contains(t, part, want)
	}
	require.NotContains(t, part, "mistakes")

	form["heading"] = []string{"Vorname", "Mailadresse privat", "Stadt"}
	form["column"] = []string{"name", "email", ""}
	form.Set("subject", "Hi {{name}}")
	a := b.post("/compose", sentBy(t, form, b.get("/compose")))
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
	logs, err := f.service.Mail.Logs(t.Context(), service.Caller{User: "local"}, id, mail.LogFilter{}, service.Page{})
	require.NoError(t, err)
	require.Len(t, logs.Logs, 2)
	require.Equal(t, "Bob", logs.Logs[1].Name)

	form.Set("draft", draftField.FindStringSubmatch(b.get("/compose").text)[1])
	form.Set("editor", "one")
	require.Contains(t, b.post("/drafts", form).text, `Use of the column Vorname"><option value="email">Address</option>`+
		`<option value="name" selected>`)
	form.Set("to", "email,first\nann@example.com,Ann\n")
	form.Set("subject", "Hi {{first}}")
	require.Contains(t, b.post("/compose/preview", form).text, "Hi Ann", "the choice was for another table")
}

// TestComposeSkipsMistakes: rows with mistakes are listed with their lines, and are left out if that is chosen, after a
// question. Without that choice nothing is asked and nothing is sent.
func TestComposeSkipsMistakes(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := maps.Clone(oneMessage)
	form.Set("to", "email,first\nann@example.com,Ann\neve@example,Eve\nbob@example.com,Bob,3\n"+
		strings.Repeat("kim@example.com,Kim\n", 11))
	part := html.UnescapeString(b.post("/compose/columns", form).text)
	require.Contains(t, part, "14 recipients, 2 with mistakes.")
	require.Contains(t, part, `Line 3: "eve@example"`)
	require.Contains(t, part, "Line 4: Line 4 of the table has 3 cells")
	require.Contains(t, part, `name="skip" value="yes">Skip rows with mistakes`)

	form = sentBy(t, form, b.get("/compose"))
	a := b.post("/compose", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.NotContains(t, a.text, `id="sure"`, "there is nothing to confirm")

	form.Set("skip", "yes")
	a = b.post("/compose", form)
	require.Contains(t, a.text, "Send to 2 recipients?")
	require.Contains(t, a.text, "2 rows with mistakes are left out.")
	require.Contains(t, a.text, "Line 3: ")
	require.Empty(t, f.composed())
	form.Set("sure", sureField.FindStringSubmatch(a.text)[1])
	a = b.post("/compose", form)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Contains(t, a.text, "2 rows with mistakes")
	require.Len(t, f.composed(), 1)
}

// TestComposeUnsubscribe: with a kind of mail each recipient gets a link to unsubscribe, also if the mail is urgent,
// and the preview has an example. Without one the page says what to do.
func TestComposeUnsubscribe(t *testing.T) {
	t.Parallel()
	cfg := service.Config{UnsubscribeURL: "https://mail.example.com/unsubscribe/"}
	cfg.UrgentUpTo = 10
	f := newRigOf(t, cfg, nil)
	b := f.byLink(login.LocalUser())
	form := maps.Clone(oneMessage)
	form.Set("html", `<a href="{{unsubscribe_url}}">Unsubscribe</a>`)
	preview := b.post("/compose/preview", form).text
	require.Contains(t, preview, templates.NeedsCategory)
	require.NotContains(t, preview, "has no value")
	a := b.post("/compose", form)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, templates.NeedsCategory)

	form.Set("category", "newsletter")
	preview = b.post("/compose/preview", form).text
	require.Contains(t, preview, `/unsubscribe/example">Unsubscribe`)
	require.NotContains(t, preview, templates.NeedsCategory)
	form.Set("tags", "spring, shop")
	form.Set("track_opens", "yes")
	form.Set("lane", "bulk")
	for _, lane := range []string{"bulk", ""} {
		form.Set("lane", lane)
		a = b.post("/compose", sentBy(t, form, b.get("/compose")))
		require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	}
	list := f.composed()
	require.Len(t, list, 2)
	require.ElementsMatch(t, []models.Lane{models.Bulk, models.Urgent}, []models.Lane{list[0].Lane, list[1].Lane})
	for i := range list {
		require.Equal(t, "newsletter", list[i].Category)
		require.Equal(t, []string{"spring", "shop"}, list[i].Content.Tags)
		require.True(t, list[i].Content.TrackOpens)
		require.False(t, list[i].Content.TrackClicks)
		require.NotNil(t, list[i].Unsubscribe)
	}
}

// TestComposeTimeZone: the zone is the user's default, else the browser's, and the page says when the mail goes out.
func TestComposeTimeZone(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/compose").text, "data-browser-zone")
	berlin := intake.Times{TimeZone: "Europe/Berlin"}
	_, err := f.service.People.SetDefaults(t.Context(), service.Caller{User: "local"}, "local", berlin, "")
	require.NoError(t, err)
	page := b.get("/compose").text
	require.NotContains(t, page, "data-browser-zone")
	require.Contains(t, page, `value="Europe/Berlin"`)
	require.Contains(t, b.post("/compose", url.Values{
		"deliver_at": {"2031-11-29T09:00"}, "time_zone": {"America/New_York"}, "do": {"curl"},
	}).text, "Goes out on Saturday, 29 November 2031, 09:00 in New York.")
}
