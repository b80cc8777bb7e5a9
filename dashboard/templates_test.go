package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/templates"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// TestTemplatePages writes a template, previews it, publishes and compares versions, sends a
// test, and archives it.
func TestTemplatePages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.Contains(t, b.get("/templates").text, "You have no templates yet.")
	a := b.get("/templates?new=welcome")
	require.Equal(t, "/templates/welcome", a.Request.URL.Path)
	require.Contains(t, a.text, "A new template")

	form := url.Values{
		"subject": {"Hi {{name}}"}, "html": {"<p>{% if vip %}{{ city }}{% endif %}</p>"}, "text": {"one\ntwo"},
		"sender": {
			"shop@example.com",
		}, "defaults": {`{"city": "B & B"}`},
		"languages/de/subject": {"Hallo {{name}}"}, "languages/de/html": {""}, "languages/de/text": {""},
		"to": {"me@example.com"}, "vars": {`{"name": "Ann", "vip": true}`}, "language": {"de-AT"}, "do": {"save"},
	}
	a = b.post("/templates/welcome/preview", form)
	require.Contains(t, a.text, "Subject: Hallo Ann")
	require.Contains(t, a.text, "<p>B &amp; B</p>")
	require.True(t, strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox;"))
	require.Contains(t, b.get("/templates").text, "You have no templates yet.", "a preview stores nothing")

	a = b.post("/templates/welcome", form)
	require.Contains(t, a.text, "Saved as a draft.")
	form.Set("text", "one\n<three>")
	form.Set("publish", "yes")
	a = b.post("/templates/welcome", form)
	require.Contains(t, a.text, "version 2 is used by batches")
	a = b.get("/templates/welcome?version=2&against=1")
	require.Contains(t, a.text, "<del>- two</del>")
	require.Contains(t, a.text, "<ins>+ &lt;three&gt;</ins>")
	a = b.post("/templates/welcome/publish", url.Values{"version": {"1"}})
	require.Contains(t, a.text, "version 1 is used by batches")

	require.Contains(t, a.text, "No batch was made from it yet.")

	form.Del("publish")
	form.Set("do", "test")
	a = b.post("/templates/welcome", form)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Contains(t, a.text, "welcome@2</a> (de)", "the test is what the form says")
	id, err := models.ParseID(strings.TrimPrefix(a.Request.URL.Path, "/batches/"))
	require.NoError(t, err)
	require.Contains(t, b.get("/templates/welcome").text, `Used by 1 batch, last by <a href="/batches/`+id.String()+`">`)
	for range 100 {
		f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	}
	require.Contains(t, b.get("/templates/welcome").text, "None of your newest 100 batches was made from it.")
	logs, err := f.service.Mail.Logs(
		t.Context(),
		service.Caller{User: "local"},
		id.String(),
		mail.LogFilter{},
		service.Page{},
	)
	require.NoError(t, err)
	require.Len(t, logs.Logs, 1)
	require.Equal(t, "me@example.com", logs.Logs[0].Email)

	for field, c := range map[string][2]string{
		"html":     {"a\n{% if %}", "Line 2: {% if %} has no condition."},
		"defaults": {"x", "defaults must be an object."},
		"vars":     {"[", "vars must be an object."},
	} {
		old := form.Get(field)
		form.Set(field, c[0])
		a = b.post("/templates/welcome", form)
		require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
		require.Contains(t, a.text, c[1])
		require.Contains(t, a.text, `id="`+field+`-wrong"`)
		require.Contains(t, b.post("/templates/welcome/preview", form).text, c[1])
		form.Set(field, old)
	}
	form.Set("html", "<style>p{color:red}</style><p>{{ name | raw }}")
	require.NotContains(t, b.post("/templates/welcome/preview", form).text, "<p>Ann")
	form.Set("allow_raw", "yes")
	require.Contains(t, b.post("/templates/welcome/preview", form).text, "<style>p{color:red}</style><p>Ann")
	form.Set("do", "save")
	a = b.post("/templates/welcome", form)
	require.Regexp(t, `name="allow_raw" value="yes" checked`, a.text)
	a = b.get("/templates/welcome?version=3&against=2")
	require.Contains(t, a.text, "<ins>+ allow_raw:</ins>")
	form.Set("html", "<p {{ name }")
	require.Contains(t, b.post("/templates/welcome", form).text, "Line 1")
	a = b.post("/templates/welcome/archive", nil)
	require.Contains(t, a.text, "Archived: batches cannot use it")
	require.Regexp(t, `(?s)welcome</a></th><td>archived</td>`, b.get("/templates").text)
}

// TestTemplateHints: only mistakes are errors of a preview. A variable without a sample value is a hint and has a
// field, and the link to unsubscribe has an example if the template has a category.
func TestTemplateHints(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	form := url.Values{
		"subject": {"Hi {{first}}"}, "text": {"t"}, "to": {"ann@example.com"}, "category": {"newsletter"},
		"html": {`<a href="{{unsubscribe_url}}">Unsubscribe</a> {{city}}`}, "publish": {"yes"},
	}
	preview := b.post("/templates/news/preview", form).text
	require.Contains(t, preview, "<summary>2 hints</summary>")
	require.Contains(t, preview, "No sample value for first. Recipients need one.")
	require.NotContains(t, preview, `class="w"`)
	require.NotContains(t, preview, "leads nowhere")
	require.NotContains(t, preview, "The one who sets the variable")
	page := b.post("/templates/news", form).text
	for _, name := range []string{"name", "first", "city"} {
		require.Contains(t, page, `id="value-`+name+`"`)
	}
	require.NotContains(t, page, `id="value-unsubscribe_url"`)
	require.Regexp(t, `id="value-first" name="value" value="Ann"`, page, "it begins with an example")
	require.Regexp(t, `id="value-city" name="value" value="Vienna"`, page)
	form["variable"], form["value"] = []string{"first", "city"}, []string{"", "Bern"}
	page = b.post("/templates/news/values", form).text
	require.Regexp(t, `id="value-first" name="value" value=""`, page, "what was emptied stays empty")
	require.Regexp(t, `id="value-city" name="value" value="Bern"`, page)
	empty := b.post("/templates/new/preview", url.Values{"to": {"ann@example.com"}}).text
	require.Contains(t, empty, "Write a subject and a body.")
	require.NotContains(t, empty, `class="w"`, "a new template begins without mistakes")
	form["variable"], form["value"] = []string{"first", "city"}, []string{"Ann", "Vienna"}
	preview = b.post("/templates/news/preview", form).text
	require.Contains(t, preview, "Subject: Hi Ann")
	require.NotContains(t, preview, "hint")
	require.Contains(t, b.post("/templates/news/values", form).text, `value="Vienna"`)
	form.Set("category", "")
	require.Contains(t, b.post("/templates/news/preview", form).text, templates.NeedsCategory)
}
