package providertest

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

//go:embed testdata
var files embed.FS

// A Mail is a message as users send it, with the bytes of its attachments.
type Mail struct {
	Name string
	models.Content
	Files [][]byte
}

// attach adds a file of testdata as an attachment.
func (m *Mail) attach(file, name, kind, contentID string) {
	data, err := files.ReadFile("testdata/" + file)
	if err != nil {
		panic(err) // the file is embedded
	}
	sum := sha256.Sum256(data)
	m.Files = append(m.Files, data)
	m.Attachments = append(m.Attachments, models.Attachment{
		Filename:  name,
		Type:      kind,
		ContentID: contentID,
		Size:      int64(len(data)),
		SHA256:    hex.EncodeToString(sum[:]),
	})
}

// Mails returns a hundred messages: every one of ten bodies with every one of ten sets of
// attachments. Their only variables are name and order.
func Mails() []Mail {
	image := `<img src="cid:logo@sender.test" alt="">`
	bodies := []Mail{
		{Name: "text", Content: models.Content{Subject: "Hello", Text: "Hello {{name}},\nyour order {{order}} is here.\n"}},
		{
			Name:    "HTML",
			Content: models.Content{Subject: "Order {{order}}", HTML: "<p>Hello <b>{{name}}</b> & all</p>" + image},
		},
		{
			Name: "newsletter",
			Content: models.Content{Subject: "News for {{name}}: 20 % off", Text: "News\n====\n\n* 20 % off\n",
				HTML: "<!doctype html><html><head><style>td { color: #333 }</style></head><body>" + image +
					strings.Repeat("<table><tr><td>A row for {{name}}</td></tr></table>\n", 50) + "</body></html>",
				Headers: []models.Header{{Name: "List-Id", Value: "<news.sender.test>"}, {Name: "X-Order", Value: "№ {{order}}"}},
				Tags:    []string{"news", "autumn"}},
		},
		{
			Name: "right to left",
			Content: models.Content{Subject: "שלום {{name}}", Text: "مرحبا {{name}}\n\u200fשלום\u200e abc 123\n",
				HTML: "<p dir=\"rtl\">مرحبا {{name}} \u200fשלום\u200e</p>"},
		},
		{
			Name: "emoji",
			Content: models.Content{
				Subject: "🎉 {{name}} 👩\u200d👩\u200d👧\u200d👦",
				Text:    "🎉🇩🇪👍🏽 {{order}}",
				HTML:    "<p>🎉🇩🇪👍🏽 {{order}}</p>",
			},
		},
		{Name: "lines of 998 bytes", Content: models.Content{Subject: strings.Repeat("s", 900),
			Text: strings.Repeat(strings.Repeat("x", 998)+"\r\n", 3), HTML: "<p>" + strings.Repeat("y", 995) + "\n</p>"}},
		{Name: "line breaks", Content: models.Content{Subject: "Breaks", Text: "a\r\nb\nc\r\n\r\n.\r\n..\r\nFrom here\n",
			HTML: "<pre>\ta\r\n b\n</pre>"}},
		{Name: "East Asian", Content: models.Content{Subject: "ご注文 {{order}}", Text: "{{name}} 様\n注文 {{order}} を承りました。",
			HTML: "<p>안녕하세요 {{name}}，你好</p>"}},
		{Name: "literals", Content: models.Content{Subject: `"quoted" \ 100%`, Text: "{name} -name- $x \\n %d \u00a0\u200b|",
			HTML: `<a href="https://x.test/?a=1&amp;b=%20{{order}}">&lt;{{name}}&gt;</a>`}},
		{Name: "one long line", Content: models.Content{Subject: "Long", Text: strings.Repeat("word ", 5_000),
			HTML: "<p>" + strings.Repeat("Wörter ", 5_000) + "</p>"}},
	}
	attached := []struct {
		name   string
		attach func(*Mail)
	}{
		{"nothing", func(*Mail) {}},
		{"PDF", func(m *Mail) { m.attach("invoice.pdf", "invoice.pdf", "application/pdf", "") }},
		{"inline image", func(m *Mail) { m.attach("logo.png", "logo.png", "image/png", "logo@sender.test") }},
		{"image of that name", func(m *Mail) { m.attach("logo.png", "logo@sender.test", "image/png", "logo@sender.test") }},
		{"images and PDF", func(m *Mail) {
			m.attach("logo.png", "logo.png", "image/png", "logo@sender.test")
			m.attach("logo.png", "again.png", "image/png", "second_image+1")
			m.attach("invoice.pdf", "invoice.pdf", "application/pdf", "")
		}},
		{"invitation", func(m *Mail) {
			m.attach("invitation.ics", "invitation.ics", "text/calendar; method=REQUEST", "")
		}},
		{"UTF-8 name", func(m *Mail) { m.attach("invoice.pdf", "Rechnung für März – Größe.pdf", "application/pdf", "") }},
		{"emoji name", func(m *Mail) { m.attach("logo.png", "🎉 photo 👍🏽.png", "image/png", "") }},
		{"quotes in names", func(m *Mail) {
			m.attach("orders.csv", `the "new" orders, 100%'s.csv`, "text/csv", "")
			m.attach("orders.csv", ".htaccess", "application/octet-stream", "")
		}},
		{"equal bytes", func(m *Mail) {
			m.attach("orders.csv", "a.csv", "text/csv", "")
			m.attach("orders.csv", "b.txt", "text/plain", "")
			m.attach("orders.csv", "הזמנות.csv", "application/vnd.ms-excel", "")
		}},
	}
	var out []Mail
	for _, b := range bodies {
		for _, a := range attached {
			m := b
			m.Name += ", " + a.name
			m.From = models.Address{Email: "shop@sender.test", Name: "The Shop"}
			a.attach(&m)
			out = append(out, m)
		}
	}
	return out
}

// testMails sends every mail. Each recipient gets its bodies, and its attachments byte by byte.
func testMails(t *testing.T, s Suite) {
	for _, m := range Mails() {
		t.Run(m.Name, func(t *testing.T) {
			p, rec := serve(t, s)
			c := call(2)
			c.Content, c.Files = &m.Content, m.Files
			if s.Unfit != nil && s.Unfit(c.Content) {
				only(t, c, p.Send(t.Context(), c), models.RejectedHereClass)
				if rec.calls != 0 {
					t.Errorf("%d requests for a mail that it does not take", rec.calls)
				}
				return
			}
			if s.FilesSingly && len(m.Files) > 0 {
				parts := p.Send(t.Context(), c)
				only(t, c, parts, models.RejectedHereClass)
				if parts[0].Fewer != 1 || rec.calls != 0 {
					t.Errorf("a call may have %d recipients, and %d requests were made", parts[0].Fewer, rec.calls)
				}
				c.Recipients = c.Recipients[:1]
			}
			if !taken(t, s, p, rec, c) {
				return
			}
			if rec.calls != 1 {
				t.Errorf("%d requests for one call", rec.calls)
			}
			for i := range rec.copies {
				sameFiles(t, s, rec.copies[i].Files, &m)
			}
			arrived(t, rec.copies, c)
		})
	}
	// A call without the bytes of its attachments is not made.
	p, rec := serve(t, s)
	c := call(2)
	c.Content = &Mails()[1].Content
	only(t, c, p.Send(t.Context(), c), models.RejectedHereClass)
	if rec.calls != 0 {
		t.Errorf("%d requests were made", rec.calls)
	}
}

// sameFiles checks that the attachments of a mail arrived.
func sameFiles(t *testing.T, s Suite, got []File, m *Mail) {
	t.Helper()
	if len(got) != len(m.Files) {
		t.Fatalf("%d attachments of %d", len(got), len(m.Files))
	}
	for i := range got {
		a := &m.Attachments[i]
		want := File{Name: a.Filename, Type: a.Type, ContentID: a.ContentID}
		if s.Untyped {
			want.Type = ""
		}
		if a.ContentID != "" && !s.Carries.InlineNames {
			want.Name = a.ContentID
		}
		file := got[i]
		if !bytes.Equal(file.Data, m.Files[i]) {
			t.Errorf("%s: the bytes differ", a.Filename)
		}
		if file.Data = nil; fmt.Sprint(file) != fmt.Sprint(want) {
			t.Errorf("attachment %+v, want %+v", file, want)
		}
	}
}
