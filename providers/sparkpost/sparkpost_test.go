package sparkpost

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestRequests compares requests with testdata/request.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	files := kindtest.Files(2, "{{name}}")
	files.Content.HTML, files.Content.TrackOpens = "<style>td { a: b }@media x{a{b:c}}</style><p>{{name}}</p>", true
	kindtest.Requests(t, p, map[string]*models.Call{
		"files": files, "batch": providertest.SampleCall(2), "together": kindtest.Together(),
	})
}

// TestNothingIsATemplate: braces of a message, a value, a name or a header field arrive as they are, or as spaces in
// names. read fails if SparkPost would read code in a template.
func TestNothingIsATemplate(t *testing.T) {
	for _, odd := range []string{
		"{{env_from}}", "{{{env_from}}}", "{", "}", "{{", "}}", "}}}", "{{{{", "a{{if x}}b{{end}}", "{ {a} }", "{%x%}",
		`{"a":{"b":1}}`, "{{ opening_double_curly() }}", "{{v0}}", "{{{sd_o}}}", "{a}{{b}}{", "}{", "{\n{", "&{{&}}<",
	} {
		for _, content := range []string{
			"{{v}}", "{{{v}}}", "x{{v}}{{v}}y", "{{{{" + odd + "{{v}}" + odd, "{" + odd + " {{v}} }" + odd,
		} {
			c := providertest.SampleCall(2)
			c.Content = &models.Content{From: models.Address{Email: "shop@sender.test", Name: "S " + odd},
				ReplyTo: []models.Address{{Email: "help@sender.test", Name: odd}}, Subject: "s" + content, Text: content,
				HTML: content, Headers: []models.Header{{Name: "X-Odd", Value: content}}}
			for i := range c.Recipients {
				c.Recipients[i].Name, c.Recipients[i].Vars = odd, map[string]string{"v": odd}
			}
			arrivesFilled(t, c, content, odd)
			c.Content.Subject, c.Content.Text, c.Content.HTML, c.Content.Headers[0].Value = "s"+odd, odd, odd, odd
			arrivesFilled(t, c, odd, odd)
		}
	}
}

// arrivesFilled checks what the first recipient of a call gets, unless it lacks a value.
func arrivesFilled(t *testing.T, c *models.Call, content, value string) {
	t.Helper()
	got, ok := arrives(t, c)
	if !ok {
		return
	}
	want := models.Rewrite(content, func(string) string { return value })
	require.Equal(t, want, got.Text)
	require.Equal(t, models.Rewrite(content, func(string) string { return models.EscapeHTML("v", value) }), got.HTML)
	require.Equal(t, models.OneLine("s"+want), got.Subject)
	require.Equal(t, models.OneLine(want), got.Headers["X-Odd"])
}

// arrives returns what the first recipient of a call gets. It is not sent if it lacks a value.
func arrives(t *testing.T, c *models.Call) (got providertest.Copy, ok bool) {
	t.Helper()
	r, refused := adapter(t, "").Compose(c)
	if len(refused) > 0 {
		require.Equal(t, models.RejectedRequest, refused[0].Class)
		return got, false
	}
	req := httptest.NewRequestWithContext(t.Context(), r.Method, r.URL, nil)
	req.Header = http.Header{"Authorization": {"sp-key"}, "Content-Type": {r.ContentType}}
	copies, err := read(req, r.Body)
	require.NoError(t, err, "%s", r.Body)
	require.Len(t, copies, len(c.Recipients))
	for _, text := range []string{copies[0].Name, copies[0].From, copies[0].ReplyTo} {
		require.False(t, strings.ContainsAny(text, "{}"), text)
	}
	return copies[0], true
}

// TestUnfit: an address that SparkPost would read as a template gets no mail, and the others do.
func TestUnfit(t *testing.T) {
	p := adapter(t, "")
	c := providertest.SampleCall(3)
	c.Recipients[1].Email = "{{email}}@rcpt.test"
	_, refused := p.Compose(c)
	require.Len(t, refused, 2)
	require.Equal(t, models.SetOf(2), refused[0].Recipients)
	require.Equal(t, models.RejectedHereClass, refused[0].Class)
	c = providertest.SampleCall(3)
	c.Content.From.Email = "{x}@sender.test"
	_, refused = p.Compose(c)
	require.Equal(t, models.RejectedHereClass, refused[0].Class)
	for _, with := range []int{0, 1} { // and the others have no header field
		c = providertest.SampleCall(2)
		c.Recipients[with].Headers = []models.Header{{Name: "X-Ref", Value: "x"}}
		_, refused = p.Compose(c)
		require.Equal(t, models.RejectedHereClass, refused[0].Class)
		require.Equal(t, models.SetOf(2), refused[0].Recipients)
	}
	c = providertest.SampleCall(3)
	c.Content.Subject = ""
	_, refused = p.Compose(c)
	require.Equal(t, models.RejectedHereClass, refused[0].Class)
	c = providertest.SampleCall(3)
	c.Recipients[2].Vars["order"] = strings.Repeat("x", 100_000)
	_, refused = p.Compose(c)
	require.Equal(t, models.TooLarge, refused[0].Reason)
	require.Equal(t, models.SetOf(3), refused[0].Recipients)
}

// TestTransactional: mail that can be unsubscribed from is not sent to those who did.
func TestTransactional(t *testing.T) {
	p := adapter(t, "")
	for header, want := range map[string]string{"List-Unsubscribe": "false", "list-unsubscribe": "false", "X-A": "true"} {
		c := providertest.SampleCall(1)
		c.Content.Headers = []models.Header{{Name: header, Value: "<https://sender.test/u>"}}
		r, _ := p.Compose(c)
		require.Contains(t, string(r.Body), `"transactional":`+want)
	}
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 40) }

// TestReplay: the ID of a webhook counts only with the secret. A doubled post has the same events, in any order.
func TestReplay(t *testing.T) {
	p := adapter(t, "")
	body, err := os.ReadFile("testdata/webhook/several.json")
	require.NoError(t, err)
	for id, want := range map[string]string{
		"032d330540298f54f0e8bcc1373f3cfd": "032d330540298f54f0e8bcc1373f3cfd", "": "", "a.b": "", "short": "",
		strings.Repeat("x", 101): "", "12345678 ": "",
	} {
		h := http.Header{}
		h.Set("X-MessageSystems-Batch-ID", id)
		_, err := providertest.Verify(p, h, body, time.Now())
		var refusal *models.WebhookError
		require.ErrorAs(t, err, &refusal, "no secret")
		h.Set("Authorization", kindtest.Basic(hookKey))
		replay, err := providertest.Verify(p, h, body, time.Now())
		require.NoError(t, err)
		require.Equal(t, want, replay)
	}
	first, again := p.Parse(body), p.Parse(body)
	require.Equal(t, first, again, "a doubled post has the same events")
	var list []json.RawMessage
	require.NoError(t, json.Unmarshal(body, &list))
	list[0], list[1] = list[1], list[0]
	turned, _ := json.Marshal(list)
	require.ElementsMatch(t, first.Events, p.Parse(turned).Events, "another order has the same events")
	require.Empty(t, p.Parse(body[:len(body)-20]).Events, "a truncated post")
}

// A fake is a server that has events.
type fake struct {
	t     *testing.T
	pages []string
	asked []string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.URL.RequestURI())
	if r.Header.Get("Authorization") != "sp-key" || len(f.asked) > len(f.pages) {
		f.t.Error("a request without the key, or one too many")
		return
	}
	_, _ = w.Write([]byte(f.pages[len(f.asked)-1]))
}

// TestLookUp reads the pages of events, as webhooks have them, and selects them by chunk and recipient.
func TestLookUp(t *testing.T) {
	const log = "01930000-0000-7000-8abc-def000000001"
	event := func(kind, id string) string {
		return `{"type":"` + kind + `","event_id":"` + id + `","timestamp":"2026-11-21T12:00:00.000+00:00",` +
			`"transmission_id":"7","rcpt_to":"ann@rcpt.test","rcpt_meta":{"sd_log":"` + log + `","sd_attempt":"3"}}`
	}
	first := `{"results":[` + event("injection", "1") + `,` + event("delivery", "2") + `],"links":{"next":` +
		`"/api/v1/events/message?cursor=abc"}}`
	f := &fake{t: t, pages: []string{first, `{"results":[` + event("open", "3") + `],"links":{}}`,
		`{"results":[],"links":{}}`, `{"results":[],"links":{"next":"https://evil.test/x"}}`, first, first}}
	server := httptest.NewServer(f)
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	chunk, err := models.ParseLogID(log)
	require.NoError(t, err)
	now := time.Now().UTC().Truncate(time.Second)
	q := models.LookupQuery{From: now.Add(-time.Hour), To: now.Add(-time.Minute), Recipient: "ann@rcpt.test",
		Chunks: map[models.ID]bool{chunk.ChunkID(): true}}
	var got []string
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Empty(t, parsed.Skipped)
		for _, e := range parsed.Events {
			require.Equal(t, 3, e.Event.Attempt)
			got = append(got, string(e.Event.Kind)+" "+e.Event.ID)
		}
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Equal(t, []string{"processed 1", "delivered 2", "opened 3"}, got)
	escape := func(at time.Time) string { return strings.ReplaceAll(at.Format("2006-01-02T15:04:05Z"), ":", "%3A") }
	require.Equal(t, "/api/v1/events/message?campaigns="+strings.ReplaceAll(chunk.ChunkID().String(), "-", "")+
		"&cursor=initial&from="+escape(q.From)+"&per_page=1000&recipients=ann%40rcpt.test&to="+escape(q.To.Add(time.Second)),
		f.asked[0])
	require.Equal(t, "/api/v1/events/message?cursor=abc", f.asked[1])

	q.Chunks = map[models.ID]bool{}
	for i := range 200 {
		q.Chunks[providertest.SampleBatch().Chunk(i)] = true
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.NotContains(t, f.asked[2], "campaigns", "they are too many for a URL")
	require.NoError(t, p.LookUp(t.Context(), q, post), "there is nothing to go on for")
	enough := errors.New("enough")
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)
	q.From, q.To = now.Add(-30*24*time.Hour), now.Add(-20*24*time.Hour)
	require.NoError(t, p.LookUp(t.Context(), q, post), "the log does not go back so far")
	require.Len(t, f.asked, 5)
}

// TestEndlessPages: a log whose pages lead to themselves is not read for ever.
func TestEndlessPages(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		_, _ = fmt.Fprintf(w, `{"results":[{}],"links":{"next":"/api/v1/events/message?cursor=%d"}}`, asked)
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	q := models.LookupQuery{From: time.Now().Add(-time.Hour), To: time.Now()}
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return nil }), models.ErrPartialLogs)
	require.Equal(t, maxPages, asked)
}

// TestNotInvalid: neither a temporary reply nor an error about another part of a recipient says that the mailbox is
// invalid.
func TestNotInvalid(t *testing.T) {
	p, c := adapter(t, ""), providertest.SampleCall(1)
	for _, text := range []string{
		"address.name is too long", "address.header_to is no valid address", "Sender address refused",
	} {
		parts := p.classify(c, transport.Answer{Status: 200, Body: []byte(counted(0, 1, text))}, time.Now())
		require.Equal(t, models.RejectedHereClass, parts[0].Class, text)
	}
	out := p.Parse([]byte(`[{"msys":{"message_event":{"type":"bounce","bounce_class":"10","reason":"4.2.1 later",` +
		`"rcpt_meta":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":"3"}}}}]`))
	require.NotEqual(t, models.MailboxInvalid, out.Events[0].Event.Reason)
}

// TestUnlist removes only the entries of the list.
func TestUnlist(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Type string }
		_ = json.NewDecoder(r.Body).Decode(&in)
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+in.Type)
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`{"results":[{"recipient":"ann@rcpt.test","type":"transactional","source":"Bounce Rule"},
				{"type":"non_transactional","source":"List Unsubscribe","list_id":"weekly&1"},
				{"type":"non_transactional","source":"Bounce Rule","list_id":"weekly&1"}]}`))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	require.NoError(t, p.Unlist(t.Context(), "Bounce Rule", "ann@rcpt.test"))
	const path = " /api/v1/suppression-list/ann@rcpt.test"
	require.Equal(t, []string{"GET" + path + " ", "DELETE" + path + "?list_id= transactional",
		"DELETE" + path + "?list_id=weekly%261 non_transactional"}, asked)
}

// TestInspect asks a server that answers as SparkPost does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/sp"
	var all []string
	for _, e := range events {
		if e.Setting != "" {
			all = append(all, `"`+e.Setting+`"`)
		}
	}
	webhook := func(target, more string) string {
		return `{"results":[{"target":"` + target + `","events":[` + strings.Join(all, ",") + `]` + more + `}]}`
	}
	domains := `{"results":[{"domain":"example.com","status":{"ownership_verified":true,"compliance_status":"valid"}}]}`
	for name, c := range map[string]struct {
		domains, webhooks string
		status            int
		want              []string
	}{
		"all is well": {domains, webhook(hook, `,"auth_type":"basic"`), 200,
			[]string{"ok may read", "ok example.com is verified", "ok go to " + hook, "ok have a secret"}},
		"own header": {domains, webhook(hook, `,"auth_type":"none","custom_headers":{"Authorization":"Bearer x"}`), 200,
			[]string{"ok may read", "ok example.com is verified", "ok go to " + hook, "ok have a secret"}},
		"no secret": {domains, webhook(hook, `,"auth_type":"none"`), 200,
			[]string{"ok may read", "ok example.com is verified", "ok go to " + hook, "wrong have no secret"}},
		"not active": {`{"results":[{"domain":"x.test","status":{"ownership_verified":false}}]}`,
			webhook(hook, `,"active":false`), 200, []string{"ok may read", "wrong x.test is not verified",
				"wrong do not go to " + hook + " for: injection, delivery, delay"}},
		"nothing":   {`{"results":[]}`, `{"results":[]}`, 200, []string{"ok may read", "wrong no domain", "wrong do not go"}},
		"wrong key": {`{"errors":[{"message":"Unauthorized."}]}`, "", 401, []string{"wrong SparkPost refuses the key (401)"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			pages := map[string]string{"/api/v1/sending-domains": c.domains, "/api/v1/webhooks": c.webhooks}
			_, _ = w.Write([]byte(pages[r.URL.Path]))
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

// FuzzTemplate: no message and no value is read as code.
func FuzzTemplate(f *testing.F) {
	f.Add("{{v}}{", "}}")
	f.Add("{{{v}}}", "{{x}}")
	f.Fuzz(func(t *testing.T, text, value string) {
		c := providertest.SampleCall(1)
		c.Content.Subject, c.Content.Text, c.Content.HTML = "s"+text, "t"+text, text
		c.Content.Headers = []models.Header{{Name: "X-A", Value: text}}
		c.Recipients[0].Name, c.Recipients[0].Vars = value, map[string]string{"v": value}
		arrives(t, c)
	})
}

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	f.Add(kindtest.Basic("hook:a long passwor"), "x")
	f.Add("Bearer x", "032d330540298f54f0e8bcc1373f3cfd")
	f.Fuzz(func(t *testing.T, value, id string) {
		h := http.Header{"Authorization": {value}, "X-Messagesystems-Batch-Id": {id}}
		_, err := providertest.Verify(p, h, []byte("[]"), time.Now())
		scheme, text, _ := strings.Cut(value, " ")
		ours := strings.EqualFold(scheme, "basic") && "Basic "+text == kindtest.Basic(hookKey) ||
			strings.EqualFold(scheme, "bearer") && text == oldKey
		if (err == nil) != ours {
			t.Errorf("%q: %v", value, err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, []byte(a.Body))
		if a.Each != nil {
			f.Add(a.Status, []byte(a.Each(3)))
		}
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Body: body}, time.Now()))
	})
}

func BenchmarkSend1000(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 1000, 1) }
