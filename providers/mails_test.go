package providers_test

import (
	"mime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
)

// unfit are the mails that a kind does not take: with a header field that Mailjet refuses, and with a long subject.
var unfit = map[string][]string{simulator.Mailjet: {"newsletter", "lines of 998 bytes"}}

// TestMailsAreTheSame sends a hundred mails through every kind. What comes out is the same, part by
// part, except for what the kinds declare: the number of tags, and the names of inline images.
func TestMailsAreTheSame(t *testing.T) {
	t.Parallel()
	arrived := map[string]simulator.Copy{} // by mail: from the first kind
	for _, kind := range simulated() {
		s := newStage(t, kind)
		for _, m := range providertest.Mails() {
			batch := models.NewBatchID(time.Now())
			c := s.call(batch, 0, "deliver@sim.test")
			c.Recipients[0].Vars = map[string]string{"order": "A-1 & <b>"}
			c.Content, c.Files = &m.Content, m.Files
			body, _, _ := strings.Cut(m.Name, ", ")
			parts := s.adapter.Send(t.Context(), c)
			unfits := slices.Contains(unfit[kind], body) || kind == simulator.Brevo && untaken(&m)
			if unfits && len(parts) == 1 && parts[0].Class == models.RejectedHereClass {
				continue
			}
			if len(parts) != 1 || parts[0].Class != models.Accepted {
				t.Fatalf("%s: %s: %+v", kind, m.Name, parts)
			}
			copies := s.copies(c, 0)
			if len(copies) != 1 {
				t.Fatalf("%s: %s: %d copies", kind, m.Name, len(copies))
			}
			got := normalised(t, copies[0])
			for i := range got.Attachments {
				if kind == simulator.Brevo { // the type is that of the name
					got.Attachments[i].Type = arrived[m.Name].Attachments[i].Type
				}
			}
			if len(got.Attachments) != len(m.Files) {
				t.Errorf("%s: %s: %d attachments of %d", kind, m.Name, len(got.Attachments), len(m.Files))
			}
			for i, a := range got.Attachments {
				if want := m.Attachments[i]; a.SHA256 != want.SHA256 || int64(a.Size) != want.Size {
					t.Errorf("%s: %s: attachment %s has other bytes", kind, m.Name, a.Filename)
				}
			}
			if first, ok := arrived[m.Name]; !ok {
				arrived[m.Name] = got
			} else if difference(first, got) != "" {
				t.Errorf("%s: %s: %s differs", kind, m.Name, difference(first, got))
			}
		}
	}
	if len(arrived) != 100 {
		t.Errorf("%d mails", len(arrived))
	}
}

// untaken reports whether Brevo does not take a mail: with inline images, other names of attachments than documented,
// or header fields of recipients.
func untaken(m *providertest.Mail) bool {
	return len(m.Headers) > 0 || slices.ContainsFunc(m.Attachments, func(a models.Attachment) bool {
		return a.ContentID != "" || a.Filename == ".htaccess"
	})
}

// normalised returns a copy with decoded header fields, and without the names of inline images and the marks of names.
func normalised(t *testing.T, c simulator.Copy) simulator.Copy {
	t.Helper()
	for name, value := range c.Headers {
		decoded, err := new(mime.WordDecoder).DecodeHeader(value)
		if err != nil {
			t.Fatal(err)
		}
		c.Headers[name] = decoded
	}
	c.Name = strings.Trim(c.Name, "<>")
	attachments := append([]simulator.Attachment{}, c.Attachments...)
	for i := range attachments {
		if attachments[i].ContentID != "" {
			attachments[i].Filename = ""
		}
	}
	c.Attachments = attachments
	return c
}

// difference names the parts of two copies that differ.
func difference(a, b simulator.Copy) string {
	var out []string
	add := func(part string, same bool) {
		if !same {
			out = append(out, part)
		}
	}
	add("name", a.Name == b.Name)
	add("subject", a.Subject == b.Subject)
	add("text", a.Text == b.Text)
	add("HTML", a.HTML == b.HTML)
	add("number of headers", len(a.Headers) == len(b.Headers))
	for name := range a.Headers {
		add(name, a.Headers[name] == b.Headers[name])
	}
	add("number of attachments", len(a.Attachments) == len(b.Attachments))
	for i := 0; i < min(len(a.Attachments), len(b.Attachments)); i++ {
		add("attachment "+a.Attachments[i].Filename, a.Attachments[i] == b.Attachments[i])
	}
	return strings.Join(out, ", ")
}
