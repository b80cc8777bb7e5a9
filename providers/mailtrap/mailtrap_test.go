package mailtrap

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// TestRequests compares requests with testdata/request. A request of a batch has only what differs from its base.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	files, same := kindtest.Files(2, "{{name}}"), providertest.SampleCall(2)
	same.Content.Subject, same.Content.Text, same.Content.HTML = "Hello", "", "<p>Hello</p>"
	empty := providertest.SampleCall(1)
	empty.Content.Text, empty.Recipients[0].Vars["order"] = "{{order}}", ""
	kindtest.Requests(t, p, map[string]*models.Call{
		"files": files, "same": same, "batch": providertest.SampleCall(2), "together": kindtest.Together(), "empty": empty,
	})
	none := providertest.SampleCall(1)
	none.Content.Subject = ""
	_, refused := p.Compose(none)
	require.Equal(t, models.RejectedHereClass, refused[0].Class)
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 26) }

// TestSignatures: a post that was truncated, changed or not signed is refused. A repeat has the same signature and the
// same events, in any order.
func TestSignatures(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	body := []byte(`{"events":[{"event":"open","timestamp":1795262400,"message_id":"m","email":"a@b.test",` +
		`"custom_variables":` +
		`{"sd_log":"` + mailLog + `","sd_attempt":"1"}}]}`)
	h := sign(ownKey, body)
	replay, err := providertest.Verify(p, h, body, now)
	require.NoError(t, err)
	require.Empty(t, replay)
	for name, change := range map[string]func(h http.Header) []byte{
		"truncated": func(http.Header) []byte { return body[:len(body)-1] },
		"empty":     func(h http.Header) []byte { h.Set("Mailtrap-Signature", ""); return body },
		"no header": func(h http.Header) []byte { clear(h); return body },
		"no hex":    func(h http.Header) []byte { h.Set("Mailtrap-Signature", "xyz"); return body },
		"a prefix": func(h http.Header) []byte {
			h.Set("Mailtrap-Signature", "sha256="+h.Get("Mailtrap-Signature"))
			return body
		},
		"half": func(h http.Header) []byte {
			h.Set("Mailtrap-Signature", h.Get("Mailtrap-Signature")[:32])
			return body
		},
		"other body": func(http.Header) []byte { return bytes.Replace(body, []byte("open"), []byte("spam"), 1) },
	} {
		h := h.Clone()
		var refusal *models.WebhookError
		_, err := providertest.Verify(p, h, change(h), now)
		require.ErrorAs(t, err, &refusal, name)
		require.Equal(t, "bad_signature", refusal.Code, name)
	}
	first, again := p.Parse(body), p.Parse(body)
	require.Equal(t, first, again, "a doubled post has the same event")
}

// TestEvents: a complaint has the same ID under both of its names, and a bounce whose code is temporary does not say
// that the mailbox is invalid.
func TestEvents(t *testing.T) {
	p := adapter(t, "")
	event := func(name, more string) models.Event {
		got := p.Parse([]byte(`{"events":[{"event":"` + name +
			`","timestamp":1795262400,"message_id":"m","email":"a@b.test",` +
			`"custom_variables":{"sd_log":"` + mailLog + `","sd_attempt":"1"}` + more + `}]}`))
		require.Len(t, got.Events, 1)
		return got.Events[0].Event
	}
	require.Equal(t, models.Complained, event("spam", "").Kind)
	require.Equal(t, event("spam", ""), event("spam complaint", ""))
	require.Equal(t, event("spam", ""), event("spam_complaint", ""))
	for code, want := range map[string]models.Reason{"450": models.BounceUnknown, "4.1.0": models.BounceUnknown,
		"550": models.MailboxInvalid, "": models.MailboxInvalid} {
		got := event("bounce", `,"bounce_category":"invalid_recipient","response":"no","response_code":"`+code+`"`)
		require.Equal(t, want, got.Reason, code)
	}
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, key := range []string{"short", " a1b2c3d4e5f6", "a1b2c3d4\ne5f6"} {
		s := testSettings("")
		s.WebhookKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
	s := testSettings("https://bulk.api.mailtrap.io")
	s.WebhookKey, s.WebhookKeyOld, s.Events = "", "", models.EventsNone
	p, err := New(s)
	require.NoError(t, err)
	_, err = providertest.Verify(p, sign(ownKey, nil), nil, time.Now())
	var refusal *models.WebhookError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "not_configured", refusal.Code)
	r, _ := p.Compose(providertest.SampleCall(1))
	require.Equal(t, "https://bulk.api.mailtrap.io/api/batch", r.URL)
}

const (
	mailLog  = "01930000-0000-7000-8abc-def000000001"
	otherLog = "01930000-0000-7000-8abc-def000000401"
)

// A fake is a server that has messages in its logs, a page for each.
type fake struct {
	t     *testing.T
	asked []string
	loops int  // pages follow each other in a circle of so many
	gone  bool // there are no details
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked = append(f.asked, r.URL.RequestURI())
	if r.Header.Get("Authorization") != "Bearer token" {
		f.t.Error("a request without the token")
	}
	message := `{"message_id":%q,"to":"ann@rcpt.test","sent_at":"2026-11-21T11:00:00Z","custom_variables":%s`
	own, other := `{"sd_log":"`+mailLog+`","sd_attempt":"3"}`, `{"sd_log":"`+otherLog+`","sd_attempt":"3"}`
	switch {
	case r.URL.Path == "/api/email_logs" && f.loops > 0:
		_, _ = fmt.Fprintf(w, `{"messages":[{}],"next_page_cursor":"m%d"}`, len(f.asked)%f.loops)
	case r.URL.Path == "/api/email_logs" && r.URL.Query().Get("search_after") == "":
		_, _ = fmt.Fprintf(w, `{"messages":[`+message+`},`+message+`},{"message_id":"x"}],"next_page_cursor":"m1"}`,
			"m1", own, "m2", other)
	case r.URL.Path == "/api/email_logs":
		_, _ = w.Write([]byte(`{"messages":[{"message_id":"m3","custom_variables":{}}],"next_page_cursor":null}`))
	case f.gone:
		w.WriteHeader(http.StatusNotFound)
	case r.URL.Path == "/api/email_logs/m1", r.URL.Path == "/api/email_logs/m2":
		_, _ = fmt.Fprintf(w, message+`,"events":[
			{"event_type":"soft_bounce","created_at":"2026-11-21T11:30:00Z","details":{"email_service_provider_response":
				"421 4.7.0 later"}},
			{"event_type":"delivery","created_at":"2026-11-21T12:00:00Z","details":{}},
			{"event_type":"click","created_at":"2026-11-21T12:02:00Z","details":{"click_url":"https://x.test"}},
			{"event_type":"bounce","created_at":"2026-11-21T12:03:00.5Z","details":{"email_service_provider_status":"5.1.1",
				"email_service_provider_response":"User unknown","bounce_category":"invalid_recipient"}}]}`, "m1", own)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// TestLookUp reads the events of a wanted message, by the ids of webhooks. Messages of others are left out, even if
// Mailtrap ignores the filter.
func TestLookUp(t *testing.T) {
	f := &fake{t: t}
	server := httptest.NewServer(f)
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	begun := time.Date(2026, 11, 21, 11, 0, 0, 0, time.UTC)
	q := models.LookupQuery{From: begun, To: begun.Add(24 * time.Hour), SentBy: begun.Add(time.Hour),
		Recipient: "ann@rcpt.test", Chunks: map[models.ID]bool{providertest.SampleBatch(): true}}
	var got []models.ParsedEvent
	post := func(body []byte) error {
		parsed := p.Parse(body)
		require.Empty(t, parsed.Skipped)
		got = append(got, parsed.Events...)
		return nil
	}
	require.NoError(t, p.LookUp(t.Context(), q, post))
	var kinds []models.EventKind
	for _, e := range got {
		require.Equal(t, mailLog, e.Log.String())
		require.Equal(t, "ann@rcpt.test", e.Address)
		require.Equal(t, 3, e.Event.Attempt)
		kinds = append(kinds, e.Event.Kind)
	}
	require.Equal(t, []models.EventKind{models.Processed, models.Deferred, models.Delivered, models.Clicked,
		models.Bounced}, kinds)
	require.Equal(t, models.MailboxInvalid, got[4].Event.Reason)
	hooked := p.Parse([]byte(`{"events":[{"event":"bounce","timestamp":1795262580,"message_id":"m1",` +
		`"email":"ann@rcpt.test",` +
		`"custom_variables":{"sd_log":"` + mailLog + `","sd_attempt":"3"}}]}`))
	require.Equal(t, hooked.Events[0].Event.ID, got[4].Event.ID)
	require.Len(t, f.asked, 3)
	require.Equal(t, "/api/email_logs?filters%5Bcategory%5D%5Boperator%5D=equal&filters%5Bcategory%5D%5Bvalue%5D="+
		"01930000-0000-7000-8abc-def000000000&filters%5Bsent_after%5D=2026-11-21T11%3A00%3A00Z&"+
		"filters%5Bsent_before%5D=2026-11-21T12%3A00%3A01Z&filters%5Bto%5D%5Boperator%5D=ci_equal&"+
		"filters%5Bto%5D%5Bvalue%5D=ann%40rcpt.test", f.asked[0])

	got, q.Chunks, f.asked = nil, nil, nil
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Len(t, got, 10)
	require.NotContains(t, f.asked[0], "category")
	enough := errors.New("enough")
	require.ErrorIs(t, p.LookUp(t.Context(), q, func([]byte) error { return enough }), enough)

	got, f.gone = nil, true
	require.NoError(t, p.LookUp(t.Context(), q, post))
	require.Len(t, got, 2, "Mailtrap has the messages")
	require.Equal(t, models.Processed, got[0].Event.Kind)
	for _, f.loops = range []int{1, 3} {
		require.ErrorIs(t, p.LookUp(t.Context(), q, post), models.ErrInvalid)
	}
}

// TestUnlist removes each entry of an address, and no other.
func TestUnlist(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI())
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(`[{"id":"1","email":"Ann@rcpt.test"},{"id":"2","email":"bob@rcpt.test"},` +
				`{"id":"3/4","email":"ann@rcpt.test"}]`))
		}
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	require.NoError(t, p.Unlist(t.Context(), "suppressions", "ann@rcpt.test"))
	require.Equal(t, []string{"GET /api/suppressions?email=ann%40rcpt.test", "DELETE /api/suppressions/1",
		"DELETE /api/suppressions/3%2F4"}, asked)
}

// TestListPages reads a list until a page is empty.
func TestListPages(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked = append(asked, r.URL.RawQuery); len(asked) == 2 {
			_, _ = w.Write([]byte(`[]`))
			return
		}
		_, _ = w.Write([]byte(`[{"id":"i1","email":"ann@rcpt.test","type":"hard bounce","created_at":"2026-11-21T12:00:00Z"}]`))
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	q := models.ListQuery{List: "suppressions", To: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	page, err := p.ReadList(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, "i1", page.Next)
	q.Cursor, q.From = page.Next, q.To.Add(-time.Hour)
	page, err = p.ReadList(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, page.Next)
	page, err = p.ReadList(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, page.Next, "a page that follows itself is the last one")
	asked = asked[:2]
	require.Equal(t, []string{"end_time=2026-11-21T12%3A00%3A01Z",
		"end_time=2026-11-21T12%3A00%3A01Z&last_id=i1&start_time=2026-11-21T11%3A00%3A00Z"}, asked)
}

// TestInspect asks a server that answers as Mailtrap does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/mt"
	all := `"active":true,"payload_format":"json","event_types":["delivery","soft_bounce","bounce","suspension",` +
		`"unsubscribe",` +
		`"open","spam_complaint","click","reject"]`
	for name, c := range map[string]struct {
		domains, webhooks string
		status            int
		want              []string
	}{
		"all is well": {`{"data":[{"domain_name":"example.com","dns_verified":true,"compliance_status":"compliant"}]}`,
			`{"data":[{"url":"` + hook + `",` + all + `}]}`, 200,
			[]string{"ok is valid", "ok example.com is verified", "ok go to " + hook}},
		"nothing is": {`{"data":[{"domain_name":"example.com","compliance_status":"suspended"}]}`,
			`{"data":[{"url":"` + hook + `","active":true,"payload_format":"jsonlines","event_types":["delivery"]},` +
				`{"url":"` + hook + `","event_types":["open"]}]}`, 200,
			[]string{"ok is valid", "wrong example.com is not verified", "wrong example.com may not send: suspended",
				"wrong do not go to " + hook + " as JSON for: delivery, soft_bounce, bounce, "}},
		"wrong key": {`{"error":"Incorrect API token"}`, "", 401, []string{"wrong Mailtrap refuses the key (401)"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(map[string]string{"/api/domains": c.domains, "/api/webhooks": c.webhooks}[r.URL.Path]))
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
	f.Add(sign(otherKey, []byte("{}")).Get("Mailtrap-Signature"), []byte("{}"))
	f.Add(strings.Repeat("0", 64), []byte(""))
	f.Fuzz(func(t *testing.T, signature string, body []byte) {
		h := http.Header{}
		h.Set("Mailtrap-Signature", signature)
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, h, body, time.Now()); !errors.As(err, &refusal) {
			t.Errorf("got %v for what our key never signed", err)
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

func BenchmarkSend500(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 500, 1) }
