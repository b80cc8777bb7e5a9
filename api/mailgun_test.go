package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mailgungo "github.com/mailgun/mailgun-go/v4"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

const domain = "mail.example.com"

// mailgunFixture is a fixture whose server speaks the API of Mailgun.
func mailgunFixture(t *testing.T, change ...func(*setup)) *fixture {
	t.Helper()
	return newFixture(t, append(change, func(s *setup) { s.cfg.Dialects = []*dialect.Dialect{mailgun.New()} })...)
}

// multiform posts a form of parts: pairs of names and values. A name with a type is a file.
func (f *fixture) multiform(path string, pairs ...string) *reply {
	f.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		name, file, isFile := strings.Cut(pairs[i], "|")
		h := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name=%q`, name)}}
		if isFile {
			file, kind, _ := strings.Cut(file, "|")
			h.Set("Content-Disposition", fmt.Sprintf(`form-data; name=%q; filename=%q`, name, file))
			h.Set("Content-Type", kind)
		}
		part, err := w.CreatePart(h)
		require.NoError(f, err)
		_, err = part.Write([]byte(pairs[i+1]))
		require.NoError(f, err)
	}
	require.NoError(f, w.Close())
	return f.do(http.MethodPost, path, w.FormDataContentType(), &b)
}

// queued checks the answer of Mailgun to a message, and returns its id without < and >.
func (f *fixture) queued(r *reply) string {
	f.Helper()
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	v := r.object(f)
	require.Equal(f, "Queued. Thank you.", v["message"])
	id := v["id"].(string)
	require.Regexp(f, `^<.+@.+>$`, id)
	return strings.Trim(id, "<>")
}

// batches returns all batches of the user, oldest first, with their recipients.
func (f *fixture) batches() (out []models.Batch, to [][]models.Recipient) {
	f.Helper()
	page := read[batchList](f, "/v1/batches?limit=100")
	for i := len(page.Batches) - 1; i >= 0; i-- {
		b, err := f.store.Store.Batch(f.Context(), page.Batches[i].ID)
		require.NoError(f, err)
		var all []models.Recipient
		for n := range b.Chunks {
			rs, err := f.store.Store.Recipients(f.Context(), b.ID.Chunk(n))
			require.NoError(f, err)
			all = append(all, rs...)
		}
		out, to = append(out, b), append(to, all)
	}
	return out, to
}

// shown returns subject, text and HTML of the mail to a recipient.
func shown(b *models.Batch, r *models.Recipient) (subject, text, html string) {
	c := &b.Content
	return r.Fill(c.Subject, nil), r.Fill(c.Text, nil), r.Fill(c.HTML, models.EscapeHTML)
}

// TestMailgunMessage: one mail goes to all addresses, with everything that the form says.
func TestMailgunMessage(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Attachments: true, Inline: true, Headers: true,
		Variables: true}
	f.serve(f.server.cfg)
	id := f.queued(f.multiform("/v3/"+domain+"/messages/", "from", `"Shop, Inc." <shop@mail.example.com>`,
		"to", `"Smith, Ann" <ann@example.com>, bob@example.com`, "to[]", "eve@example.com", "cc", "cc@example.com", "bcc", "bcc@example.com",
		"subject", "Hi {{you}}", "text", "{{literal", "html", "<p>%recipient.x% {%recipient_name%}</p>",
		"h:Reply-To", "help@example.com", "h:X-Order", "a\r\nb", "h:Sender", "x@y", "h:Message-Id", "Message-ID: <own@mail.example.com>",
		"h:List-Unsubscribe", "<https://x.y/u>, <%tag_unsubscribe_email%>",
		"v:order", `{"id": 1}`, "o:tag", "größe/2", "o:tag", "b", "o:tracking", "yes", "o:tracking-clicks", "no",
		"o:deliverytime", "Fri, 25 Dec 2020 18:00:00 +0100", "amp-html", "x", "o:dkim", "yes",
		"attachment[0]|a/b.pdf|application/pdf", "%PDF", "attachment|A.PNG|application/octet-stream", "x",
		"attachment|b.bin|application/octet-stream", "x"))
	require.Equal(t, "own@mail.example.com", id)
	bs, to := f.batches()
	b, c := bs[0], bs[0].Content
	require.Equal(t, &models.Envelope{To: 3, CC: 1, BCC: 1}, b.Envelope)
	require.Equal(t, "mailgun", b.Via)
	require.Equal(t, models.Address{Email: "ann@example.com", Name: "Smith, Ann"}, models.Address{Email: to[0][0].Email,
		Name: to[0][0].Name})
	require.Equal(t, "Shop, Inc.", c.From.Name)
	subject, text, html := shown(&b, &to[0][0])
	require.Equal(t, []string{"Hi {{you}}", "{{literal", "<p>%recipient.x% {Smith, Ann}</p>"}, []string{subject, text,
		html})
	require.Equal(t, "help@example.com", c.ReplyTo[0].Email)
	require.Equal(t, []models.Header{{Name: "X-Order", Value: "a b"}, {Name: "List-Unsubscribe", Value: "<https://x.y/u>"},
		{Name: "Message-ID", Value: "<own@mail.example.com>"}}, c.Headers)
	require.Equal(t, map[string]string{"order": `{"id": 1}`}, b.Metadata)
	require.Equal(t, []string{"größe/2", "b"}, c.Tags)
	require.True(t, c.TrackOpens)
	require.False(t, c.TrackClicks)
	require.True(t, b.DeliverAt.IsZero())
	require.Len(t, c.Attachments, 3)
	require.Equal(t, []string{"application/pdf", "image/png", "application/octet-stream"}, // by the name if the client has none
		[]string{c.Attachments[0].Type, c.Attachments[1].Type, c.Attachments[2].Type})
}

// TestMailgunVariables: with recipient-variables each recipient has a mail of its own, with raw values.
func TestMailgunVariables(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	vars := `{"Ann@Example.com": {"name": "A & <b>", "n": 7, "v:k": "own", "unsubscribe_url": "https://u", "nested": "%recipient.n%"}, "bob@example.com": {}}`
	id := f.queued(f.multiform("//v3/"+domain+"//messages", "from", "shop@mail.example.com", "to", "ann@example.com",
		"to", "Bob <bob@example.com>",
		"recipient-variables", vars, "subject", "%recipient.n%", "html", "<i>%recipient.name%</i> %recipient.nested% 100% {%recipient.n%",
		"text", "%recipient% %recipient_email% %recipient.unsubscribe_url%", "h:X-N", "%recipient.n%", "v:k", "%recipient.v:k%", "v:raw", "%recipient.n%x"))
	bs, to := f.batches()
	subject, text, html := shown(&bs[0], &to[0][0])
	require.Equal(t, []string{"7", "ann@example.com ann@example.com https://u", "<i>A & <b></i> %recipient.n% 100% {7"},
		[]string{subject, text, html})
	subject, text, html = shown(&bs[0], &to[0][1])
	require.Equal(t, []string{"%recipient.n%", "Bob <bob@example.com> bob@example.com %recipient.unsubscribe_url%",
		"<i>%recipient.name%</i> %recipient.nested% 100% {%recipient.n%"}, []string{subject, text, html})
	require.Equal(t, "7", to[0][0].Fill(bs[0].Content.Headers[0].Value, nil))
	require.Equal(t, []map[string]string{{"k": "own"}, nil}, []map[string]string{to[0][0].Metadata, to[0][1].Metadata})
	require.Equal(t, map[string]string{"raw": "%recipient.n%x"}, bs[0].Metadata)
	require.Equal(t, "<"+id+">", bs[0].Content.MessageID(&to[0][0]))
	require.Nil(t, bs[0].Envelope)
}

// TestMailgunMistakes: errors have Mailgun's shape, and name the field first.
func TestMailgunMistakes(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	valid := []string{"from", "shop@mail.example.com", "to", "ann@example.com", "subject", "s", "text", "t"}
	for want, change := range map[string][]string{
		"to parameter is missing":                                    {"to", ""},
		"to parameter is not a valid address":                        {"to", "ann"},
		"from parameter is not valid":                                {"from", ""},
		"Need at least one of 'text' or 'html' parameters specified": {"text", ""},
		"recipient-variables parameter is not valid":                 {"recipient-variables", "[1]"},
		"o:deliverytime parameter is not valid":                      {"o:deliverytime", "tomorrow"},
		"o:require-tls parameter is not valid":                       {"o:require-tls", "true"},
		"o:time-zone-localize parameter is not valid":                {"o:time-zone-localize", "02:00PM"}, //nolint:misspell // theirs
		"template parameter is not valid. You have no template":      {"template", "none"},
		"h:X Y parameter is not valid":                               {"h:X Y", "z"},
		"cc parameter is not a valid address":                        {"cc", "unknown"},
		"cc parameter is not valid. With recipient-variables": {"cc", "a@b.de", "to", "a@b.de,c@d.de",
			"recipient-variables", `{"a@b.de": {}}`},
		"Too many recipients, max is 1000":                                  {"to", list(1001, `a%d@b.de`)},
		"subject parameter is not valid. The subject is longer than":        {"subject", strings.Repeat("x", 999)},
		"h:Message-ID parameter is not valid. A Message-ID is <name@domain": {"h:Message-Id", "a b"},
	} {
		pairs := append([]string{}, valid...)
		for i := 0; i < len(change); i += 2 {
			for k := 0; k < len(pairs); k += 2 {
				if pairs[k] == change[i] {
					pairs = append(pairs[:k], pairs[k+2:]...)
				}
			}
			pairs = append(pairs, change[i], change[i+1])
		}
		r := f.multiform("/v3/"+domain+"/messages", pairs...)
		require.Equal(t, http.StatusBadRequest, r.Status, "%s: %s", want, r.Body)
		require.Contains(t, r.object(t)["message"], want)
	}
	for path, want := range map[string]int{"/v3/none/messages": 404, "/v3/" + domain + "/routes": 404, "/v3/x": 404} {
		r := f.multiform(path, valid...)
		require.Equal(t, want, r.Status, path)
		require.NotEmpty(t, r.object(t)["message"], path)
		require.Contains(t, r.Header.Get("Content-Type"), "application/json")
	}
	r := f.get("/v3/" + domain + "/messages")
	require.Equal(t, http.StatusMethodNotAllowed, r.Status)
	require.NotEmpty(t, r.object(t)["message"])
	r = f.do(http.MethodPost, "/v3/"+domain+"/messages", "text/plain", strings.NewReader("x"))
	require.Equal(t, http.StatusBadRequest, r.Status)
	r = f.do(http.MethodPost, "/v3/"+domain+"/messages", "", nil, "Authorization", "Basic YXBpOng=")
	require.Equal(t, http.StatusUnauthorized, r.Status)
	require.Equal(t, "Forbidden", r.object(t)["message"])
	bs, _ := f.batches()
	require.Empty(t, bs)
}

// TestMailgunClient: the client that Mailgun publishes sends, reads events in pages, and changes suppressions.
func TestMailgunClient(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	ctx := t.Context()
	mg := mailgungo.NewMailgun(domain, f.secret)
	mg.SetAPIBase(f.url + "/v3")
	m := mailgungo.NewMessage("shop@mail.example.com", "Hi %recipient.name%", "text")
	for i := range 5 {
		require.NoError(t, m.AddRecipientAndVariables(fmt.Sprintf("a%d@example.com", i), map[string]any{"name": i}))
	}
	m.SetHTML("<p>%recipient.name%</p>")
	require.NoError(t, m.AddTag("spring letter"))
	require.NoError(t, m.AddVariable("campaign", "x"))
	m.SetDeliveryTime(time.Now().Add(-time.Minute))
	answer, id, err := mg.Send(ctx, m)
	require.NoError(t, err)
	require.Equal(t, "Queued. Thank you.", answer)
	bs, _ := f.batches()
	fed := &fed{fixture: f, Writer: feed.NewWriter(f.store)}
	fed.end(bs[0].ID, 5, 1, 2, 3, 4, 5)

	it := mg.ListEvents(&mailgungo.ListEventOptions{Limit: 2, ForceAscending: true, Begin: time.Now().Add(-time.Hour),
		Filter: map[string]string{"tags": `"spring letter"`}})
	var got []string
	var page []mailgungo.Event
	for it.Next(ctx, &page) {
		for _, e := range page {
			raw, err := json.Marshal(e)
			require.NoError(t, err)
			var one struct {
				Event, Recipient, Severity string
				Tags                       []string
				Variables                  map[string]string `json:"user-variables"`
				Message                    struct{ Headers map[string]string }
				Status                     struct{ Code int } `json:"delivery-status"`
			}
			require.NoError(t, json.Unmarshal(raw, &one))
			require.Equal(t, "failed permanent 550", fmt.Sprint(one.Event, " ", one.Severity, " ", one.Status.Code))
			require.Equal(t, map[string]string{"campaign": "x"}, one.Variables)
			require.Equal(t, strings.Trim(id, "<>"), one.Message.Headers["message-id"])
			require.Equal(t, "Hi "+one.Recipient[1:2], one.Message.Headers["subject"])
			got = append(got, one.Recipient)
		}
	}
	require.NoError(t, it.Err())
	require.Equal(t, []string{"a0@example.com", "a1@example.com", "a2@example.com", "a3@example.com", "a4@example.com"},
		got)

	require.NoError(t, mg.AddBounce(ctx, "a+b/c@example.com", "550", "no such user"))
	require.NoError(t, mg.CreateUnsubscribe(ctx, "u@example.com", "*"))
	b, err := mg.GetBounce(ctx, "a+b/c@example.com")
	require.NoError(t, err)
	require.Equal(t, "550", b.Code)
	var bounces []mailgungo.Bounce
	list := mg.ListBounces(nil)
	require.True(t, list.Next(ctx, &bounces))
	require.Len(t, bounces, 1)
	require.NoError(t, mg.DeleteBounce(ctx, "a+b/c@example.com"))
	_, err = mg.GetBounce(ctx, "a+b/c@example.com")
	require.ErrorContains(t, err, "404")
	require.NoError(t, mg.DeleteUnsubscribe(ctx, "u@example.com"))

	other := mailgungo.NewMailgun("other.example.com", f.secret)
	other.SetAPIBase(f.url + "/v3")
	none := other.ListEvents(&mailgungo.ListEventOptions{ForceAscending: true})
	require.False(t, none.Next(ctx, &page), "events are of a domain")
	require.NoError(t, none.Err())
}

// TestMailgunMIME: a whole message is sent as it was meant, to the addresses of the form.
func TestMailgunMIME(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	f.deps.Providers[0].Carries = models.Capabilities{Copies: true, Attachments: true, Inline: true, Headers: true,
		Variables: true}
	f.serve(f.server.cfg)
	mg := mailgungo.NewMailgun(domain, f.secret)
	mg.SetAPIBase(f.url + "/v3")
	raw := "From: =?utf-8?q?B=C3=A4r?= <shop@mail.example.com>\r\nTo: Ann <ann@example.com>\r\nCc: cc@example.com\r\n" +
		"Subject: Hi {{you}}\r\nMessage-ID: <m1@app.example.com>\r\nX-A: b\r\nX-Mailgun-Tag: in message\r\n" +
		"X-Mailgun-Track: yes\r\nX-Mailgun-Variables: {\"k\": \"in message\", \"m\": \"in message\"}\r\n" +
		"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: text/html\r\n\r\n" +
		"<p>{{x}} %recipient.y%</p>\r\n--x\r\nContent-Type: text/calendar; method=CANCEL\r\n" +
		"Content-Disposition: attachment; filename=a.ics\r\n\r\nBEGIN\r\n--x--\r\n"
	m := mailgungo.NewMIMEMessage(io.NopCloser(strings.NewReader(raw)), "ann@example.com", "cc@example.com",
		"hidden@example.com")
	require.NoError(t, m.AddTag("in form"))
	require.NoError(t, m.AddVariable("k", "v"))
	m.SetTrackingClicks(false)
	_, id, err := mg.Send(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, "<m1@app.example.com>", id)
	bs, to := f.batches()
	require.Equal(t, &models.Envelope{CC: 1, BCC: 1}, bs[0].Envelope)
	c := &bs[0].Content
	subject, _, html := shown(&bs[0], &to[0][0])
	require.Equal(t, []string{"Bär", "Hi {{you}}", "<p>{{x}} %recipient.y%</p>"}, []string{c.From.Name, subject,
		strings.TrimSpace(html)})
	require.Equal(t, []string{"in message", "in form"}, c.Tags)
	require.Equal(t, map[string]string{"k": "v", "m": "in message"}, bs[0].Metadata)
	require.Equal(t, []bool{true, false}, []bool{c.TrackOpens, c.TrackClicks}, "the form counts before the message")
	require.Equal(t, "text/calendar", c.Attachments[0].Type)
	require.Equal(t, "<m1@app.example.com>", c.MessageID(&to[0][0]))

	for want, message := range map[string]string{
		"signed": "From: a@mail.example.com\r\nContent-Type: multipart/signed; boundary=x\r\n\r\n--x\r\n\r\na\r\n--x--\r\n",
		"From":   "Subject: x\r\n\r\ntext",
	} {
		r := f.multiform("/v3/"+domain+"/messages.mime", "to", "a@b.de", "message|m|message/rfc822", message)
		require.Equal(t, http.StatusBadRequest, r.Status)
		require.Contains(t, r.object(t)["message"], want)
	}
	r := f.multiform("/v3/"+domain+"/messages.mime", "to", "a@b.de")
	require.Contains(t, r.object(t)["message"], "message parameter is missing")
}

// ghost posts a newsletter as Ghost does: each reader as a part of its own.
func (f *fixture) ghost(readers ...string) *reply {
	f.Helper()
	vars := map[string]map[string]string{}
	pairs := []string{"from", "Blog <blog@mail.example.com>", "subject", "News", "html",
		"<a href='%recipient.url%'>x</a>", "text", "x",
		"o:tag", "bulk-email", "o:tag", "ghost-email", "v:email-id", "65f0c0ffee65f0c0ffee65f0"}
	for _, r := range readers {
		vars[r] = map[string]string{"url": "https://x.y/" + r}
		pairs = append(pairs, "to", r)
	}
	raw, err := json.Marshal(vars)
	require.NoError(f, err)
	return f.multiform("/v3/"+domain+"/messages", append(pairs, "recipient-variables", string(raw))...)
}

// TestMailgunNewsletter: repeats of a newsletter, also with readers in other groups, reach each reader once.
func TestMailgunNewsletter(t *testing.T) {
	t.Parallel()
	f := mailgunFixture(t)
	var readers []string
	for i := range 1000 {
		readers = append(readers, fmt.Sprintf("reader%d@example.com", i))
	}
	id := f.queued(f.ghost(readers[:600]...))
	for _, group := range [][]string{readers[:600], readers[400:], readers, {"Reader7@Example.com"}} {
		require.Equal(t, id, f.queued(f.ghost(group...)))
	}
	bs, to := f.batches()
	seen := map[string]int{}
	for i := range to {
		for k := range to[i] {
			seen[to[i][k].Email]++
			_, _, html := shown(&bs[i], &to[i][k])
			require.Equal(t, "<a href='https://x.y/"+to[i][k].Email+"'>x</a>", html)
			require.Equal(t, "<"+id+">", bs[i].Content.MessageID(&to[i][k]))
		}
	}
	require.Len(t, seen, 1000)
	for reader, n := range seen {
		require.Equal(t, 1, n, reader)
	}
	require.Equal(t, http.StatusBadRequest, f.ghost("new@example.com", "unknown").Status)
	require.NotContains(t, fmt.Sprint(f.batches()), "new@example.com", "nothing of a refused request is sent")
}

// TestMailgunRepeat: a request whose client left before the answer is not sent again by an equal one. One that was answered
// is: two equal mails can be meant.
func TestMailgunRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := mailgunFixture(t, inBubble)
		form := url.Values{"from": {"shop@mail.example.com"}, "to": {"ann@example.com"}, "subject": {"s"}, "text": {"t"}}
		post := func(ctx context.Context) (*http.Response, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v3/"+domain+"/messages",
				strings.NewReader(form.Encode()))
			require.NoError(t, err)
			req.SetBasicAuth("api", f.secret)
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			return f.client.Do(req)
		}
		ctx, leave := context.WithCancel(t.Context())
		stored := make(chan struct{})
		f.store.fail["PutBatch"] = func(n int) error {
			if n == 1 {
				leave()
				<-stored
			}
			return nil
		}
		_, err := post(ctx)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		close(stored)
		synctest.Wait()
		for range 3 {
			answer, err := post(t.Context())
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, answer.StatusCode)
			_ = answer.Body.Close()
		}
		bs, _ := f.batches()
		require.Len(t, bs, 3, "the second request is a repeat, and the others are not")
	})
}
