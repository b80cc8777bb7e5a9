package smtp

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
)

// leaf is a part of a mail without parts.
type leaf struct{ kind, disposition, name, id, body string }

// leaves returns the parts of a mail, in order, read with the standard library.
func leaves(t *testing.T, header interface{ Get(string) string }, r io.Reader) (out []leaf) {
	t.Helper()
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	require.NoError(t, err, header.Get("Content-Type"))
	if strings.HasPrefix(kind, "multipart/") {
		for parts := multipart.NewReader(r, params["boundary"]); ; {
			part, err := parts.NextRawPart()
			if err == io.EOF { //nolint:errorlint // as documented
				return out
			}
			require.NoError(t, err)
			out = append(out, leaves(t, part.Header, part)...)
		}
	}
	switch strings.ToLower(header.Get("Content-Transfer-Encoding")) {
	case "quoted-printable":
		r = quotedprintable.NewReader(r)
	case "base64":
		r = base64.NewDecoder(base64.StdEncoding, r)
	}
	body, err := io.ReadAll(r)
	require.NoError(t, err)
	l := leaf{kind: header.Get("Content-Type"), id: strings.Trim(header.Get("Content-Id"), "<>"), body: string(body)}
	if d := header.Get("Content-Disposition"); d != "" {
		var of map[string]string
		l.disposition, of, err = mime.ParseMediaType(d)
		require.NoError(t, err, d)
		l.name, err = new(mime.WordDecoder).DecodeHeader(of["filename"])
		require.NoError(t, err)
	}
	return append(out, l)
}

// lines returns a text with the line breaks of a mail.
func lines(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// TestMails: a hundred mails arrive as they were given, part by part, with the values of their recipient.
func TestMails(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	p := newAdapter(t, s)
	for _, m := range providertest.Mails() {
		c := call(2)
		c.Content, c.Files = &m.Content, m.Files
		for i := range c.Recipients {
			c.Recipients[i].Vars = map[string]string{"name": []string{"<Ann & Söhne>", "Bo"}[i], "order": "A-1"}
		}
		before := len(s.taken())
		require.Equal(t, "accepted accepted", classes(t, c, p.Send(t.Context(), c)), m.Name)
		got := s.taken()[before:]
		require.Len(t, got, 2, m.Name)
		for i := range got {
			sameMail(t, &m, &c.Recipients[i].Recipient, got[i].body)
		}
	}
}

func sameMail(t *testing.T, m *providertest.Mail, to *models.Recipient, raw string) {
	t.Helper()
	for line := range strings.SplitSeq(raw, "\r\n") {
		require.LessOrEqual(t, len(line), 998, m.Name)
	}
	got, err := mail.ReadMessage(strings.NewReader(raw))
	require.NoError(t, err, m.Name)
	decoded := func(name string) string {
		text, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get(name))
		require.NoError(t, err, m.Name)
		return text
	}
	filled := func(text string, html bool) string {
		return models.Rewrite(text, func(name string) string {
			if value := to.Vars[name]; !html {
				return value
			} else {
				return models.EscapeHTML(name, value)
			}
		})
	}
	require.Equal(t, filled(m.Subject, false), decoded("Subject"), m.Name)
	for _, h := range m.Headers {
		require.Equal(t, filled(h.Value, false), decoded(h.Name), m.Name)
	}
	parts := leaves(t, got.Header, got.Body)
	for _, body := range []struct{ kind, text string }{
		{"text/plain", filled(m.Text, false)}, {"text/html", filled(m.HTML, true)},
	} {
		if body.text == "" {
			continue
		}
		require.True(t, strings.HasPrefix(parts[0].kind, body.kind), "%s: %s", m.Name, parts[0].kind)
		require.Equal(t, strings.TrimRight(lines(body.text), "\r\n"), strings.TrimRight(lines(parts[0].body), "\r\n"), m.Name)
		parts = parts[1:]
	}
	require.Len(t, parts, len(m.Files), m.Name)
	for _, part := range parts { // inline files come before the others
		found := false
		for i := range m.Attachments {
			a := &m.Attachments[i]
			disposition := map[bool]string{true: "inline", false: "attachment"}[a.ContentID != ""]
			found = found || part.name == a.Filename && part.id == a.ContentID && part.disposition == disposition &&
				strings.HasPrefix(strings.ReplaceAll(part.kind, " ", ""), strings.ReplaceAll(a.Type, " ", "")) &&
				bytes.Equal([]byte(part.body), m.Files[i])
		}
		require.True(t, found, "%s: %s %s %s %s", m.Name, part.kind, part.disposition, part.name, part.id)
	}
}
