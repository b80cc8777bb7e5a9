package brevo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestRequests compares requests with testdata/request. A version has only what differs from the others.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	file, same := providertest.SampleCall(1), providertest.SampleCall(2)
	m := providertest.Mails()[21] // with a PDF
	file.Content, file.Files = &m.Content, [][]byte{[]byte("a")}
	file.Content.Headers = []models.Header{{Name: "List-Unsubscribe", Value: "<https://sender.test/u>"}}
	same.Content.Subject, same.Content.Text, same.Content.HTML = "Hello", "", "<p>Hello</p>"
	same.Content.From.Name = "Bäcker, Söhne"
	kindtest.Requests(t, p, map[string]*models.Call{
		"single": file, "same": same, "batch": providertest.SampleCall(3),
	})
}

// TestForeignTags: a tag of a message that looks like ours is left out, because it would name another mail.
func TestForeignTags(t *testing.T) {
	c := providertest.SampleCall(2)
	other := `["` + mailTag + `"]`
	c.Content.Tags = []string{mailTag, "news", other}
	r, refused := adapter(t, "").Compose(c)
	require.Empty(t, refused)
	var in sent
	require.NoError(t, json.Unmarshal(r.Body, &in))
	require.Len(t, in.Tags, 3)
	require.Equal(t, "news", in.Tags[1])
	require.Empty(t, ourTag(parse.Str(in.Tags[2]), nil))
}

// TestUnfit: what Brevo would refuse, drop or garble is refused before the call.
func TestUnfit(t *testing.T) {
	p := adapter(t, "")
	for name, change := range map[string]func(c *models.Content){
		"no subject": func(c *models.Content) { c.Subject = "" },
		"sandbox":    func(c *models.Content) { c.Headers = []models.Header{{Name: "x-sib-sandbox", Value: "drop"}} },
		"our key":    func(c *models.Content) { c.Headers = []models.Header{{Name: "Idempotencykey", Value: "x"}} },
		"8 bit":      func(c *models.Content) { c.Headers = []models.Header{{Name: "X-A", Value: "ü"}} },
		"personal":   func(c *models.Content) { c.Headers = []models.Header{{Name: "X-A", Value: "{{name}}"}} },
		"replies":    func(c *models.Content) { c.ReplyTo = append(c.ReplyTo, c.ReplyTo[0]) },
	} {
		c := providertest.SampleCall(2)
		change(c.Content)
		_, refused := p.Compose(c)
		require.Len(t, refused, 1, name)
		require.Equal(t, models.RejectedHereClass, refused[0].Class, name)
		require.Zero(t, refused[0].Fewer, name)
	}
	for file, ok := range map[string]bool{"a.pdf": true, "A.PDF": true, "a.exe": false, "a": false, "a.": false,
		"pdf":    false,
		"a. pdf": false, "a.pdf csv": false} {
		c := providertest.SampleCall(2)
		c.Content.Attachments, c.Files = []models.Attachment{{Filename: file}}, [][]byte{[]byte("a")}
		_, refused := p.Compose(c)
		require.Equal(t, ok, refused == nil, file)
	}
	large := providertest.SampleCall(2)
	large.Content.Attachments, large.Files = []models.Attachment{{Filename: "a.pdf"}}, [][]byte{make([]byte, 16_000_000)}
	_, refused := p.Compose(large)
	require.Equal(t, models.TooLarge, refused[0].Reason)
}

// TestTemplateCode: no part of a mail reaches Brevo as code of its template language. HTML looks the same, names lose
// their braces, and a subject or a text with code is refused.
func TestTemplateCode(t *testing.T) {
	p := adapter(t, "")
	for _, n := range []int{1, 2} {
		c := providertest.SampleCall(n)
		c.Content.Subject, c.Content.Text, c.Content.HTML = "Hello", "", "<p>{{name}}</p>"
		c.Recipients[0].Name = "{{contact.EMAIL}} {x}"
		c.Recipients[0].Vars["name"] = "{{{7*7}}} {%if%} {#a\n#} {#"
		r, refused := p.Compose(c)
		require.Empty(t, refused)
		require.Contains(t, string(r.Body), `<p>&#123;&#123;{7*7}}} &#123;%if%} &#123;#a\n#} {#</p>`)
		require.Contains(t, string(r.Body), `"name":"contact.EMAIL x"`)
		require.NotContains(t, string(r.Body), "{{")
		for _, change := range []func(){
			func() { c.Content.Subject = "Hello {{name}}" },
			func() { c.Content.Subject, c.Content.Text = "Hello", "Hello {{name}}" },
		} {
			change()
			_, refused = p.Compose(c)
			require.Equal(t, models.RejectedHereClass, refused[0].Class)
			require.Equal(t, models.SetOf(1), refused[0].Recipients, "the others are sent")
		}
	}
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 31) }

// TestSecrets: only the secret in its own form proves who sent a post. A doubled post has the same event, in any order
// of posts. A truncated one has none.
func TestSecrets(t *testing.T) {
	p := adapter(t, "")
	body := []byte(`{"event":"opened","email":"a@b.test","ts_epoch":1795262400000,"message-id":"<m@x.test>",` +
		`"X-Mailin-custom":"{\"sd_log\":\"` + mailLog + `\",\"sd_attempt\":\"1\"}"}`)
	for value, ok := range map[string]bool{
		kindtest.Basic("hook:a long password"):  true,
		"Bearer old-bearer-token":               true,
		"bearer old-bearer-token":               true,
		"":                                      false,
		kindtest.Basic("hook:a long passwor"):   false,
		kindtest.Basic("old-bearer-token"):      false,
		"Basic old-bearer-token":                false,
		"Bearer hook:a long password":           false,
		"Bearer old-bearer-token x":             false,
		"Bearer  old-bearer-token":              false,
		strings.Repeat("Bearer x", 1<<12) + " ": false,
	} {
		h := http.Header{}
		h.Set("Authorization", value)
		_, err := providertest.Verify(p, h, body, time.Now())
		require.Equal(t, ok, err == nil, "%q: %v", value, err)
		require.Equal(t, err, p.VerifyHeader(&models.Webhook{Header: h}), "the header says it all")
	}
	first, again := p.Parse(body), p.Parse(body)
	require.Equal(t, first, again, "a doubled post has the same event")
	later := bytes.Replace(body, []byte("1795262400"), []byte("1795262401"), 1)
	require.NotEqual(t, p.Parse(body).Events[0].Event.ID, p.Parse(later).Events[0].Event.ID)
	require.Empty(t, p.Parse(body[:len(body)-20]).Events, "a truncated post")
	require.Equal(t, http.StatusTooManyRequests, p.RepeatStatus(), "Brevo discards events after another status")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, key := range []string{"short", " user:password", "user:pass\nword"} {
		s := testSettings("")
		s.WebhookKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
	s := testSettings("")
	s.WebhookKey, s.WebhookKeyOld, s.Events = "", "", models.EventsNone
	p, err := New(s)
	require.NoError(t, err)
	_, err = providertest.Verify(p, http.Header{"Authorization": {"Bearer "}}, []byte("{}"), time.Now())
	var refusal *models.WebhookError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "not_configured", refusal.Code)
	require.Equal(t, 15*time.Minute, p.KeyLifetime())
}

const (
	mailLog = "01930000-0000-7000-8abc-def000000001"
	mailTag = "01930000-0000-7000-8abc-def000000000-3"
)

// A fake is a server that has a log of events. Each page but the last is full.
type fake struct {
	t     *testing.T
	total int // events; the first is of ours
	most  int // in a page
	loops bool
	at    time.Time
	asked []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.URL.RequestURI())
	if r.Header.Get("api-key") != "xkeysib-1" || r.URL.Path != "/v3/smtp/statistics/events" {
		f.t.Errorf("%s, key %q", r.URL, r.Header.Get("api-key"))
	}
	var list []string
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	if f.loops {
		offset = 0
	}
	for i := offset; i < min(offset+f.most, f.total); i++ {
		tag := mailTag
		if i > 0 {
			tag = "of another sender"
		}
		list = append(list, fmt.Sprintf(`{"event":"delivered","email":"ann@rcpt.test","date":%q,"messageId":"<%d@x.test>",`+
			`"tag":%q}`,
			f.at.Format(time.RFC3339Nano), i, tag))
	}
	_, _ = fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(list, ","))
}

// TestLookUp asks for the events of an attempt by its tag, and leaves out events of others and of other times.
func TestLookUp(t *testing.T) {
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	f := &fake{t: t, total: 2550, most: 2500, at: at}
	server := httptest.NewServer(f)
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	chunk := providertest.SampleBatch()
	q := models.LookupQuery{From: at.Add(-time.Minute), To: at.Add(time.Minute), Recipient: "ann@rcpt.test",
		Chunks: map[models.ID]bool{chunk: true}, Attempts: map[models.ID][]int{chunk: {3}}}
	var got []models.ParsedEvent
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Len(t, parsed.Events, 1, "%s: %v", body, parsed.Skipped)
		got = append(got, parsed.Events...)
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Len(t, got, 1)
	require.Equal(t, chunk, got[0].Log)
	require.Equal(t, 3, got[0].Event.Attempt)
	require.Equal(t, "ann@rcpt.test", got[0].Address)
	require.Equal(t, at, got[0].Event.At)
	require.Len(t, f.asked, 2)
	require.Equal(t, "/v3/smtp/statistics/events?days=2&email=ann%40rcpt.test&limit=2500&offset=0&sort=asc&tags=%5B%22"+
		"01930000-0000-7000-8abc-def000000000-3%22%5D", f.asked[0])

	hooked := p.Parse([]byte(`{"event":"delivered","email":"ann@rcpt.test","ts_epoch":` +
		strconv.FormatInt(at.UnixMilli(), 10) +
		`,"message-id":"<0@x.test>","X-Mailin-custom":"{\"sd_log\":\"` + mailLog + `\",\"sd_attempt\":\"3\"}"}`))
	require.Equal(t, hooked.Events[0].Event, got[0].Event, "the webhook has the same ID")

	f.total, f.most, f.asked = 150, 100, nil
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Len(t, f.asked, 2, "the pages are smaller")
	require.Contains(t, f.asked[1], "offset=100&")
	f.loops = true
	require.ErrorIs(t, p.LookUp(t.Context(), q, post), models.ErrInvalid)
	f.loops = false

	f.total, f.asked, q.Attempts[chunk] = 1, nil, []int{3, 5}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Len(t, f.asked, 2, "one for each attempt")
	for name, change := range map[string]func(q *models.LookupQuery){
		"of another chunk": func(q *models.LookupQuery) { q.Chunks = map[models.ID]bool{chunk.Chunk(1): true} },
		"too old":          func(q *models.LookupQuery) { q.Chunks, q.From = nil, at.Add(time.Second) },
		"too new":          func(q *models.LookupQuery) { q.Chunks, q.To = nil, at.Add(-time.Second) },
	} {
		other := q
		change(&other)
		got, f.asked = nil, nil
		require.NoError(t, p.LookUp(t.Context(), other, post))
		require.Empty(t, got, name)
		require.Len(t, f.asked, 1)
		require.NotContains(t, f.asked[0], "tags")
	}
	enough := errors.New("enough")
	q = models.LookupQuery{From: at.Add(-time.Minute), To: at.Add(time.Minute)}
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)
}

// TestListPages reads a list of two pages, by days.
func TestListPages(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		n := map[bool]int{true: 100, false: 1}[len(asked) == 1]
		one := `{"email":"ann@rcpt.test","reason":{"code":"hardBounce"},"blockedAt":"2026-11-21T12:00:00Z"}`
		_, _ = w.Write([]byte(`{"contacts":[` + strings.Repeat(one+",", n-1) + one + `]}`))
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	q := models.ListQuery{List: "blockedContacts", To: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	page, err := p.ReadList(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, "100", page.Next)
	require.Len(t, page.Entries, 100)
	q.Cursor, q.From = page.Next, q.To.Add(-time.Hour)
	page, err = p.ReadList(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, page.Next)
	require.Equal(t, []string{"limit=100&offset=0&sort=asc",
		"endDate=2026-11-22&limit=100&offset=100&sort=asc&startDate=2026-11-20"}, asked)
}

// TestInspect asks a server that answers as Brevo does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/br"
	all := `"events":["sent","delivered","deferred","softBounce","hardBounce","invalid","blocked","spam","unsubscribed",` +
		`"opened","uniqueOpened","click"]`
	for name, c := range map[string]struct {
		account, domains, webhooks string
		status                     int
		want                       []string
	}{
		"all is well": {`{"relay":{"enabled":true}}`, `{"domains":[{"domain_name":"example.com","authenticated":true}]}`,
			`{"webhooks":[{"url":"` + hook + `","auth":{"type":"bearer","token":"x"},` + all + `}]}`, 200,
			[]string{"ok may send mail", "ok example.com is authenticated", "ok go to " + hook, "ok have a secret"}},
		"in the URL": {`{"relay":{"enabled":true}}`, `{"domains":[]}`,
			`{"webhooks":[{"url":"https://u:p@mail.example.com/webhooks/br",` + all + `}]}`, 200,
			[]string{"ok may send mail", "ok go to " + hook, "ok have a secret"}},
		"nothing is": {`{"relay":{"enabled":false}}`, `{"domains":[{"domain_name":"example.com"}]}`,
			`{"webhooks":[{"url":"` + hook + `","events":["request"]},{"url":"https://x.test/","auth":{},` + all + `}]}`, 200,
			[]string{"wrong is of an account that may not send", "wrong example.com is not authenticated",
				"wrong do not go to " + hook + " for: delivered, deferred, ", "wrong have no secret"}},
		"no webhook": {`{"relay":{"enabled":true}}`, `{}`, "", 200,
			[]string{"ok may send mail", "wrong do not go to " + hook + " for: request, delivered, "}},
		"wrong key": {`{"code":"unauthorized"}`, "", "", 401, []string{"wrong Brevo refuses the key (401)"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := map[string]string{"/v3/account": c.account, "/v3/senders/domains": c.domains, "/v3/webhooks": c.webhooks}
			if w.WriteHeader(map[bool]int{true: c.status, false: 404}[body[r.URL.Path] != ""]); body[r.URL.Path] != "" {
				_, _ = w.Write([]byte(body[r.URL.Path]))
			}
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	f.Add(kindtest.Basic("hook:another password"))
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, value string) {
		_, err := providertest.Verify(p, http.Header{"Authorization": {value}}, []byte("{}"), time.Now())
		scheme, token, _ := strings.Cut(value, " ")
		ours := strings.EqualFold(scheme, "bearer") && token == "old-bearer-token" ||
			strings.EqualFold(scheme, "basic") && "Basic "+token == kindtest.Basic("hook:a long password")
		if (err == nil) != ours {
			t.Errorf("%q: %v", value, err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, a.Header["X-Sib-Ratelimit-Reset"], []byte(a.Body))
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, reset string, body []byte) {
		x := transport.Answer{Status: status, Header: http.Header{"X-Sib-Ratelimit-Reset": {reset}}, Body: body}
		providertest.Check(t, c, p.classify(c, x, time.Now()))
	})
}

func BenchmarkSend1000(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 1000, 1) }
