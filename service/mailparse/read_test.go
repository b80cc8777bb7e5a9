package mailparse_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mailparse"
)

const maxText = 1 << 20

// file is an attachment that was read.
type file struct {
	mailparse.Attachment
	content string
}

// read reads a message and keeps its attachments.
func read(r io.Reader) (m *mailparse.Mail, files []file, err error) {
	var contents []*bytes.Buffer
	m, err = mailparse.Read(r, maxText, func(a mailparse.Attachment) (io.Writer, error) {
		files, contents = append(files, file{Attachment: a}), append(contents, new(bytes.Buffer))
		return contents[len(contents)-1], nil
	})
	for i := range files {
		files[i].content = contents[i].String()
	}
	return m, files, err
}

// mail reads a message whose lines end in CRLF. It gets a From unless it has one.
func mail(t *testing.T, lines ...string) (*mailparse.Mail, []file) {
	t.Helper()
	m, files, err := read(strings.NewReader(message(lines...)))
	require.NoError(t, err)
	return m, files
}

func message(lines ...string) string {
	text := strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\r\n")
	if !regexp.MustCompile(`(?m)^\W*From:`).MatchString(text) {
		text = "From: ann@example.com\r\n" + text
	}
	return text
}

// refused requires that a message is refused.
func refused(t *testing.T, code, status string, lines ...string) {
	t.Helper()
	m, _, err := read(strings.NewReader(message(lines...)))
	var e *mailparse.Error
	require.ErrorAs(t, err, &e)
	require.Nil(t, m)
	require.Equal(t, code, e.Code, e.Detail)
	require.Truef(t, strings.HasPrefix(e.Error(), status+" "), "%s", e)
}

func header(m *mailparse.Mail, name string) string {
	if i := models.FindHeader(m.Headers, strings.ToLower(name)); i >= 0 {
		return m.Headers[i].Value
	}
	return ""
}

func TestWholeMail(t *testing.T) {
	t.Parallel()
	m, files := mail(t,
		"Received: from a by b; Fri, 25 Dec 2026 18:00:00 +0100",
		"Return-Path: <bounce@example.com>",
		"DKIM-Signature: v=1; a=rsa-sha256",
		"ARC-Seal: i=1",
		"Resent-From: bob@example.com",
		"Sender: other@example.com",
		"MIME-Version: 1.0",
		"Date: Fri, 25 Dec 2026 18:00:00 +0100",
		"From: Ann <ann@example.com>",
		"Reply-To: help@example.com, Desk <desk@example.com>",
		"To: Bob <bob@example.com>, cid@example.com",
		"Cc: dan@example.com",
		"Bcc: secret@example.com",
		"Subject: Hello",
		"Message-ID: <1@example.com>",
		"In-Reply-To: <0@example.com>",
		"List-ID: <list.example.com>",
		"Auto-Submitted: auto-generated",
		"Precedence: bulk",
		"Feedback-ID: 1:2:3",
		"X-Custom: a",
		"Content-Type: multipart/mixed; boundary=m",
		"",
		"This is a message in several parts.",
		"--m",
		"Content-Type: multipart/alternative; boundary=a",
		"",
		"--a",
		"Content-Type: text/plain; charset=utf-8",
		"",
		"Hello",
		"Bob",
		"--a",
		"Content-Type: text/x-amp-html",
		"",
		"<html amp4email>",
		"--a",
		"Content-Type: multipart/related; boundary=r",
		"",
		"--r",
		"Content-Type: text/html",
		"",
		`<img src="cid:logo@x">`,
		"--r",
		"Content-Type: image/png; name=logo.png",
		"Content-ID: <logo@x>",
		"Content-Transfer-Encoding: base64",
		"",
		"UE5H",
		"--r--",
		"--a",
		"Content-Type: text/calendar; charset=utf-8; method=request",
		"",
		"BEGIN:VCALENDAR",
		"--a--",
		"--m",
		"Content-Type: Application/PDF",
		`Content-Disposition: attachment; filename="bill.pdf"`,
		"",
		"%PDF",
		"--m",
		"Content-Type: message/rfc822",
		"",
		"Subject: inner",
		"",
		"text",
		"--m--",
		"an epilogue")
	require.Equal(t, &mailparse.Mail{
		From:      models.Address{Email: "ann@example.com", Name: "Ann"},
		ReplyTo:   []models.Address{{Email: "help@example.com"}, {Email: "desk@example.com", Name: "Desk"}},
		To:        []models.Address{{Email: "bob@example.com", Name: "Bob"}, {Email: "cid@example.com"}},
		Cc:        []models.Address{{Email: "dan@example.com"}},
		Subject:   "Hello",
		Text:      "Hello\nBob",
		HTML:      `<img src="cid:logo@x">`,
		MessageID: "1@example.com",
		Headers: []models.Header{{Name: "In-Reply-To", Value: "<0@example.com>"},
			{Name: "List-ID", Value: "<list.example.com>"}, {Name: "Auto-Submitted", Value: "auto-generated"},
			{Name: "Precedence", Value: "bulk"}, {Name: "Feedback-ID", Value: "1:2:3"}, {Name: "X-Custom", Value: "a"}},
	}, m)
	require.Equal(t, []file{
		{mailparse.Attachment{Filename: "logo.png", Type: "image/png", ContentID: "logo@x"}, "PNG"},
		{mailparse.Attachment{Filename: "attachment-2.ics", Type: "text/calendar; method=REQUEST"}, "BEGIN:VCALENDAR"},
		{mailparse.Attachment{Filename: "bill.pdf", Type: "application/pdf"}, "%PDF"},
		{mailparse.Attachment{Filename: "attachment-4.eml", Type: "message/rfc822"}, "Subject: inner\r\n\r\ntext"},
	}, files)
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 999)
	for _, c := range []struct {
		name, in, field, want string
		flaws                 []mailparse.Flaw
	}{
		{name: "raw UTF-8", in: "Subject: Grüße", want: "Grüße"},
		{name: "raw windows-1252", in: "Subject: Gr\xfc\xdfe \x80", want: "Grüße €"},
		{name: "encoded words", in: "Subject: =?utf-8?Q?Gr=C3=BC?= =?utf-8?B?w59l?= now", want: "Grüße now"},
		{name: "a character in two words", in: "Subject: =?utf-8?Q?Gr=C3?=\n =?utf-8?Q?=BC?=", want: "Grü"},
		{name: "gb2312", in: "Subject: =?gb2312?B?xOO6ww==?=", want: "你好"},
		{name: "iso-2022-jp", in: "Subject: =?iso-2022-jp?B?GyRCRnxLXBsoQg==?=", want: "日本"},
		{name: "a word of an unknown set", in: "Subject: =?x-no?Q?a?=", want: "=?x-no?Q?a?="},
		{name: "a line break in a word", in: "Subject: =?utf-8?Q?a=0D=0ABcc:_b?=", want: "a  Bcc: b"},
		{name: "another line break in a word", in: "Subject: =?utf-8?Q?a=E2=80=A8b=00?=", want: "a b"},
		{name: "bare CR", in: "Subject: a\rBcc: b@example.com", want: "a Bcc: b@example.com"},
		{name: "byte order mark in a value", in: "Subject: \ufeffa", want: "a"},
		{name: "repeated", in: "Subject: a\nSubject: b", want: "a", flaws: []mailparse.Flaw{mailparse.HeaderLeftOut}},
		{name: "folded", in: "X-A: b\n  c\n\td", field: "X-A", want: "b c d"},
		{name: "space before the colon", in: "X-A : b", field: "X-A", want: "b"},
		{name: "repeated field that is passed on", in: "X-A: b\nx-a: c", field: "X-A", want: "b",
			flaws: []mailparse.Flaw{mailparse.HeaderLeftOut}},
		{name: "long", in: "X-A: " + long, field: "X-A", want: "", flaws: []mailparse.Flaw{mailparse.HeaderLeftOut}},
		{name: "long name", in: long + ": a", field: long, want: "", flaws: []mailparse.Flaw{mailparse.HeaderLeftOut}},
		{name: "Message-ID with spaces", in: "Message-ID: <a b>", flaws: []mailparse.Flaw{mailparse.HeaderLeftOut}},
		{name: "references", in: "References: <1@a>\n <2@a>\n\t(c) <3@a>", field: "References", want: "<1@a> <2@a> <3@a>"},
		{name: "reply to a text", in: "In-Reply-To: your mail", field: "In-Reply-To", want: "your mail"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, _ := mail(t, c.in, "", "")
			if c.field == "" {
				require.Equal(t, c.want, m.Subject)
			} else {
				require.Equal(t, c.want, header(m, c.field))
			}
			require.Equal(t, c.flaws, m.Flaws)
		})
	}
}

// TestReferencesAreCut: the first ID and the newest ones fit into a line, as RFC 5322, 2.1.1 asks.
func TestReferencesAreCut(t *testing.T) {
	t.Parallel()
	lines := []string{"References: <0@example.com>"}
	for i := 1; i < 200; i++ {
		lines = append(lines, fmt.Sprintf(" <%d@example.com>", i))
	}
	m, _ := mail(t, append(lines, "", "")...)
	line := "References: " + header(m, "References")
	require.LessOrEqual(t, len(line), 998)
	require.Greater(t, len(line), 970)
	require.Regexp(t, `^References: <0@example.com> <1\d\d@.* <199@example.com>$`, line)
	require.Empty(t, m.Flaws)
}

// TestMessageIDs: as symfony/symfony issue 34324.
func TestMessageIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"<1@a.b>", "1@a.b", " <1@a.b> (comment)", "Message-ID: <1@a.b>"} {
		m, _ := mail(t, "Message-ID: "+id, "", "")
		require.Equal(t, "1@a.b", m.MessageID)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	a := func(email, name string) models.Address { return models.Address{Email: email, Name: name} }
	for _, c := range []struct {
		in   string
		want []models.Address
		bad  bool
	}{
		{in: "a@b.c, D <d@e.f>", want: []models.Address{a("a@b.c", ""), a("d@e.f", "D")}},
		{in: "a@b.c; d@e.f;", want: []models.Address{a("a@b.c", ""), a("d@e.f", "")}},
		{in: "J\xfcrgen <j@b.c>", want: []models.Address{a("j@b.c", "Jürgen")}},
		{in: "Jürgen <j@bücher.example>", want: []models.Address{a("j@bücher.example", "Jürgen")}},
		{in: `"Doe; John, \"J\"" <j@b.c>`, want: []models.Address{a("j@b.c", `Doe; John, "J"`)}},
		{in: "=?utf-8?Q?Doe,_J=C3=BCrgen?= <j@b.c>", want: []models.Address{a("j@b.c", "Doe, Jürgen")}},
		{in: "Friends: a@b.c, D <d@e.f>;, g@h.i", want: []models.Address{a("a@b.c", ""), a("d@e.f", "D"), a("g@h.i", "")}},
		{in: "undisclosed-recipients:;"},
		{in: "a@b.c (Ann)", want: []models.Address{a("a@b.c", "Ann")}},
		{in: "a@b.c <a@b.c>", want: []models.Address{a("a@b.c", "a@b.c")}},
		{in: "Ann\r\n <a@b.c>", want: []models.Address{a("a@b.c", "Ann")}},
		{in: "Doe, John <j@b.c>", want: []models.Address{a("j@b.c", "John")}, bad: true},
		{in: "unknown, <>, a@@b, a b@c.d, @b.c, a@, =?utf-8?Q?a=40b.c?=", bad: true},
		{in: "<\"a\rX: y\"@b.c>", bad: true},
		{in: `"a\" <b@c.d`, bad: true},
	} {
		m, _ := mail(t, "To: "+c.in, "", "")
		if len(c.want) == 0 {
			c.want = m.To[:0:0]
		}
		require.Equal(t, c.want, m.To, c.in)
		require.Equal(t, c.bad, len(m.Flaws) > 0, "%s %v", c.in, m.Flaws)
	}
	m, _ := mail(t, "To: a@b.c", "Cc: x@y.z", "to: d@e.f", "", "")
	require.Equal(t, []models.Address{a("a@b.c", ""), a("d@e.f", "")}, m.To)
}

func TestFrom(t *testing.T) {
	t.Parallel()
	m, _ := mail(t, "From: Ann <ann@example.com>", "From: ANN@example.com", "", "")
	require.Equal(t, models.Address{Email: "ann@example.com", Name: "Ann"}, m.From)
	refused(t, "several_from", "554 5.6.0", "From: a@b.c, d@e.f", "", "")
	refused(t, "several_from", "554 5.6.0", "From: a@b.c", "From: d@e.f", "", "") // nodemailer/mailparser issue 423
	refused(t, "no_from", "554 5.6.0", "From: somebody", "", "")
}

func TestFieldsOfProviders(t *testing.T) {
	t.Parallel()
	m, _ := mail(t,
		"X-Mailgun-Tag: first tag", "X-Mailgun-Tag: =?utf-8?Q?zw=C3=B6lf?=", "X-PM-Tag: first tag", "x-pm-tag: third",
		`X-Mailgun-Variables: {"a": "x\r\nBcc: y",`, ` "b": 1, "c": {"d": [true]}, "e": null, "": "lost"}`,
		"X-PM-Metadata-Order-ID: 7",
		`X-SMTPAPI: {"category": ["cat"], "unique_args": {"u": "v"}, "send_at": 1798218000,`,
		` "to": [], "sub": {}, "section": null}`,
		"X-Mailgun-Track: no", "X-Mailgun-Track-Clicks: htmlonly",
		"X-PM-Message-Stream: broadcast", "X-Mailgun-Drop-Message: yes", "Resend-Idempotency-Key: k",
		"X-Mailgun-Recipient-Variables: {}", "X-Mailgun-Require-TLS: no", "X-PM-KeepID: true", "X-Mailgun-Sending-Ip: 1",
		"", "")
	require.Equal(t, &mailparse.Mail{
		From: models.Address{Email: "ann@example.com"},
		Tags: []string{"first tag", "zwölf", "third", "cat"},
		Metadata: map[string]string{"a": "x  Bcc: y", "b": "1", "c": `{"d": [true]}`, "e": "null", "Order-ID": "7",
			"u": "v"},
		TrackClicks: true,
		DeliverAt:   time.Unix(1798218000, 0).UTC(),
		TestMode:    true, Stream: "broadcast", IdempotencyKey: "k",
		Flaws: []mailparse.Flaw{mailparse.HeaderLeftOut},
	}, m)
	for _, date := range []string{"Fri, 25 Dec 2026 17:00:00 GMT", "Fri, 25 Dec 2026 18:00:00 +0100"} {
		m, _ := mail(t, "X-Mailgun-Deliver-By: "+date, `X-SMTPAPI: {"category": "c"}`, "X-PM-TrackOpens: true", "", "")
		require.True(t, m.DeliverAt.Equal(time.Date(2026, 12, 25, 17, 0, 0, 0, time.UTC)))
		require.Equal(t, []string{"c"}, m.Tags)
		require.True(t, m.TrackOpens)
	}
	for _, c := range [][2]string{
		{"unsupported_field", `X-SMTPAPI: {"to": ["a@b.c"]}`}, {"unsupported_field", `X-SMTPAPI: {"sub": {"-n-": ["x"]}}`},
		{"unsupported_field", `X-SMTPAPI: {"section": {"-n-": "x"}}`}, {"unsupported_field",
			`X-SMTPAPI: {"send_each_at": [1]}`},
		{"unsupported_field", `X-Mailgun-Recipient-Variables: {"a@b.c": {}}`}, {"unsupported_field",
			"X-Mailgun-Require-TLS: yes"},
		{"bad_smtpapi", "X-SMTPAPI: {"}, {"bad_smtpapi", `X-SMTPAPI: {"category": 1}`}, {"bad_smtpapi",
			`X-SMTPAPI: {"send_at": "x"}`},
		{"bad_variables", `X-SMTPAPI: {"unique_args": [1]}`}, {"bad_variables", "X-Mailgun-Variables: x"},
		{"bad_time", "X-Mailgun-Deliver-By: tomorrow"},
	} {
		refused(t, c[0], "554 5.6.0", c[1], "", "")
	}
}

// TestLines: mail with other line ends, and with a byte order mark, reads as if it had none.
func TestLines(t *testing.T) {
	t.Parallel()
	lines := []string{"From: ann@example.com", "Subject: a", " b", "Content-Type: multipart/mixed; boundary=m", "",
		"--m", "",
		"text", "", "more", "--m", "Content-Disposition: attachment; filename=a.txt", "", "1", "2", "--m--", ""}
	want, files, err := read(strings.NewReader(strings.Join(lines, "\r\n")))
	require.NoError(t, err)
	require.Equal(t, "text\n\nmore", want.Text)
	require.Equal(t, "a b", want.Subject) // also folded by a bare LF: vert-x3/vertx-mail-client issue 219
	require.Equal(t, "1\r\n2", files[0].content)
	for _, end := range []string{"\n", "\r\r\n", "\r\r\r\r\n"} { // \r\r\n: axllent/mailpit issue 87
		for _, begin := range []string{"", "\ufeff"} { // nodemailer/mailparser issue 423
			text := begin + strings.Join(lines, end)
			for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)),
				iotest.DataErrReader(strings.NewReader(text))} {
				got, gotFiles, err := read(r)
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Equal(t, files, gotFiles)
			}
		}
	}
}

// TestLongLine: as foxcpp/maddy issue 352.
func TestLongLine(t *testing.T) {
	t.Parallel()
	line := strings.Repeat(`<b class="x">ü</b>`, 300_000/19)
	for _, encoding := range []string{"8bit", "base64", "quoted-printable"} {
		body := line
		switch encoding {
		case "base64":
			body = base64.StdEncoding.EncodeToString([]byte(line))
		case "quoted-printable":
			body = strings.NewReplacer("=", "=3D", "ü", "=C3=BC").Replace(line)
		}
		part := "Content-Type: text/html\nContent-Transfer-Encoding: " + encoding + "\n\n" + body
		m, _ := mail(t, part)
		require.Equal(t, line, m.HTML)
		m, _ = mail(t, "Content-Type: multipart/mixed; boundary=m", "", "--m", part, "--m--")
		require.Equal(t, line, m.HTML)
	}
}

func TestCharsets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set, in, want string
		unknown       bool
	}{
		{"utf-8", "Grüße", "Grüße", false},
		{"utf-8", "Gr\xfc", "Gr\ufffd", false},
		{"iso-8859-1", "Gr\xfc", "Grü", false},
		{"us-ascii", "Gr\xfc", "Grü", true},
		{"", "Grü", "Grü", false},
		{"", "Gr\xfc \x80", "Grü €", true},
		{"x-unknown", "Grü", "Grü", true},
		{"../../etc/passwd", "Gr\xfc", "Grü", true},
		{strings.Repeat("x", 2000), "a", "a", true},
		{"utf-7", "Gr+APw-", "Gr+APw-", true},
		{"iso-2022-kr", "a\xfcb", "aüb", true},
		{"gb2312", "\xc4\xe3\xba\xc3", "你好", false},
		{"iso-2022-jp", "\x1b$BF|K\\\x1b(B", "日本", false},
		{"utf-8", "\ufeffa\rb", "a\nb", false},
	} {
		m, _ := mail(t, "Content-Type: text/plain; charset="+c.set, "", c.in)
		require.Equal(t, c.want, m.Text, c.set)
		require.Equal(t, c.unknown, len(m.Flaws) > 0, "%s %v", c.set, m.Flaws)
	}
	refused(t, "nul_byte", "554 5.6.0", "Content-Transfer-Encoding: base64", "", "YQBi")
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, disposition, want string }{
		{"application/pdf", `attachment; filename="a b.pdf"`, "a b.pdf"},
		{"application/pdf", "attachment; filename=a b.pdf", "a b.pdf"},
		{"application/pdf", "attachment; filename=Ü.pdf; size=3", "Ü.pdf"},
		{"application/pdf", "attachment; filename=\"\xdc.pdf\"", "Ü.pdf"},
		{"application/pdf", "attachment; filename=a.pdf; filename=b.pdf", "a.pdf"},
		{"application/pdf", "attachment; filename*=utf-8''%C3%9C%20a.pdf; filename=u.pdf", "Ü a.pdf"},
		{"application/pdf", "attachment; filename*=iso-8859-1'de'%DC.pdf", "Ü.pdf"},
		{"application/pdf", "attachment;\n filename*0*=utf-8''%C3;\n filename*1*=%9C%20;\n filename*2=\"50%.pdf\"",
			"Ü 50%.pdf"},
		{"application/pdf", `attachment; filename="=?utf-8?Q?=C3=9C.pdf?="`, "Ü.pdf"},
		{"application/pdf", `attachment; filename="C:\dir\a;b.pdf"`, "C:-dir-a-b.pdf"},
		{"application/pdf", `attachment; filename="../../etc/passwd"`, "..-..-etc-passwd"},
		{"application/pdf", `attachment; filename="say \"a\".pdf"`, `say "a".pdf`},
		{"application/pdf", `attachment; filename="a.pdf`, "a.pdf"},
		{"application/pdf; name=n.pdf", "attachment", "n.pdf"},
		{"application/pdf; name=n.pdf", "attachment; filename=", "n.pdf"},
		{"application/pdf", "attachment", "attachment-1.pdf"},
		{"application/pdf", `attachment; filename="..."`, "attachment-1.pdf"},
		{"application/pdf", `attachment; filename="/"`, "attachment-1.pdf"},
		{"image/jpeg", "attachment", "attachment-1.jpg"},
		{"message/rfc822", "attachment", "attachment-1.eml"},
		{"application/octet-stream", "", "attachment-1.bin"},
		{"nonsense; name=a", "attachment", "a"},
		{"application/pdf", "attachment; filename=" + strings.Repeat("ü", 200) + ".pdf", strings.Repeat("ü", 125) + ".pdf"},
		{"application/pdf", `attachment; filename="=?utf-8?Q?a=0Db=09c=0A.pdf?="`, "a b c .pdf"},
		{"text/plain", "inline; filename=notes.txt", "notes.txt"},
	} {
		_, files := mail(t, "Content-Type: multipart/mixed; boundary=m", "", "--m", "Content-Type: "+c.kind,
			"Content-Disposition: "+c.disposition, "", "x", "--m--")
		require.Len(t, files, 1, c.disposition)
		require.Equal(t, c.want, files[0].Filename, c.disposition)
	}
}

func TestTypes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Text/Calendar; charset=utf-8; method=cancel": "text/calendar; method=CANCEL",
		`text/calendar; method="a b"`:                 "text/calendar",
		"text/csv; charset=windows-1252; header=x":    "text/csv",
		"nonsense":            "application/octet-stream",
		"multi part/x\u2028y": "application/octet-stream",
		"":                    "application/octet-stream",
	} {
		_, files := mail(t, "Content-Type: multipart/mixed; boundary=m", "", "--m", "Content-Type: "+in,
			"Content-Disposition: attachment; filename=a", "", "Gr\xfc", "--m--")
		require.Equal(t, []file{{mailparse.Attachment{Filename: "a", Type: want}, "Gr\xfc"}}, files)
	}
	_, files := mail(t, "Content-Type: multipart/digest; boundary=m", "", "--m", "", "Subject: a", "", "--m--")
	require.Equal(t, "message/rfc822", files[0].Type)
}

func TestContentIDs(t *testing.T) {
	t.Parallel()
	part := func(id, disposition string) string {
		return "--m\nContent-Type: image/png\nContent-ID: " + id + "\nContent-Disposition: " + disposition + "\n\nx"
	}
	m, files := mail(t, "Content-Type: multipart/related; boundary=m", "", "--m", "Content-Type: text/html", "",
		`<img src="cid:a@b.c"><img src='cid:a b'><img src="cid:a%20b"><i style="background:url(cid:x&amp;y)">`+
			`<img src=cid:inline-3><img src="cid:a b c"><p>acid: a b`,
		part("<a@b.c>", "inline"), part("<a b>", "inline"), part("x&y", "attachment"), part("<a@b.c>", "inline"),
		part("<inline-2>", "inline"), part("<a b c>", ""), part("<\u00fc/"+strings.Repeat("x", 300)+">", ""), "--m--")
	ids := []string{}
	for _, f := range files {
		ids = append(ids, f.ContentID)
	}
	require.Equal(t, []string{"a@b.c", "inline-2", "inline-3", "inline-4", "inline-5", "inline-6", "inline-7"}, ids)
	require.Equal(t, `<img src="cid:a@b.c"><img src='cid:inline-2'><img src="cid:inline-2">`+
		`<i style="background:url(cid:inline-3)"><img src=cid:inline-3><img src="cid:inline-6"><p>acid: a b`, m.HTML)
	_, files = mail(t, "Content-Type: multipart/mixed; boundary=m", "", part("<a>", "attachment"), part("<b>", "inline"),
		part("<>", "inline"), "--m--")
	require.Equal(t, []string{"", "b", ""}, []string{files[0].ContentID, files[1].ContentID, files[2].ContentID})
}

func TestTextParts(t *testing.T) {
	t.Parallel()
	text, markup := "Content-Type: text/plain\n\n", "Content-Type: text/html\n\n"
	multi := func(kind, boundary string, parts ...string) string {
		b := "\n--" + boundary
		return "Content-Type: multipart/" + kind + "; boundary=" + boundary + "\n" + b + "\n" + strings.Join(parts,
			b+"\n") + b + "--"
	}
	for _, c := range []struct {
		name, in, text, html string
		files                []string
	}{
		{"text", text + "a", "a", "", nil},
		{"html", markup + "<a>", "", "<a>", nil},
		{"an encoded CR before each line end", "Content-Transfer-Encoding: quoted-printable\n" + text + "a=0D\n=0D\nb=\n",
			"a\n\nb", "", nil},
		{"no type", "\na", "a", "", nil},
		{"a broken type", "Content-Type: text\n\na", "a", "", nil},
		{"text with a name", "Content-Type: text/plain; name=a.txt\n\na", "a", "", nil},
		{"alternative", multi("alternative", "x", text+"a", markup+"<a>"), "a", "<a>", nil},
		{"HTML first", multi("alternative", "x", markup+"<a>", text+"a"), "a", "<a>", nil},
		{"mixed instead of alternative", multi("mixed", "x", text+"a", markup+"<a>"), "a", "<a>", nil},
		{"second text of an alternative", multi("alternative", "x", text+"a", text+"b", markup+"<a>"), "a", "<a>",
			[]string{"attachment-1.txt b"}},
		{"texts one after the other", multi("mixed", "x", text+"a", text+"b\n", text+"c"), "a\nb\n\nc", "", nil},
		{"HTML one after the other", multi("mixed", "x", markup+"a", markup+"b"), "", "a\nb", nil},
		{"a text after HTML", multi("mixed", "x", markup+"a", text+"footer"), "", "a", []string{"attachment-1.txt footer"}},
		{"a text after both", multi("mixed", "x", multi("alternative", "y", text+"a", markup+"<a>"), text+"footer"), "a",
			"<a>",
			[]string{"attachment-1.txt footer"}},
		{"HTML around a file", multi("alternative", "x", text+"a", multi("mixed", "y", markup+"<a>",
			"Content-Type: image/png\n\nx", markup+"<b>")), "a", "<a>\n<b>", []string{"attachment-1.png x"}},
		{"a text that is a file", multi("mixed", "x", text+"a", "Content-Disposition: attachment\n"+text+"b"), "a", "",
			[]string{"attachment-1.txt b"}},
		{"an empty text", multi("mixed", "x", text, text+"b"), "b", "", nil},
		{"an empty file", multi("mixed", "x", text+"a", "Content-Type: image/png\n\n"), "a", "", nil},
		{"nothing", multi("mixed", "x"), "", "", nil},
		// The reader of go-message takes --x-1 for the end of x.
		{"a boundary that begins another", multi("mixed", "x", multi("alternative", "x-1", text+"a", markup+"<a>"),
			"Content-Type: image/png\n\nx"), "a", "<a>", []string{"attachment-1.png x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, files := mail(t, c.in)
			var got []string
			for _, f := range files {
				got = append(got, f.Filename+" "+f.content)
			}
			require.Equal(t, []any{c.text, c.html, c.files}, []any{m.Text, m.HTML, got})
		})
	}
}

func TestBrokenMail(t *testing.T) {
	t.Parallel()
	pdf := "Content-Type: application/pdf\nContent-Transfer-Encoding: "
	for _, c := range []struct {
		name, in, text, file string
		flaws                []mailparse.Flaw
	}{
		{"the last boundary is missing", "--m\n\na\n--m\n" + pdf + "7bit\n\nfile", "a", "file",
			[]mailparse.Flaw{mailparse.MissingBoundary}},
		{"the text has no boundary after it", "--m\n\na", "a", "", []mailparse.Flaw{mailparse.MissingBoundary}},
		{"an inner boundary is missing", "--m\nContent-Type: multipart/alternative; boundary=i\n\n--i\n\na\n--m\n" + pdf +
			"7bit\n\nfile\n--m--", "a", "file", []mailparse.Flaw{mailparse.MissingBoundary}},
		{"base64 in short lines", "--m\n" + pdf + "base64\n\n Z\n\tm\nls\nZQ==\n--m--", "", "file", nil},
		{"base64 without padding", "--m\n" + pdf + "base64\n\nZmlsZQ\n--m--", "", "file", nil},
		{"base64 with other characters", "--m\n" + pdf + "base64\n\nZm*lsZQ==\n--m--", "", "file",
			[]mailparse.Flaw{mailparse.BrokenEncoding}},
		{"base64 with more after it", "--m\n" + pdf + "base64\n\nZmlsZQ==\nfooter\n--m--", "", "file",
			[]mailparse.Flaw{mailparse.BrokenEncoding}},
		{"quoted-printable with a mistake", "--m\n" + pdf + "quoted-printable\n\nf=69l=\n=\ne=GG\n--m--", "", "file=GG", nil},
		{"an unknown encoding", "--m\n" + pdf + "x-uuencode\n\nfile\n--m--", "", "file",
			[]mailparse.Flaw{mailparse.UnknownEncoding}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, files := mail(t, "Content-Type: multipart/mixed; boundary=m", "", c.in)
			require.Equal(t, c.text, m.Text)
			require.Equal(t, c.flaws, m.Flaws)
			if c.file != "" {
				require.Equal(t, []file{{mailparse.Attachment{Filename: "attachment-1.pdf", Type: "application/pdf"}, c.file}},
					files)
			}
		})
	}
}

func TestRefusedMail(t *testing.T) {
	t.Parallel()
	nested := ""
	for i := range 21 {
		nested += fmt.Sprintf("Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n", i, i)
	}
	for _, c := range []struct{ code, status, in string }{
		{"signed_or_encrypted", "554 5.6.0", "Content-Type: multipart/signed; boundary=x\n\n"},
		{"signed_or_encrypted", "554 5.6.0", "Content-Type: Multipart/Encrypted; boundary=x\n\n"},
		{"signed_or_encrypted", "554 5.6.0", "Content-Type: application/pkcs7-mime\n\n"},
		{"signed_or_encrypted", "554 5.6.0",
			"Content-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: multipart/signed\n\n"},
		{"nul_byte", "554 5.6.0", "\na\x00"},
		{"nul_byte", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\n--x\n\na\n--x--\n\x00"},
		{"bad_header", "554 5.6.0", "no colon\n\n"},
		{"bad_header", "554 5.6.0", "Sub ject: a\n\n"},
		{"bad_multipart", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\n--x\nno colon\n\n"},
		{"bad_multipart", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\nno part"},
		{"bad_boundary", "554 5.6.0", "Content-Type: multipart/mixed\n\n"},
		{"bad_boundary", "554 5.6.0", "Content-Type: multipart/mixed; boundary=" + strings.Repeat("x", 201) + "\n\n"},
		{"header_too_large", "554 5.6.0", "X: " + strings.Repeat("a", 68<<10) + "\n\n"},
		{"header_too_large", "554 5.6.0", "X: " + strings.Repeat("a", 1<<20) + "\n\n"},
		{"header_too_large", "554 5.6.0", strings.Repeat("X: a\n", 501) + "\n"},
		{"header_too_large", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\n--x\nX: " + strings.Repeat("a",
			1<<20) + "\n\n"},
		{"header_too_large", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\n--x\n" + strings.Repeat("X: a\n",
			501) + "\n"},
		{"too_deep", "554 5.6.0", nested},
		{"too_many_parts", "554 5.6.0", "Content-Type: multipart/mixed; boundary=x\n\n" + strings.Repeat("--x\n\na\n", 500)},
		{"text_too_large", "552 5.3.4", "\n" + strings.Repeat("a", maxText+1)},
		{"text_too_large", "552 5.3.4", "Content-Type: text/plain; charset=iso-8859-1\n\n" + strings.Repeat("\xfc",
			maxText/2+1)},
	} {
		refused(t, c.code, c.status, c.in)
	}
	m, _ := mail(t, strings.Repeat("X: a\n", 498)+"Content-Type: multipart/mixed; boundary=x\n\n"+
		strings.Repeat("--x\n"+strings.Repeat("X: a\n", 500)+"\na\n", 499)+"--x--")
	require.Equal(t, strings.Repeat("a\n", 498)+"a", m.Text)
	_, err := mailparse.Read(strings.NewReader("From: a@b.c\n\n"+strings.Repeat("a", 20)), 19, nil)
	require.ErrorContains(t, err, "552 5.3.4 The texts")
}

// TestErrorsOfOthers: errors of the reader and of the attachments are returned as they are, and never as the end of the
// message.
func TestErrorsOfOthers(t *testing.T) {
	t.Parallel()
	text := message("Content-Type: multipart/mixed; boundary=m", "", "--m", "", "a", "--m", "Content-Type: image/png",
		"", "x", "--m--")
	broken := errors.New("broken")
	for n := range len(text) {
		for _, cause := range []error{broken, io.ErrUnexpectedEOF} {
			m, _, err := read(io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(cause)))
			require.Nil(t, m, "%d", n)
			require.Equal(t, cause, err, "%d", n)
		}
	}
	fails := func(mailparse.Attachment) (io.Writer, error) { return nil, broken }
	_, err := mailparse.Read(strings.NewReader(text), maxText, fails)
	require.Equal(t, broken, err)
	full := func(mailparse.Attachment) (io.Writer, error) { return brokenWriter{broken}, nil }
	_, err = mailparse.Read(strings.NewReader(text), maxText, full)
	require.Equal(t, broken, err)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestEnvelope(t *testing.T) {
	t.Parallel()
	list := func(s string) (out []models.Address) {
		for _, email := range strings.Fields(s) {
			out = append(out, models.Address{Email: email})
		}
		return out
	}
	for _, c := range []struct{ name, to, cc, recipients, want string }{
		{"one", "a@x", "", "a@x", "together a@x | |"},
		{"several", "a@x b@x", "c@x", "a@x b@x c@x", "together a@x b@x | c@x |"},
		{"the same twice", "a@x A@X", "a@x b@x", "A@x a@x b@x", "together A@x | b@x |"},
		{"a blind copy", "a@x", "", "a@x b@x c@x", "together a@x | | b@x c@x"},
		{"a blind copy beside Cc", "a@x", "b@x", "c@x b@x a@x", "together a@x | b@x | c@x"},
		{"blind copies beside several", "a@x b@x", "", "a@x b@x c@x", "together a@x b@x | | c@x"},
		{"one of two submissions", "a@x b@x", "c@x", "b@x c@x", "together b@x | c@x |"},
		{"one of two submissions with a blind copy", "a@x b@x", "", "a@x c@x", "a@x c@x | |"},
		{"a submission for Cc", "a@x", "b@x", "b@x", "b@x | |"},
		{"a list", "list@x", "", "a@x b@x", "a@x b@x | |"},
		{"undisclosed recipients", "", "", "a@x b@x", "a@x b@x | |"},
		{"more than a mail may have", "a@x b@x c@x d@x", "", "a@x b@x c@x d@x", "a@x b@x c@x d@x | |"},
	} {
		m := mailparse.Mail{To: list(c.to), Cc: list(c.cc)}
		e := m.Envelope(strings.Fields(c.recipients), 3)
		var got []string
		if e.Together {
			got = append(got, "together")
		}
		for i, part := range [][]models.Address{e.To, e.Cc, e.Bcc} {
			if i > 0 {
				got = append(got, "|")
			}
			for _, a := range part {
				got = append(got, a.Email)
			}
		}
		require.Equal(t, c.want, strings.Join(got, " "), c.name)
	}
	m := mailparse.Mail{To: []models.Address{{Email: "a@x", Name: "Ann"}}}
	require.Equal(t, []models.Address{{Email: "A@x", Name: "Ann"}}, m.Envelope([]string{"A@x"}, 50).To)
	require.Equal(t, mailparse.Envelope{To: []models.Address{{Email: "a@x", Name: "Ann"}, {Email: "b@x"}}},
		m.Envelope([]string{"b@x", "a@x"}, 1))
}
