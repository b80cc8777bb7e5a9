package resend

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
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

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// TestRequests compares requests with testdata/request.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	file := kindtest.Files(1, "{{order}}")
	kindtest.Requests(t, p, map[string]*models.Call{"single": file, "batch": providertest.SampleCall(3)})
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 17) }

// TestSignatures: one of several signatures is enough. A post that was truncated, moved to another time or not signed
// is refused. A repeat that was signed anew has the same event.
func TestSignatures(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	body := []byte(`{"type":"email.sent","created_at":"2026-11-21T12:00:00Z","data":{"email_id":"e","to":["a@b.test"],` +
		`"tags":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":"1"}}}`)
	h, _ := sign(ownKey, body, now)
	replay, err := providertest.Verify(p, h, body, now)
	require.NoError(t, err)
	require.Equal(t, "1795262400.msg_1", replay)
	several := h.Clone()
	several.Set("Svix-Signature", "v1,bm90IHRoaXMgb25l "+h.Get("Svix-Signature"))
	_, err = providertest.Verify(p, several, body, now)
	require.NoError(t, err)
	later, _ := sign(ownKey, body, now.Add(time.Hour))
	again, err := providertest.Verify(p, later, body, now.Add(time.Hour))
	require.NoError(t, err)
	require.NotEqual(t, replay, again)
	for name, change := range map[string]func(h http.Header) []byte{
		"truncated":  func(http.Header) []byte { return body[:len(body)-1] },
		"other id":   func(h http.Header) []byte { h.Set("Svix-Id", "msg_2"); return body },
		"other time": func(h http.Header) []byte { h.Set("Svix-Timestamp", "1795262401"); return body },
		"no version": func(h http.Header) []byte {
			h.Set("Svix-Signature", strings.ReplaceAll(h.Get("Svix-Signature"), "v1,", ""))
			return body
		},
		"v2": func(h http.Header) []byte {
			h.Set("Svix-Signature", strings.ReplaceAll(h.Get("Svix-Signature"), "v1", "v2"))
			return body
		},
		"very long":  func(h http.Header) []byte { h.Set("Svix-Signature", strings.Repeat("v1,AAAA ", 1000)); return body },
		"dot in id":  func(h http.Header) []byte { h.Set("Svix-Id", "msg.1"); return body },
		"no header":  func(h http.Header) []byte { clear(h); return body },
		"other body": func(http.Header) []byte { return bytes.Replace(body, []byte("sent"), []byte("opened"), 1) },
	} {
		h := h.Clone()
		body := change(h)
		var refusal *models.WebhookError
		_, err := providertest.Verify(p, h, body, now)
		require.ErrorAs(t, err, &refusal, name)
		require.Equal(t, "bad_signature", refusal.Code, name)
	}
	one, two := p.Parse(body), p.Parse(body)
	require.Equal(t, one, two, "a doubled post has the same event")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for _, key := range []string{"whsec_", "whsec_!!", "whsec_c2hvcnQ=", "x"} {
		s := testSettings("")
		s.WebhookKey = key
		require.Len(t, Spec.Check(s), 1, key)
	}
	s := testSettings("")
	s.WebhookKey, s.WebhookKeyOld, s.Events = "", "", models.EventsNone
	p, err := New(s)
	require.NoError(t, err)
	_, err = providertest.Verify(p, http.Header{}, []byte("{}"), time.Now())
	var refusal *models.WebhookError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, "not_configured", refusal.Code)
	_, refused := p.Compose(
		&models.Call{Attempt: 1, Content: &models.Content{From: models.Address{Email: "a@b.test"}, Text: "x"},
			Recipients: providertest.SampleCall(1).Recipients},
	)
	require.Equal(t, models.RejectedHereClass, refused[0].Class, "there is no subject")
}

// TestInspect asks a server that answers as Resend does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/rs"
	for name, c := range map[string]struct {
		domains, webhooks string
		status            int
		want              []string
	}{
		"all is well": {
			`{"data":[{"name":"example.com","status":"verified"}]}`,
			`{"data":[{"endpoint":"` + hook + `","status":"enabled","events":["email.sent","email.delivered",` +
				`"email.delivery_delayed","email.bounced","email.suppressed","email.failed","email.opened","email.clicked",` +
				`"email.complained"]}]}`,
			200, []string{"ok may send mail", "ok example.com is verified", "ok go to " + hook},
		},
		"nothing is": {
			`{"data":[{"name":"example.com","status":"pending"}]}`,
			`{"data":[{"endpoint":"` + hook + `","status":"disabled","events":["email.sent"]}]}`,
			200, []string{"ok may send mail", "wrong example.com is not verified: pending",
				"wrong do not go to " + hook + " for: email.sent, email.delivered, email.delivery_delayed, email.bounced, " +
					"email.suppressed, email.failed, email.opened, email.clicked, email.complained"},
		},
		"sending key": {`{"name":"restricted_api_key"}`, "", 401, []string{"ok may send mail",
			"warning may only send, and not read domains, webhooks, suppressions and logs"}},
		"wrong key": {`{"name":"invalid_api_key"}`, "", 403, []string{"wrong Resend refuses the key (403)"}},
		"no domain": {`{"data":[]}`, `{"data":[]}`, 200,
			[]string{"ok may send mail", "wrong no domain is verified", "wrong "}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := map[string]string{"/domains": c.domains, "/webhooks": c.webhooks}[r.URL.Path]
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(body))
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

// TestListPages reads a list of two pages.
func TestListPages(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		_, _ = w.Write([]byte(`{"has_more":` + map[bool]string{true: "true", false: "false"}[len(asked) == 1] +
			`,"data":[{"id":"i/1","email":"ann@rcpt.test","created_at":"2026-11-21T12:00:00Z"}]}`))
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	page, err := p.ReadList(t.Context(), models.ListQuery{List: "bounce", To: time.Now()})
	require.NoError(t, err)
	require.Equal(t, "i/1", page.Next)
	page, err = p.ReadList(t.Context(), models.ListQuery{List: "bounce", To: time.Now(), Cursor: page.Next})
	require.NoError(t, err)
	require.Empty(t, page.Next)
	require.Equal(
		t,
		[]string{"/suppressions?limit=100&origin=bounce", "/suppressions?limit=100&origin=bounce&after=i%2F1"},
		asked,
	)
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	now := time.Unix(1795262400, 0)
	h, body := sign(otherKey, []byte("{}"), now)
	f.Add(h.Get("Svix-Id"), h.Get("Svix-Timestamp"), h.Get("Svix-Signature"), body)
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		h := http.Header{}
		h.Set("Svix-Id", id)
		h.Set("Svix-Timestamp", timestamp)
		h.Set("Svix-Signature", signature)
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, h, body, now); !errors.As(err, &refusal) {
			t.Errorf("got %v for what our key never signed", err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, a.Header["Retry-After"], []byte(a.Body))
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, header string, body []byte) {
		h := http.Header{"Retry-After": {header}}
		providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Header: h, Body: body}, time.Now()))
	})
}

func BenchmarkCompose100(b *testing.B) { kindtest.Compose(b, adapter(b, ""), 100, 1) }
