package mailparse_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mailparse"
)

var (
	fileName  = regexp.MustCompile(`^[^/\\;]{1,255}$`)
	fileType  = regexp.MustCompile(`^[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+(; method=[A-Z-]+)?$`)
	contentID = regexp.MustCompile(`^[A-Za-z0-9_.@+-]{0,128}$`)
)

// check requires what Read promises of a message of some bytes.
func check(t *testing.T, m *mailparse.Mail, files []file, size int) {
	t.Helper()
	total := 0
	line := func(values ...string) {
		for _, s := range values {
			total += len(s)
			require.True(t, utf8.ValidString(s))
			require.Falsef(t, strings.ContainsFunc(s, func(r rune) bool {
				return unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
			}), "%q", s)
		}
	}
	for _, list := range [][]models.Address{{m.From}, m.ReplyTo, m.To, m.Cc} {
		for _, a := range list {
			line(a.Email, a.Name)
			require.Regexp(t, `^[^@\s]+@[^@\s]+$`, a.Email)
		}
	}
	line(m.Subject, m.MessageID, m.Stream, m.IdempotencyKey)
	line(m.Tags...)
	for key, value := range m.Metadata {
		line(key, value)
	}
	names := map[string]bool{}
	for _, h := range m.Headers {
		line(h.Name, h.Value)
		require.LessOrEqual(t, len(h.Value), 998)
		require.False(t, names[strings.ToLower(h.Name)], h.Name)
		names[strings.ToLower(h.Name)] = true
	}
	require.LessOrEqual(t, len(m.Headers), mailparse.MaxHeaders)
	for _, text := range []string{m.Text, m.HTML} {
		total += len(text)
		require.True(t, utf8.ValidString(text))
		require.NotContains(t, text, "\r")
		require.NotContains(t, text, "\x00")
	}
	ids := map[string]bool{"": true}
	for _, f := range files {
		line(f.Filename, f.Type)
		total += len(f.content)
		require.Regexp(t, fileName, f.Filename)
		require.LessOrEqual(t, len(f.Filename), 255)
		require.Regexp(t, fileType, f.Type)
		require.Regexp(t, contentID, f.ContentID)
		require.False(t, f.ContentID != "" && ids[f.ContentID])
		ids[f.ContentID] = true
		require.NotEmpty(t, f.content)
	}
	require.LessOrEqual(t, total, 10*size+1000)
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"From: a@b.c\nSubject: =?utf-8?Q?=C3=BC?=\n\ntext",
		"\ufeffFrom: a@b.c (x)\nTo: G: \"d\\\"\" <d@e.f>, g;\nReferences: <1@a> <2@b>\nX-SMTPAPI: {\"category\":\"x\"}\n\n",
		"From: a@b.c\nContent-Type: multipart/related; boundary=\"m\"\n\n--m\nContent-Type: text/html; charset=gb2312\n" +
			"Content-Transfer-Encoding: quoted-printable\n\n=C4=E3<img src=\"cid:a b\">\n--m\nContent-Type: image/png\n" +
			"Content-ID: <a b>\nContent-Transfer-Encoding: base64\n\nUE5H\n--m--\n",
		"From: a@b.c\nContent-Type: multipart/mixed; boundary=m\n\n--m\nContent-Type: multipart/alternative;\n" +
			" boundary=m-1\n\n--m-1\n\na\n--m-1\nContent-Type: text/calendar; method=REQUEST\n\nb\n--m-1--\n--m\n" +
			"Content-Disposition: attachment; filename*0*=iso-8859-1''%DC;\n filename*1=x\n\nc\n--m--\n",
		"From: a@b.c\nX-Mailgun-Variables: {\"a\":\"\\r\\n\"}\nX-Mailgun-Deliver-By: Fri, 25 Dec 2026 17:00:00 GMT\n\n",
		"From: a@b.c\nno colon\n\n\x00", // two reasons: the first one counts, however much was read ahead
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, files, err := read(bytes.NewReader(text))
		again, filesAgain, errAgain := read(iotest.HalfReader(bytes.NewReader(text)))
		require.Equal(t, err, errAgain)
		require.Equal(t, m, again)
		if err != nil {
			var e *mailparse.Error
			require.ErrorAs(t, err, &e, "no other error comes from the message itself")
			return
		}
		require.Equal(t, files, filesAgain)
		check(t, m, files, len(text))
		recipients := []string{m.From.Email}
		for _, a := range append(m.To, m.Cc...) {
			recipients = append(recipients, a.Email)
		}
		e := m.Envelope(recipients, 50)
		require.NotEmpty(t, append(append(e.To, e.Cc...), e.Bcc...))
	})
}

// large is a mail of 25 MB with an attachment of 18 MB in base64.
func large() []byte {
	var b bytes.Buffer
	b.WriteString("From: ann@example.com\r\nTo: bob@example.com\r\nContent-Type: multipart/mixed; boundary=m\r\n\r\n" +
		"--m\r\n\r\nHello\r\n--m\r\nContent-Type: application/pdf; name=a.pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n")
	line := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0, 255, 7}, 19)) + "\r\n"
	b.WriteString(strings.Repeat(line, 25_000_000/len(line)))
	b.WriteString("--m--\r\n")
	return b.Bytes()
}

func discard(mailparse.Attachment) (io.Writer, error) { return io.Discard, nil }

// TestMemory: the memory that a mail takes does not depend on the size of its attachments, nor on what a header or a
// part could make large.
func TestMemory(t *testing.T) { //nolint:paralleltest // others would allocate, too
	const from = "From: a@b.c\r\n"
	multi := from + "Content-Type: multipart/mixed; boundary=m\r\n\r\n"
	for name, text := range map[string][]byte{
		"attachment":        large(),
		"line in a header":  []byte(from + "X: " + strings.Repeat("a", 25_000_000)),
		"lines in a header": []byte(from + strings.Repeat("X: a\r\n", 4_000_000)),
		"line in a part":    []byte(multi + "--m\r\nX: " + strings.Repeat("a", 25_000_000)),
		"text":              []byte(from + "\r\n" + strings.Repeat("a", 25_000_000)),
		"CRs":               []byte(from + "\r\n" + strings.Repeat("\r", 25_000_000) + "a"),
		"preamble":          []byte(multi + strings.Repeat("a\r\n", 8_000_000) + "--m\r\n\r\na"),
		"epilogue":          []byte(multi + "--m\r\n\r\na\r\n--m--\r\n" + strings.Repeat("a\r\n", 8_000_000)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := mailparse.Read(bytes.NewReader(text), 100_000, discard)
		runtime.ReadMemStats(&after)
		t.Log(name, after.TotalAlloc-before.TotalAlloc, err)
		most := uint64(1 << 20)
		if name == "lines in a header" {
			most *= 6 // go-message takes 256 bytes for each
		}
		require.Less(t, after.TotalAlloc-before.TotalAlloc, most, name)
	}
}

// TestHostileMailEnds: work that grows with the square of the size would take minutes or hours.
func TestHostileMailEnds(t *testing.T) {
	t.Parallel()
	const from = "From: a@b.c\r\n"
	head := func(s string) string { return from + "To: " + s + "\r\nSubject: " + s + "\r\n\r\n" }
	repeated := func(s string) string { return strings.Repeat(s, 12_000/len(s)) }
	nested := from
	for i := range 20 {
		b := strings.Repeat("b", i+1)
		nested += "Content-Type: multipart/mixed; boundary=" + b + "\r\n\r\n--" + b + "\r\n"
	}
	multi := from + "Content-Type: multipart/mixed; boundary=m\r\n\r\n"
	parts := func(s string) string { return multi + strings.Repeat("--m\r\n"+s+"\r\n\r\na\r\n", 10) }
	for i, text := range []string{
		head(repeated(`"\`)), head(repeated(`(\`)), head(repeated("(")), head(repeated("<")), head(repeated("=?x?q?a")),
		head(repeated("=?x?b?!")), head(repeated("=?utf-8?q?a?= ")), head(repeated("a:")), head(repeated("=?")),
		from + "References: " + repeated("<") + repeated("<a>") + "\r\n\r\n",
		nested + "\r\n" + strings.Repeat("--b\r\r\n", 300_000),
		parts("Content-Disposition: attachment; " + repeated(`a="\`)), parts("Content-Type: a; " + repeated(";a*0=")),
		parts("Content-Disposition: attachment; filename=" + repeated("=?x?b?!")),
		parts("Content-Type: image/png\r\nContent-ID: " + repeated("a ")),
		multi + "--m\r\nContent-Type: text/html\r\n\r\n" + strings.Repeat("cid:a ", 100_000) + "\r\n" +
			strings.Repeat("--m\r\nContent-Type: image/png\r\nContent-ID: <a a a>\r\n\r\na\r\n", 400),
		from + "Content-Transfer-Encoding: base64\r\n\r\n" + strings.Repeat("=*", 2_000_000),
		from + "Content-Transfer-Encoding: quoted-printable\r\n\r\n" + strings.Repeat("==", 400_000),
	} {
		_, _, err := read(strings.NewReader(text))
		t.Log(i, len(text), err) // either result is right
	}
}

func BenchmarkRead(b *testing.B) {
	text := large()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := mailparse.Read(bytes.NewReader(text), 1<<20, discard); err != nil {
			b.Fatal(err)
		}
	}
}
