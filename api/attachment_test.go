package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// newAttachmentFixture returns a fixture whose providers carry attachments, sg up to 10,000 bytes.
func newAttachmentFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.carryAttachments()
	return f
}

// carryAttachments restarts the API with these providers.
func (f *fixture) carryAttachments() {
	f.deps.Providers[0].Carries = models.Capabilities{
		Attachments: true,
		Inline:      true,
		InlineNames: true,
		Size:        10_000,
		Base64:      true,
	}
	f.deps.Providers[1].Carries = models.Capabilities{Attachments: true, Inline: true}
	f.serve(Config{})
}

// randomBytes returns n bytes that are the same every time.
func randomBytes(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(data)
	return data
}

// attachmentOf returns an attachment in JSON.
func attachmentOf(name, kind, contentID string, data []byte) string {
	raw, _ := json.Marshal(map[string]string{"filename": name, "content_type": kind, "content_id": contentID,
		"content": base64.StdEncoding.EncodeToString(data)})
	return string(raw)
}

// requireStored checks that an attachment is described and stored.
func (f *fixture) requireStored(b models.Batch, n int, want models.Attachment, data []byte) {
	f.Helper()
	sum := sha256.Sum256(data)
	want.Size, want.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
	require.Equal(f, want, b.Content.Attachments[n])
	got, err := io.ReadAll(models.OpenAttachment(f.Context(), f.store, b.ID, &want))
	require.NoError(f, err)
	require.True(f, bytes.Equal(data, got))
}

// TestInvitation: the content type of an invitation to accept has its method, however it is written (RFC 6047, 2.4).
func TestInvitation(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	for _, kind := range []string{
		"text/calendar; method=REQUEST", "text/calendar;method=REQUEST", `Text/Calendar; METHOD="request"`,
		"text/calendar; charset=UTF-8; method=REQUEST",
	} {
		file := attachmentOf("invite.ics", kind, "", []byte("BEGIN:VCALENDAR"))
		_, b, _ := f.accepted(f.post(batchOf(t, `{"attachments": [`+file+`]}`)))
		require.Equal(t, "text/calendar; method=REQUEST", b.Content.Attachments[0].Type, kind)
	}
}

// TestOddAttachments: attachments get names, types and content IDs that every provider takes. The HTML refers to the
// new IDs, be it that of the request or that of a template.
func TestOddAttachments(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	long := strings.Repeat("x", 300)
	files := `"attachments": [{"content": "eA==", "content_type": "application/PDF; name=x"},
		{"content": "eA==", "filename": "a/b\\c;d.txt", "content_type": "text/plain; charset=utf-8"},
		{"content": "eA==", "filename": "..", "content_type": "text"},
		{"content": "eA==", "filename": "` + long + `.pdf", "content_type": "text/calendar; method=CANCEL"},
		{"content": "eA==", "filename": "1.png", "content_type": "multipart/mixed", "content_id": "my logo"},
		{"content": "eA==", "filename": "2.png", "content_id": "<a@b>"},
		{"content": "eA==", "filename": "3.png", "content_id": "a@b"}]`
	html := `<img src=\"cid:my logo\"><img src=\"cid:my%20logo\"><img src=\"cid:a@b\">`
	r := f.do(http.MethodPost, "/v1/templates", "application/json",
		strings.NewReader(`{"name": "logos", "publish": true, "subject": "s", "html": "`+html+`"}`))
	require.Less(t, r.Status, 300, "%s", r.Body)
	for _, body := range []string{
		batchOf(t, `{"html": "`+html+`", `+files+`}`),
		`{"from": "a@b.de", "to": ["c@d.de"], "template": "logos", ` + files + `}`,
	} {
		_, b, _ := f.accepted(f.post(body))
		var got []string
		for _, a := range b.Content.Attachments {
			got = append(got, a.Filename+" "+a.Type+" "+a.ContentID)
		}
		require.Equal(t, []string{
			"attachment-1.pdf application/pdf ", "a-b-c-d.txt text/plain ", "attachment-3.bin application/octet-stream ",
			strings.Repeat("x", 251) + ".pdf text/calendar ", "1.png application/octet-stream inline-1",
			"2.png application/octet-stream a@b", "3.png application/octet-stream inline-3",
		}, got)
		require.Equal(t, `<img src="cid:inline-1"><img src="cid:inline-1"><img src="cid:a@b">`, b.Content.HTML)
	}
	form := "--X\r\nContent-Disposition: form-data; name=\"attachments\"; filename=\"a;b.png\"\r\n" +
		"Content-Type: Image/PNG; x=y\r\nContent-ID: <my logo>\r\n\r\nx\r\n"
	for name, value := range map[string]string{
		"from": "a@b.de", "to": "c@d.de", "subject": "s", "html": "<img src=cid:my%20logo>",
	} {
		form += "--X\r\nContent-Disposition: form-data; name=" + name + "\r\n\r\n" + value + "\r\n"
	}
	_, b, _ := f.accepted(f.do(http.MethodPost, "/v1/batches", "multipart/form-data; boundary=X",
		strings.NewReader(form+"--X--\r\n")))
	f.requireStored(b, 0, models.Attachment{Filename: "a-b.png", Type: "image/png", ContentID: "inline-1"}, []byte("x"))
	require.Equal(t, "<img src=cid:inline-1>", b.Content.HTML)
}

// TestContentIDInValues: a content ID is not replaced if values of a recipient refer to it.
func TestContentIDInValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.deps.Providers[0].Carries = models.Capabilities{Attachments: true, Inline: true, Variables: true}
	f.serve(Config{})
	body := func(id, value string) string {
		return batchOf(t, `{"html": "<img src=\"cid:{{v}}\"><img src=\"{{v}}\">", "to": [{"email": "c@d.de", "vars": {"v": "`+
			value+`"}}, {"email": "e@d.de", "vars": {"v": "`+value+`"}}], "attachments": [`+
			attachmentOf("a", "image/png", id, []byte("x"))+`]}`)
	}
	long := strings.Repeat("x", 998)
	_, b, _ := f.accepted(f.post(batchOf(t, `{"html": "<img src='cid:`+long+`'>", "attachments": [`+
		attachmentOf("a", "image/png", long, []byte("x"))+`]}`)))
	require.Equal(t, "<img src='cid:inline-1'>", b.Content.HTML)
	_, b, _ = f.accepted(f.post(batchOf(t, `{"html": "<img src='cid:{{v}}'>", "to": [{"email": "c@d.de", "vars": {"v": "x"}}],
		"attachments": [`+attachmentOf("a", "image/png", "x", []byte("1"))+`,`+attachmentOf("b", "image/png", "x", []byte("2"))+
		`]}`)))
	require.Equal(t, "x", b.Content.Attachments[0].ContentID, "the values refer to the first")
	for _, value := range []string{"my logo", "cid:my logo", "cid:my%20logo"} {
		p := f.post(body("my logo", value)).problem(t)
		require.Equal(t, []string{"/attachments/0/content_id invalid_name"}, p.pointers())
	}
	for id, value := range map[string]string{"my logo": "another", "logo": "logo"} {
		f.accepted(f.post(body(id, value)))
	}
}

// TestAttachments: attachments in JSON and in a multipart form are stored as they are, equal ones once, and a
// repeat with the same key gets the same batch.
func TestAttachments(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	large, small := randomBytes(3*models.PieceSize+5), randomBytes(100)
	body := batchOf(t, `{"html": "<img src=\"cid:logo@x\">", "attachments": [
		`+attachmentOf("Größe 🎉.pdf", "application/pdf", "", large)+`,
		`+attachmentOf("logo.png", "image/png", "logo@x", small)+`,
		{"filename": "again", "content": "`+strings.ReplaceAll(base64.StdEncoding.EncodeToString(large), "/", `\/`)+`",
			"disposition": "attachment", "content_type": null}
	]}`)
	answer := f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), "Idempotency-Key", "k")
	_, b, _ := f.accepted(answer)
	f.requireStored(b, 0, models.Attachment{Filename: "Größe 🎉.pdf", Type: "application/pdf"}, large)
	f.requireStored(b, 1, models.Attachment{Filename: "logo.png", Type: "image/png", ContentID: "logo@x"}, small)
	f.requireStored(b, 2, models.Attachment{Filename: "again", Type: "application/octet-stream"}, large)
	require.Equal(t, 5, f.store.count("PutPiece"), "4 pieces of the large one, once, and 1")
	again := f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body), "Idempotency-Key", "k")
	require.Equal(t, string(answer.Body), string(again.Body))
	require.Equal(t, 5, f.store.count("PutPiece"))

	kind, form := formOf(t, "a file.pdf", large, small)
	_, b, _ = f.accepted(f.do(http.MethodPost, "/v1/batches", kind, form, "Idempotency-Key", "form"))
	f.requireStored(b, 0, models.Attachment{Filename: "a file.pdf", Type: "application/octet-stream"}, large)
	f.requireStored(b, 1, models.Attachment{Filename: "logo.png", Type: "image/png", ContentID: "logo@x"}, small)
	kind, form = formOf(t, "a file.pdf", large, small)
	again = f.do(http.MethodPost, "/v1/batches", kind, form, "Idempotency-Key", "form")
	require.Equal(t, "true", again.Header.Get("Idempotency-Replayed"), "with another boundary")
	kind, form = formOf(t, "another.pdf", large, small)
	p := f.do(http.MethodPost, "/v1/batches", kind, form, "Idempotency-Key", "form").problem(t)
	require.Equal(t, "idempotency_key_reused", p.Code, "another name is another request")
}

// formOf returns a form with two attachments, the second inline.
func formOf(t *testing.T, name string, first, second []byte) (contentType string, form *bytes.Buffer) {
	t.Helper()
	form = new(bytes.Buffer)
	w := multipart.NewWriter(form)
	for _, field := range [][2]string{{"from", "a@b.de"}, {"to", "c@d.de"}, {"subject", "s"}, {"text", "t"}} {
		require.NoError(t, w.WriteField(field[0], field[1]))
	}
	part, err := w.CreateFormFile("attachments", name)
	require.NoError(t, err)
	_, _ = part.Write(first)
	_, err = w.CreateFormField("attachments") // empty: absent
	require.NoError(t, err)
	part, err = w.CreatePart(textproto.MIMEHeader{"Content-Type": {"image/png"}, "Content-Id": {"<logo@x>"},
		"Content-Transfer-Encoding": {"binary"},
		"Content-Disposition":       {`form-data; name="attachments"; filename="logo.png"`}})
	require.NoError(t, err)
	_, _ = part.Write(second)
	require.NoError(t, w.Close())
	return w.FormDataContentType(), form
}

// TestAttachmentMistakes: all mistakes in attachments are reported with their places, and nothing is stored.
func TestAttachmentMistakes(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	valid := attachmentOf("a", "text/plain", "", []byte("x"))
	one := func(members string) string { return `[{"filename": "f", "content": "eA==", ` + members + `}]` }
	for list, want := range map[string][]string{
		`7`:                                               {"/attachments wrong_type"},
		`[7, ` + valid + `]`:                              {"/attachments/0 wrong_type"},
		`[{}]`:                                            {"/attachments/0/content required"},
		`[{"content": null}]`:                             {"/attachments/0/content required"},
		`[{"filename": "f", "content": ""}]`:              {"/attachments/0/content required"},
		`[{"filename": "f", "content": 7}]`:               {"/attachments/0/content wrong_type"},
		`[{"filename": "f", "content": "!"}]`:             {"/attachments/0/content invalid_value"},
		`[{"filename": "f", "content": "eA"}]`:            {"/attachments/0/content invalid_value"},
		`[{"filename": "f", "content": "eA==eA=="}]`:      {"/attachments/0/content invalid_value"},
		`[{"filename": "f", "content": "e\u0041==\r\n"}]`: nil,
		`[{"filename": "f", "content": "eA=\""}]`:         {"/attachments/0/content invalid_value"},
		`[{"filename": "f", "content": "eA==", "content": "eA=="}]`: {"/attachments/0/content repeated"},
		`[{"filename": "a\nb", "content": "eA=="}]`:                 {"/attachments/0/filename invalid_header"},
		`[{"filename": "a\u0000b", "content": "eA=="}]`:             {"/attachments/0/filename invalid_header"},
		`[{"filename": "\ud83d", "content": "eA=="}]`:               {"/attachments/0/filename invalid_text"},
		one(`"size": 1`): {"/attachments/0/size unknown_field"},
		one(`"content_type": "text/plain\r\nBcc: x"`):                          {"/attachments/0/content_type invalid_header"},
		one(`"content_id": "` + strings.Repeat("x", 999) + `"`):                {"/attachments/0/content_id too_long"},
		one(`"content_id": "a\nb"`):                                            {"/attachments/0/content_id invalid_header"},
		one(`"disposition": "hidden"`):                                         {"/attachments/0/disposition invalid_value"},
		one(`"disposition": "inline"`):                                         {"/attachments/0/content_id required"},
		one(`"content_id": "a", "disposition": "attachment"`):                  {"/attachments/0/disposition conflict"},
		`[` + strings.Repeat(valid+",", intake.MaxAttachments+5) + valid + `]`: {"/attachments too_many"},
	} {
		r := f.post(batchOf(t, `{"attachments": `+list+`}`))
		if want == nil {
			require.Equal(t, http.StatusAccepted, r.Status, "%s: %s", list, r.Body)
			continue
		}
		p := r.problem(t)
		require.Equal(t, http.StatusUnprocessableEntity, r.Status, list)
		require.Equal(t, want, p.pointers(), list)
	}
	require.Equal(t, 1, f.store.count("PutPiece"))

	r := f.do(http.MethodPost, "/v1/batches", "multipart/form-data; boundary=X", strings.NewReader(
		"--X\r\nContent-Disposition: form-data; name=\"attachments\"; filename=\"f\"\r\n"+
			"Content-Transfer-Encoding: base64\r\n\r\neA==\r\n--X--\r\n"))
	p := r.problem(t)
	require.Contains(t, p.pointers(), "/attachments/0 invalid_value")

	r = f.do(http.MethodPost, "/v1/batches", "application/x-www-form-urlencoded", strings.NewReader(
		"from=a@b.de&to=c@d.de&subject=s&text=t&attachments=eA=="))
	p = r.problem(t)
	require.Equal(t, []string{"/attachments unknown_field"}, p.pointers())
}

// TestAttachmentsTooLarge: attachments that exceed the limit of a message, or what the allowed providers carry, are
// refused before anything is stored.
func TestAttachmentsTooLarge(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	// Only the last byte is too much: the server reads the rest of a request, which must be short, before it hangs up.
	r := f.post(`{"attachments": [{"filename": "a", "content": "` +
		base64.StdEncoding.EncodeToString(randomBytes(intake.MaxAttachmentBytes)) + `"},` +
		attachmentOf(
			"b",
			"text/plain",
			"",
			[]byte("x"),
		) + `], "from": "a@b.de", "to": ["c@d.de"], "subject": "s", "text": "t"}`)
	p := r.problem(t)
	require.Equal(t, http.StatusRequestEntityTooLarge, r.Status)
	require.Equal(t, "attachments_too_large", p.Code)

	// 9,000 bytes are 12,000 bytes of base64.
	list := `"attachments": [` + attachmentOf("a", "text/plain", "", randomBytes(9000)) + `]`
	p = f.post(batchOf(t, `{"providers": ["sg"], `+list+`}`)).problem(t)
	require.Equal(t, []string{"/attachments no_provider"}, p.pointers())
	require.Contains(t, p.Errors[0].Detail, "sg: the message has 12")
	require.Empty(t, f.store.writes())
	_, b, _ := f.accepted(f.post(batchOf(t, `{`+list+`}`)))
	require.Len(t, b.Content.Attachments, 1)
	log := f.get("/v1/logs/" + b.ID.Log(1).String()).object(t)
	require.Len(t, log["left_out"], 1)
	require.Contains(t, fmt.Sprint(log["left_out"]), "sg text:the whole message, because it cannot carry it")

	f.operator()
	v := f.plan(`{` + list + `}`)
	require.Greater(t, v.Size, int64(9000))
	for _, p := range v.Routes[0].Providers {
		require.Equal(t, p.Name == "sg", p.Refused != "", p.Name)
	}
}

// TestAttachmentsLeaveNothing: a request that is refused, or whose client goes away, leaves no file behind.
func TestAttachmentsLeaveNothing(t *testing.T) {
	t.Parallel()
	f := newAttachmentFixture(t)
	spool := f.deps.Config.SpoolDir
	whole := batchOf(t, `{"attachments": [`+attachmentOf("a", "text/plain", "", randomBytes(2_000_000))+`], "lane": "x"}`)
	require.Equal(t, http.StatusUnprocessableEntity, f.post(whole).Status)
	p := f.post(whole[:1_500_000]).problem(t)
	require.Equal(t, "bad_json", p.Code)
	require.Equal(t, int64(1_500_000), *p.Position, "the place is that in the body")
	left, err := os.ReadDir(spool)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Empty(t, f.store.writes())
}

// FuzzJSONAttachments: attachments are those that encoding/json finds, however the body arrives, and a mistake in the
// JSON is where it is without attachments.
func FuzzJSONAttachments(f *testing.F) {
	for _, s := range []string{
		`{"attachments":[{"content":"eA==","filename":"f"},{"filename":"g","content":"eHg="}],"content":"eA=="}`,
		`{"to":[{"content":"x"}],"attachments":[{"x":{"content":"y"},"content":"e\u0041=="}]}`,
		`{"\u0061ttachments":[{"c\u006fntent":"eA=="}]}`, `{"attachments":{"a":{"content":"eA=="}}}`,
		`{"attachments":[[{"content":"eA=="}]]}`, `{"attachments":[{"content":"eA`,
		`{"a":"\\","attachments":[{"content":""}]}`,
		`]}{"attachments":[{"content":"eA=="}]}`, `{"attachments":[{"content":{"content":"eA=="}, "content":"eA=="}]}`,
		`{"attachments":[{"content" "eA=="}]}`, `{"attachments":[{"content" : "eA==", "filename": "f"} {}]}`,
		`{"attachments":[{"content"`, `{"attachments":[{"content": `, `{"attachments":[{"content"::"x"}]}`,
		`{"attachments":[{"content":"eA==" "x":1}]}`, `{"attachments":[{"content":"eA=="}}`,
	} {
		f.Add([]byte(s))
	}
	open := decoders(f, service.Config{Limits: settings.Limits{Recipients: 10, Content: 1 << 20},
		SpoolDir: f.TempDir()}, "sg")
	f.Fuzz(func(t *testing.T, body []byte) {
		read := func(in io.Reader) (*decoder, error) {
			d := open()
			t.Cleanup(d.Close)
			return d, d.readJSON(in)
		}
		d, err := read(bytes.NewReader(body))
		other, again := read(iotest.OneByteReader(bytes.NewReader(body)))
		require.Equal(t, err, again)
		require.Equal(t, d.Err(), other.Err())
		if err == nil && d.Found() == 0 && !json.Valid(bytes.TrimPrefix(body, []byte(byteOrderMark))) {
			t.Fatalf("%q was read", body)
		}
		var want struct {
			Attachments []struct{ Content []byte }
		}
		if err != nil || d.Found() > 0 || json.Unmarshal(body, &want) != nil {
			return
		}
		batch, _ := d.Check()
		require.Len(t, batch.Content.Attachments, len(want.Attachments))
		for i, a := range batch.Content.Attachments {
			require.Len(t, want.Attachments[i].Content, int(a.Size))
		}
	})
}
