package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// attachedBatch stores a batch with an attachment and an inline one.
func (f *rig) attachedBatch(data string, to ...string) models.ID {
	f.Helper()
	who := service.Caller{User: "local"}
	in := f.service.NewIntake(f.Context(), who)
	defer in.Close()
	in.Batch = intake.Batch{From: "shop@example.com", Subject: "Your invoice", HTML: `<img src="cid:logo@x">`}
	for i, a := range []*intake.Attachment{
		{Filename: `<Größe> "quoted".html`, Type: "text/html"},
		{Filename: "logo.png", Type: "image/png", ContentID: "logo@x"},
	} {
		a.File = in.NewFile()
		_, err := a.File.Write([]byte(data[i:]))
		require.NoError(f, err)
		in.Attach("/attachments", a)
	}
	for _, email := range to {
		require.NoError(f, in.Read(intake.Of(service.Recipient{Email: email})))
	}
	accepted, _, err := f.service.Accept(f.Context(), who, in, service.Repeat{})
	require.NoError(f, err)
	return accepted.ID
}

// TestAttachmentsOnPages: the pages of a batch and of a log list the attachments. A file is saved, and neither shown
// nor run. A stranger does not get it, and it is gone with the content.
func TestAttachmentsOnPages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	data := strings.Repeat("<script>alert(1)</script>", 20_000)
	many, one := f.attachedBatch(data, "ann@example.com", "bob@example.com"), f.attachedBatch(data, "ann@example.com")
	for path, id := range map[string]models.ID{
		"/batches/" + many.String():     many,
		"/logs/" + many.Log(2).String(): many,
		"/batches/" + one.String():      one,
	} {
		page := b.get(path).text
		for _, want := range []string{
			`href="/batches/` + id.String() + `/attachments/0" download>&lt;Größe&gt; &#34;quoted&#34;.html</a>`,
			"text/html, 500\u202f000 bytes",
			`href="/batches/` + id.String() + `/attachments/1" download>logo.png</a>`, "cid:logo@x",
		} {
			require.Contains(t, page, want, path)
		}
		require.Equal(t, 1, strings.Count(page, "/attachments/0"), "%s lists them once", path)
	}

	path := "/batches/" + many.String() + "/attachments/"
	a := b.get(path + "0")
	require.Equal(t, data, a.text)
	require.Equal(t, "application/octet-stream", a.Header.Get("Content-Type"))
	require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
	require.Equal(t, "sandbox; default-src 'none'; frame-ancestors 'none'", a.Header.Get("Content-Security-Policy"))
	require.Equal(
		t,
		"attachment; filename*=utf-8''%3CGr%C3%B6%C3%9Fe%3E%20%22quoted%22.html",
		a.Header.Get("Content-Disposition"),
	)
	require.Equal(t, data[1:], b.get(path+"1").text)
	for _, number := range []string{"2", "-1", "x", "99999999999999999999"} {
		require.Equal(t, http.StatusNotFound, b.get(path+number).StatusCode, number)
	}
	require.Equal(t, "/login", f.browser().get(path+"0").Request.URL.Path)
	require.NoError(t, f.store.Redact(t.Context(), many))
	require.Equal(t, http.StatusNotFound, b.get(path+"0").StatusCode)
	require.NotContains(t, b.get("/batches/"+many.String()).text, "/attachments/")
}
