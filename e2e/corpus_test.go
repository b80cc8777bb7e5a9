//go:build full

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// letter is a mail of the corpus. Programs in other languages read it from corpus.json.
type letter struct {
	Subject   string            `json:"subject"` // unique
	Name      string            `json:"name"`    // of the sender
	From      string            `json:"from"`
	To        []string          `json:"to"`
	CC        []string          `json:"cc"`
	BCC       []string          `json:"bcc"`
	ReplyTo   string            `json:"reply_to"`
	MessageID string            `json:"message_id"`
	Text      string            `json:"text"`
	HTML      string            `json:"html"`
	Headers   map[string]string `json:"headers"`
	Files     []letterFile      `json:"files"`
	At        *time.Time        `json:"at"` // scheduled if it is set
}

// letterFile is an attachment. It is inline if it has a content id.
type letterFile struct {
	Name      string            `json:"name"`
	Type      string            `json:"type"`
	Params    map[string]string `json:"params"`
	ContentID string            `json:"content_id"`
	Content   []byte            `json:"content"` // base64 in JSON
}

// corpus returns the mails that every client sends.
func corpus() []letter {
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	at := time.Now().Add(time.Hour).Truncate(time.Second).UTC()
	letters := []letter{
		{Subject: "plain", Text: "Hällo {{you}}\n.\n..two\nFrom here\n100% %recipient.x%"},
		{
			Subject: "html", Text: "Grüße", HTML: "<p>Grüße & {{x}}</p>", ReplyTo: "help@demo.test",
			MessageID: "<corpus-7@app.test>", Headers: map[string]string{"X-Order": "№ 7"},
		},
		{Subject: "attachment", Text: "t", Files: []letterFile{
			{Name: "Größe a.pdf", Type: "application/pdf", Content: bytes},
			{Name: "b.csv", Type: "text/csv", Content: []byte("größe;1\r\n")},
		}},
		{Subject: "inline", HTML: `<img src="cid:logo@app.test">`, Files: []letterFile{
			{Name: "logo.png", Type: "image/png", ContentID: "logo@app.test", Content: bytes},
		}},
		{Subject: "calendar", Text: "t", HTML: "<p>t</p>", Files: []letterFile{{
			Name: "a.ics", Type: "text/calendar", Params: map[string]string{"method": "REQUEST"},
			Content: []byte("BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n"),
		}}},
		{Subject: strings.TrimSpace(strings.Repeat("Größe 日本語 🎉 ", 12)), Text: "日本語"},
		{
			Subject: "together", Text: "t", To: []string{"ann@demo.test", "bob@demo.test"},
			CC: []string{"cc@demo.test"}, BCC: []string{"bcc@demo.test"},
		},
		{Subject: "scheduled", Text: "t", At: &at},
	}
	for i := range letters {
		l := &letters[i]
		l.Name, l.From = "Größe & Co", "shop@demo.test"
		if l.To == nil {
			l.To = []string{fmt.Sprintf("reader%d@demo.test", i)}
		}
	}
	return letters
}

// writeCorpus writes the corpus where the programs run.
func (f *foreign) writeCorpus(letters []letter) {
	f.t.Helper()
	raw, err := json.Marshal(letters)
	require.NoError(f.t, err)
	f.write("corpus.json", string(raw))
}

// write writes a file where the programs run.
func (f *foreign) write(name, content string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.folder, name), []byte(content), 0o600))
}

// recipe returns the settings of an application in docs/switch.md, one a line, with the addresses of the product. If
// the page has several rows of the application, has is in the right one.
func (f *foreign) recipe(application, has string) string {
	f.t.Helper()
	page, err := os.ReadFile("../docs/switch.md")
	require.NoError(f.t, err)
	for line := range strings.Lines(string(page)) {
		row, found := strings.CutPrefix(line, "| "+application+" |")
		if !found || !strings.Contains(row, has) {
			continue
		}
		var settings []string
		for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			settings = append(settings, code[1])
		}
		return strings.NewReplacer("https://mail.example.com", "http://"+f.addr, "mail.example.com", "127.0.0.1",
			"news.example.com", "demo.test", "587", f.smtpPort).Replace(strings.Join(settings, "\n") + "\n")
	}
	require.Fail(f.t, "docs/switch.md has no row", "%s %s", application, has)
	return ""
}

// arrived requires that the providers have each mail of the corpus once, as its client meant it. There is no other mail
// but those with the subjects in besides.
func (f *foreign) arrived(letters []letter, besides ...string) {
	f.t.Helper()
	batches := map[string][]client.Batch{}
	for b, err := range f.client.Batches(f.t.Context(), client.ListOptions{}) {
		require.NoError(f.t, err)
		batches[b.Subject] = append(batches[b.Subject], b)
	}
	for _, l := range letters {
		require.Len(f.t, batches[l.Subject], 1, l.Subject)
		b := batches[l.Subject][0]
		if l.At != nil {
			require.Equal(f.t, client.BatchScheduled, b.State)
			require.Equal(f.t, *l.At, b.DeliverAt.UTC())
			continue
		}
		f.done(f.id(b.ID))
		f.same(l, f.id(b.ID).Log(1).String())
	}
	require.Len(f.t, batches, len(letters)+len(besides))
}

// same requires that the providers have a mail, once for each recipient, as its client meant it.
func (f *foreign) same(l letter, log string) {
	f.t.Helper()
	copies := f.sim.Copies(log)
	require.Len(f.t, copies, 1, l.Subject)
	c := decoded(f.t, &copies[0])
	require.Equal(f.t, l.Subject, c.Subject)
	require.Contains(f.t, c.From, l.From)
	require.Equal(f.t, l.To[0], c.Address)
	require.ElementsMatch(f.t, append(append([]string{}, l.To[1:]...), l.CC...), c.Visible, l.Subject)
	for _, address := range l.BCC {
		hidden := f.sim.Copies(log + "/" + address)
		require.Len(f.t, hidden, 1, l.Subject)
		require.Equal(f.t, "bcc", hidden[0].Role)
	}
	html, files := l.HTML, []simulator.Attachment{}
	for i, file := range l.Files {
		sum := sha256.Sum256(file.Content)
		a := simulator.Attachment{
			Filename: file.Name, Type: file.Type, Size: len(file.Content), SHA256: hex.EncodeToString(sum[:]),
		}
		require.Greater(f.t, len(c.Attachments), i, l.Subject)
		if file.ContentID != "" {
			a.Filename = "" // decoded leaves it out
			a.ContentID = c.Attachments[i].ContentID
			require.NotEmpty(f.t, a.ContentID)
			html = strings.ReplaceAll(html, "cid:"+file.ContentID, "cid:"+a.ContentID)
		}
		files = append(files, a)
		for name, value := range file.Params {
			require.Contains(f.t, c.Attachments[i].Type, name+"="+value, l.Subject)
		}
	}
	for i := range c.Attachments {
		c.Attachments[i].Type, _, _ = strings.Cut(c.Attachments[i].Type, ";")
	}
	require.ElementsMatch(f.t, files, c.Attachments, l.Subject)
	require.Equal(f.t, l.Text, c.Text, l.Subject)
	require.Equal(f.t, html, c.HTML, l.Subject)
	require.Equal(f.t, l.ReplyTo, c.Headers["Reply-To"])
	for name, value := range l.Headers {
		require.Equal(f.t, value, c.Headers[name], l.Subject)
	}
	require.Contains(f.t, c.Headers["Message-Id"]+c.Headers["References"], l.MessageID)
}
