package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/drafts"
)

var draftField = regexp.MustCompile(`id="draft" value="([0-9a-f]{16})"`)

// TestDraft: a form is saved as a draft of its user, listed, opened after the session has ended,
// deleted, and gone when the message was sent.
func TestDraft(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := url.Values{
		"from": {"shop@example.com"}, "subject": {`Offer "1"`}, "text": {"Dear {{name}}"}, "test": {"me@example.com"},
		"to":   {"email,name\r\nann@example.com,Ann"},
		"vars": {`{"month": "May"}`}, "language": {"de"}, "part": {"text"}, "editor": {"one"},
		"draft": {draftField.FindStringSubmatch(b.get("/compose").text)[1]},
	}
	a := b.post("/drafts", form)
	require.Equal(t, "/compose", a.Request.URL.Path)
	require.Contains(t, a.text, "The draft is saved, without files.")

	again := f.byLink(login.LocalUser()) // another session
	list := again.get("/drafts").text
	require.Contains(t, list, "Offer &#34;1&#34;")
	open := again.get("/compose?draft=" + form.Get("draft"))
	for _, want := range []string{
		`value="Offer &#34;1&#34;"`, "Dear {{name}}", "email,name\nann@example.com,Ann", "{&#34;month&#34;: &#34;May&#34;}",
		`value="me@example.com"`, `id="draft_version" value="1"`,
	} {
		require.Contains(t, open.text, want)
	}
	other := f.byLink(models.User{ID: "other", Name: "other"})
	require.Equal(t, http.StatusNotFound, other.get("/compose?draft="+form.Get("draft")).StatusCode)
	require.Contains(t, other.get("/drafts").text, "No drafts")

	sent := sentBy(t, form, open)
	sent.Set("do", "send")
	a = again.post("/compose", sent)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Contains(t, again.get("/drafts").text, "No drafts")
	require.Equal(t, http.StatusNotFound, again.get("/compose?draft="+form.Get("draft")).StatusCode)

	form.Set("draft", drafts.NewID())
	b.post("/drafts", form)
	require.Contains(t, b.post("/drafts/"+form.Get("draft")+"/delete", nil).text, "No drafts")
}

// TestDraftOfScript: a script gets the version of the draft, or what is wrong.
func TestDraftOfScript(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	form := url.Values{"subject": {"1"}, "editor": {"one"}, "draft": {drafts.NewID()}, "draft_version": {"0"}}
	save := func() string {
		a := b.do(http.MethodPost, "/drafts", form, "Accept", "application/json")
		require.Equal(t, "application/json", a.Header.Get("Content-Type"))
		return strings.TrimSpace(a.text)
	}
	require.Equal(t, `{"id":"`+form.Get("draft")+`","version":1}`, save())
	form.Set("editor", "two")
	require.JSONEq(t, `{"code":"draft_changed","problem":"This draft was changed on another page."}`, save())
	form.Set("draft_version", "1")
	require.Equal(t, `{"id":"`+form.Get("draft")+`","version":2}`, save())
	form.Set("to", strings.Repeat("x", drafts.MaxSize))
	require.Contains(t, save(), "draft_too_large")
}
