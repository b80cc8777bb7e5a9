package dashboard

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"html"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// formFile is a file of a multipart form.
type formFile struct{ field, name, kind, data string }

// submit posts the form of Compose with files.
func (b *browser) submit(path string, fields map[string]string, files ...formFile) answer {
	b.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for name, value := range fields {
		require.NoError(b, form.WriteField(name, value))
	}
	for _, f := range files {
		head := textproto.MIMEHeader{"Content-Type": {f.kind}}
		head.Set("Content-Disposition", multipart.FileContentDisposition(f.field, f.name))
		w, err := form.CreatePart(head)
		require.NoError(b, err)
		_, err = io.WriteString(w, f.data)
		require.NoError(b, err)
	}
	require.NoError(b, form.Close())
	return b.send(http.MethodPost, path, &body, "Content-Type", form.FormDataContentType())
}

// TestComposeCopies: Compose sends one message to all in to, cc and bcc, keeps them in a draft, leaves them out of a
// test message, and says what is wrong where it was entered. The batch and its export have their roles.
func TestComposeCopies(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	form := url.Values{
		"from": {"shop@example.com"}, "subject": {"s"}, "text": {"t"}, "to": {"ann@example.com, sam@example.com"}, "together": {"yes"},
		"cc": {`"Lee, Bob" <bob@example.com>; eve@example.com`}, "bcc": {"archive@example.com"}, "do": {"send"},
		"draft": {draftField.FindStringSubmatch(b.get("/compose").text)[1]}, "editor": {"one"},
	}
	a := b.post("/drafts", form)
	require.Contains(t, a.text, `value="&#34;Lee, Bob&#34; &lt;bob@example.com&gt;; eve@example.com"`)
	require.Contains(t, a.text, `<details class="data" open>`)
	require.Contains(t, a.text, `name="together" value="yes" checked>`)
	sent := sentBy(t, form, a)
	sent.Set("do", "curl")
	require.Contains(t, html.UnescapeString(b.post("/compose", sent).text), `"bcc": [
    "archive@example.com"
  ]`)
	sent.Set("do", "test")
	sent.Set("test", "me@example.com")
	require.Contains(t, b.post("/compose", sent).text, "A test message to me@example.com was accepted.")
	sent.Set("do", "send")
	sent.Set("bcc", "no-address")
	a = b.post("/compose", sent)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="bcc-wrong"`)
	sent.Set("bcc", "archive@example.com")
	a = b.post("/compose", sent)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Contains(t, a.text, "2 in to, 2 in cc, 1 in bcc, together in one message")
	rows, err := csv.NewReader(strings.NewReader(b.get(a.Request.URL.Path + "/export.csv").text)).ReadAll()
	require.NoError(t, err)
	var roles []string
	for _, row := range rows {
		roles = append(roles, row[1]+" "+row[2])
	}
	require.Equal(t, []string{
		"email role", "ann@example.com to", "sam@example.com to", "bob@example.com cc", "eve@example.com cc",
		"archive@example.com bcc",
	}, roles)
}

// TestComposeFiles: attachments are sent, an image that the HTML refers to is inline, and the
// recipients come from a file.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	fields := map[string]string{
		"from": "shop@example.com", "subject": "Hi {{first}}", "html": `<img src="cid:logo.png">`, "do": "send",
		"vars": `{"first": "you", "unused": "1"}`,
	}
	files := []formFile{
		{"file", "people.csv", "text/csv", "Email Address;first\r\nann@example.com;Ann\r\nbob@example.com;\r\n"},
		{"attachments", "Größe.pdf", "application/pdf", strings.Repeat("p", models.PieceSize+1)},
		{"attachments", "logo.png", "image/png", "png"},
		{"attachments", "", "application/octet-stream", ""}, // nothing was chosen
	}
	a := b.submit("/compose", fields, files...)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
	v, err := f.service.Mail.Batch(t.Context(), service.Caller{User: "local"}, id)
	require.NoError(t, err)
	require.Equal(t, 2, v.Recipients)
	require.Len(t, v.Attached, 2)
	require.Equal(t, "Größe.pdf", v.Attached[0].Filename)
	require.Empty(t, v.Attached[0].ContentID)
	require.EqualValues(t, models.PieceSize+1, v.Attached[0].Size)
	require.Equal(t, "logo.png", v.Attached[1].ContentID)
	require.Equal(t, "png", b.get("/batches/"+id+"/attachments/1").text)
	for i, want := range []string{"Hi Ann", "Hi you"} {
		m, err := f.service.Mail.Mail(t.Context(), service.Caller{User: "local"}, v.ID.Log(i+1).String())
		require.NoError(t, err)
		require.Equal(t, want, m.Subject)
	}
}

// TestComposeAsksAboutFiles: the question before many recipients is about these attachments, and
// others are asked about again.
func TestComposeAsksAboutFiles(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	fields := map[string]string{
		"from": "shop@example.com", "subject": "s", "text": "t", "do": "send",
		"to": "a0@example.com",
	}
	for i := range 10 {
		fields["to"] += fmt.Sprintf("\na%d@example.com", i+1)
	}
	file := formFile{"attachments", "a.pdf", "application/pdf", "one"}
	ask := b.submit("/compose", fields, file)
	require.Contains(t, ask.text, "Send to 11 recipients?")
	require.Contains(t, ask.text, "Choose the attachments again: a.pdf.")
	fields["sure"] = regexp.MustCompile(`name="sure" value="([^"]+)"`).FindStringSubmatch(ask.text)[1]
	other := file
	other.data = "two"
	require.Contains(t, b.submit("/compose", fields, other).text, "Send to 11 recipients?")
	require.Contains(t, b.submit("/compose", fields).text, "Send to 11 recipients?", "without the file")
	require.Empty(t, f.composed())
	a := b.submit("/compose", fields, file)
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	require.Len(t, f.composed(), 1)
}

// TestComposeWrongFiles: mistakes in attachments stand beside their field, and a form that is too
// large is refused.
func TestComposeWrongFiles(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	fields := map[string]string{
		"from": "shop@example.com", "subject": "s", "text": "t", "to": "a@example.com", "do": "send",
	}
	a := b.submit("/compose", fields, formFile{"attachments", "empty.pdf", "application/pdf", ""})
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, `id="attachments-wrong"`)
	large := strings.Repeat("x", 13_000_000)
	a = b.submit("/compose", fields, formFile{"attachments", "a", "text/plain", large},
		formFile{"attachments", "b", "text/plain", large})
	require.Equal(t, http.StatusRequestEntityTooLarge, a.StatusCode)
	require.Contains(t, a.text, "at most 25000000 bytes")
	fields["text"] = strings.Repeat("x", web.MaxContent)
	a = b.submit("/compose", fields)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.StatusCode)
	require.Contains(t, a.text, "limited to 16 MiB")
}

// TestComposeTemplate: a message is made from a template in a language, with values of every
// recipient; the preview shows it.
func TestComposeTemplate(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	require.NotContains(t, b.get("/compose").text, `id="template"`)
	src := client.TemplateSource{
		TemplateContent: client.TemplateContent{
			Subject: "Hi {{name}}",
			HTML:    `{% for i in items %}<p>{{i}} {{month}}</p>{% endfor %}<img src="cid:logo.png">`,
		},
		Sender:    "Shop <shop@example.com>",
		Languages: map[string]client.TemplateContent{"de": {Subject: "Hallo {{name}}"}},
	}
	_, err := f.service.Templates.Create(t.Context(), "local", &client.NewTemplate{
		Name: "news", NewTemplateVersion: client.NewTemplateVersion{TemplateSource: src, Publish: true},
	})
	require.NoError(t, err)
	fields := map[string]string{
		"template": "news", "language": "de-AT", "vars": `{"items": ["a", "b"], "month": "May"}`, "do": "send",
		"subject": "what was written here before", "to": "email,name,month\nann@example.com,Ann,June\nbob@example.com,Bob,",
	}
	require.Contains(t, b.get("/compose").text, `<option value="news">Template news</option>`)
	a := b.submit("/compose/preview", fields)
	for _, want := range []string{"Subject: Hallo Ann", "<p>a June</p><p>b June</p>", "1 of 2", "From: Shop"} {
		require.Contains(t, a.text, want)
	}
	a = b.submit("/compose", fields, formFile{"attachments", "logo.png", "image/png", "png"})
	require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
	id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
	v, err := f.service.Mail.Batch(t.Context(), service.Caller{User: "local"}, id)
	require.NoError(t, err)
	require.Equal(t, models.TemplateUse{Name: "news", Version: 1, Language: "de"}, *v.Template)
	require.Equal(t, "logo.png", v.Attached[0].ContentID)
	m, err := f.service.Mail.Mail(t.Context(), service.Caller{User: "local"}, v.ID.Log(2).String())
	require.NoError(t, err)
	require.Equal(t, "Hallo Bob", m.Subject)
	require.Contains(t, m.HTML, "<p>a May</p><p>b May</p>")

	fields["do"] = "curl"
	require.Contains(t, b.submit("/compose", fields).text, "&#34;template&#34;: &#34;news&#34;")
	fields["do"], fields["template"], fields["subject"], fields["text"] = "send", "", "s", "t"
	a = b.submit("/compose", fields)
	require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
	require.Contains(t, a.text, "Lists and objects need a template.")
	fields["vars"] = "nonsense"
	require.Contains(t, b.submit("/compose", fields).text, `id="vars-wrong"`)
}

// TestCostBeforeSending: the question before many recipients says what they cost, if there are
// prices.
func TestCostBeforeSending(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"from": "shop@example.com", "subject": "s", "text": "t", "do": "send", "to": ""}
	for i := range 2000 {
		fields["to"] += fmt.Sprintf("a%d@example.com\n", i)
	}
	b := newRig(t, nil).byLink(login.LocalUser())
	require.NotContains(t, b.submit("/compose", fields).text, "prices")
	cfg := service.Config{Currency: "EUR", Prices: map[string]float64{"sg": 0.5, "mg": 2}}
	b = newRigOf(t, cfg, nil).byLink(login.LocalUser())
	require.Contains(t, b.submit("/compose", fields).text,
		"At the configured prices it costs EUR\u00a01.00 to EUR\u00a04.00, depending on the providers; "+
			"as it would be sent now: mg EUR\u00a02.00, sg EUR\u00a00.50.")
}

// TestConfirmedFile: a file of recipients is asked about once. The form that confirms it has the recipients as text
// with the line ends of browsers, and what the columns are.
func TestConfirmedFile(t *testing.T) {
	t.Parallel()
	b := newRig(t, nil).byLink(login.LocalUser())
	var rows strings.Builder
	for i := range 20 {
		fmt.Fprintf(&rows, "r%d@example.com,%d\n", i, i)
	}
	list := "email,first\n" + rows.String()
	fields := map[string]string{
		"from": "shop@example.com", "subject": "Hi {{first}}", "text": "a\r\nb", "do": "send", "skip": "",
		"once": onceField.FindStringSubmatch(b.get("/compose").text)[1],
	}
	ask := b.submit("/compose", fields, formFile{"file", "list.csv", "text/csv", list})
	require.Contains(t, ask.text, "Send to 20 recipients?")
	form := url.Values{
		"to":      {strings.ReplaceAll(list, "\n", "\r\n")},
		"heading": {"email", "first"},
		"column":  {"email", "first"},
		"sure":    {sureField.FindStringSubmatch(ask.text)[1]},
		"part":    {"text"},
		"row":     {"7"},
	}
	for name, text := range fields {
		form.Set(name, text)
	}
	changed := maps.Clone(form)
	changed.Set("subject", "Hello {{first}}")
	require.Contains(t, b.post("/compose", changed).text, "Send to 20 recipients?", "it was not asked about")
	sent := b.post("/compose", form)
	require.True(t, strings.HasPrefix(sent.Request.URL.Path, "/batches/"), "it was asked about")
}
