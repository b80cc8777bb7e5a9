package ses

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// TestRequests compares requests with testdata/request.
func TestRequests(t *testing.T) {
	p := adapter(t, "")
	files := kindtest.Files(2, "{{order}}")
	braces := providertest.SampleCall(2)
	braces.Content.Text = `{{order}}}{{{order}}} \{{order}} {{#x}} {{{{/y}}}} a{b}c {`
	kindtest.Requests(t, p, map[string]*models.Call{"single": providertest.SampleCall(1),
		"bulk": providertest.SampleCall(3), "files": files, "together": kindtest.Together(), "braces": braces})
}

// TestWebhooks parses every documented event.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 42) }

// TestSDKDoesNotRetry: the SDK makes exactly one request, also after a failure. Its own retries would send the mail
// again.
func TestSDKDoesNotRetry(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"500": func(w http.ResponseWriter) { w.WriteHeader(500) },
		"503": func(w http.ResponseWriter) { w.WriteHeader(503) },
		"429": func(w http.ResponseWriter) { w.WriteHeader(429) },
		"throttle": func(w http.ResponseWriter) {
			w.Header().Set("X-Amzn-Errortype", "ThrottlingException")
			w.WriteHeader(400)
		},
		"clock": func(w http.ResponseWriter) {
			w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			w.Header().Set("X-Amzn-Errortype", "RequestTimeTooSkewed")
			w.WriteHeader(403)
		},
		"garbage": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{") },
		"close":   func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"reset": func(w http.ResponseWriter) {
			c, _, _ := http.NewResponseController(w).Hijack()
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		},
	} {
		for _, n := range []int{1, 3} {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				answer(w)
			}))
			p := adapter(t, server.URL)
			p.Send(t.Context(), providertest.SampleCall(n))
			require.EqualValues(t, 1, requests.Load(), "%s, %d recipients", name, n)
			p.Close()
			server.Close()
		}
	}
}

// TestMailsThatGoAlone: what a template cannot carry is sent to one recipient a call, without a template.
func TestMailsThatGoAlone(t *testing.T) {
	p := adapter(t, "")
	for name, change := range map[string]func(c *models.Call){
		"a large message":  func(c *models.Call) { c.Content.HTML = strings.Repeat("x", maxTemplate) },
		"large values":     func(c *models.Call) { c.Recipients[1].Vars["order"] = strings.Repeat("x", maxData) },
		"braces in header": func(c *models.Call) { c.Content.Headers = []models.Header{{Name: "X-A", Value: "{{{{a}}}}"}} },
	} {
		c := providertest.SampleCall(3)
		change(c)
		_, refused := p.Compose(c)
		require.Len(t, refused, 1, name)
		require.Equal(t, models.RejectedHereClass, refused[0].Class, name)
		require.Equal(t, 1, refused[0].Fewer, name)
		c.Recipients = c.Recipients[1:2]
		r, refused := p.Compose(c)
		require.Empty(t, refused, name)
		require.True(t, strings.HasSuffix(r.URL, "/v2/email/outbound-emails"), name)
	}
	for name, change := range map[string]func(c *models.Call){
		"no subject": func(c *models.Call) { c.Content.Subject = "" },
		"a long name of field": func(c *models.Call) {
			c.Content.Headers = []models.Header{{Name: strings.Repeat("x", 127)}}
		},
		"a long field": func(c *models.Call) {
			c.Content.Headers = []models.Header{{Name: "X-A", Value: strings.Repeat("x", 994)}}
		},
	} {
		c := providertest.SampleCall(1)
		change(c)
		_, refused := p.Compose(c)
		require.Len(t, refused, 1, name)
		require.Equal(t, models.RejectedHereClass, refused[0].Class, name)
		require.Zero(t, refused[0].Fewer, name)
	}
}

// TestPosts: a post belongs to a known topic, by its header and its body, and is whole.
func TestPosts(t *testing.T) {
	p := adapter(t, "")
	defer p.Close()
	key, _ := signer0()
	now := time.Unix(1795262400, 0)
	h, body := sign(ownTopic, key, wrapped(`{"eventType":"Send"}`), now)
	replay, err := providertest.Verify(p, h, body, now)
	require.NoError(t, err)
	require.Equal(t, "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", replay)
	_, again := sign(ownTopic, key, wrapped(`{"eventType":"Send"}`), now.Add(time.Minute))
	repeated, err := providertest.Verify(p, h, again, now.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, replay, repeated, "a repeat has the same id")
	raw := http.Header{"X-Amz-Sns-Topic-Arn": {ownTopic}, "X-Amz-Sns-Rawdelivery": {"true"}}
	strange, strangeBody := sign("arn:aws:sns:eu-central-1:210987654321:theirs", key, wrapped("x"), now)
	for name, c := range map[string]struct {
		header http.Header
		body   []byte
		status int
	}{
		"another topic":              {strange, strangeBody, 403},
		"another topic in the body":  {h, strangeBody, 403},
		"raw delivery":               {raw, body, 403},
		"truncated":                  {h, body[:len(body)-1], 403},
		"another text":               {h, bytes.Replace(body, []byte("Send"), []byte("Open"), 1), 403},
		"a subject that was added":   {h, bytes.Replace(body, []byte(`{"Mess`), []byte(`{"Subject":"x","Mess`), 1), 403},
		"another version":            {h, bytes.Replace(body, []byte(`"2"`), []byte(`"3"`), 1), 403},
		"the other version":          {h, bytes.Replace(body, []byte(`"2"`), []byte(`"1"`), 1), 403},
		"a certificate of another":   {h, bytes.Replace(body, []byte("sns.eu"), []byte("sns.evil.test/sns.eu"), 1), 403},
		"a certificate that is gone": {h, bytes.Replace(body, []byte("0a1b"), []byte("0a1c"), 1), 503},
	} {
		var refusal *models.WebhookError
		_, err := providertest.Verify(p, c.header, c.body, now)
		require.ErrorAs(t, err, &refusal, name)
		require.Equal(t, "bad_signature", refusal.Code, name)
		require.Equal(t, c.status, refusal.Status, name)
	}
	s := testSettings("")
	s.Topics = nil
	p.SetKeys(s)
	var refusal *models.WebhookError
	_, err = providertest.Verify(p, h, body, now)
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, models.WebhookError{Status: 503, Code: "not_configured", Detail: refusal.Detail}, *refusal)
	one, two := p.Parse(body), p.Parse(body)
	require.Equal(t, one, two, "a doubled post has the same event")
}

func TestCheck(t *testing.T) {
	require.Empty(t, Spec.Check(testSettings("")))
	for setting, change := range map[string]func(s *settings.Settings){
		"region":            func(s *settings.Settings) { s.Region = "Frankfurt" },
		"access_key_id":     func(s *settings.Settings) { s.AccessKeyID = "" },
		"secret_access_key": func(s *settings.Settings) { s.SecretAccessKey = "a b" },
		"configuration_set": func(s *settings.Settings) { s.ConfigurationSet = "a b" },
		"topics":            func(s *settings.Settings) { s.Topics = []string{"mail"} },
	} {
		s := testSettings("")
		change(&s)
		errs := Spec.Check(s)
		var m settings.Mistake
		require.Len(t, errs, 1, setting)
		require.ErrorAs(t, errs[0], &m)
		require.Equal(t, setting, m.Setting)
	}
	s := testSettings("")
	s.Topics = nil
	require.Len(t, Spec.Check(s), 1, "webhooks need a topic")
	s.Events = models.EventsNone
	require.Empty(t, Spec.Check(s))
	for region, want := range map[string]string{"eu-central-1": "https://email.eu-central-1.amazonaws.com",
		"cn-north-1":    "https://email.cn-north-1.amazonaws.com.cn",
		"us-gov-west-1": "https://email.us-gov-west-1.amazonaws.com"} {
		s := testSettings("")
		s.Region = region
		p, err := New(s)
		require.NoError(t, err)
		r, refused := p.Compose(providertest.SampleCall(1))
		require.Empty(t, refused)
		require.Equal(t, want+"/v2/email/outbound-emails", r.URL)
	}
}

// TestUnlist: an address that is on the list for another reason stays there.
func TestUnlist(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.EscapedPath())
		_, _ = io.WriteString(
			w,
			`{"SuppressedDestination":{"EmailAddress":"a@b.test","Reason":"COMPLAINT","LastUpdateTime":1}}`,
		)
	}))
	defer server.Close()
	p := adapter(t, server.URL)
	defer p.Close()
	require.NoError(t, p.Unlist(t.Context(), "BOUNCE", "a+b@b.test"))
	require.NoError(t, p.Unlist(t.Context(), "COMPLAINT", "a+b@b.test"))
	path := " /v2/email/suppression/addresses/a%2Bb%40b.test"
	require.Equal(t, []string{"GET" + path, "GET" + path, "DELETE" + path}, asked)
}

// TestInspect asks a server that answers as Amazon SES does.
func TestInspect(t *testing.T) {
	const hook = "https://mail.example.com/webhooks/ses"
	fine := `{"ProductionAccessEnabled":true,"SendingEnabled":true,"EnforcementStatus":"HEALTHY",` +
		`"SendQuota":{"Max24HourSend":50000,"MaxSendRate":14,"SentLast24Hours":7}}`
	all := `["SEND","REJECT","BOUNCE","COMPLAINT","DELIVERY","OPEN","CLICK","RENDERING_FAILURE","DELIVERY_DELAY"]`
	domain := `{"EmailIdentities":[{"IdentityName":"example.com","SendingEnabled":true}]}`
	destination := func(topic, types string) string {
		return `{"EventDestinations":[{"Enabled":true,"MatchingEventTypes":` + types +
			`,"SnsDestination":{"TopicArn":"` + topic + `"}}]}`
	}
	for name, c := range map[string]struct {
		account, identities, set string
		status                   int
		want                     []string
	}{
		"all is well": {fine, domain, destination(ownTopic, all), 200, []string{
			"ok may read the account: 7 of 50000 mails a day (-1: no limit), 14 a second", "ok may send to everybody",
			"ok may send",
			"ok example.com is verified", "ok go to " + hook}},
		"nothing is": {`{"ProductionAccessEnabled":false,"SendingEnabled":false,"EnforcementStatus":"PROBATION"}`,
			`{"EmailIdentities":[{"IdentityName":"example.com"}]}`, destination(ownTopic, `["SEND"]`), 200, []string{
				"ok may read", "wrong is in the sandbox", "wrong sending is off", "warning is under review",
				"wrong example.com may not send",
				"wrong the configuration set events does not report to the topics: DELIVERY, DELIVERY_DELAY"}},
		"another topic": {fine, domain, destination("arn:x", all), 200,
			[]string{"ok may read", "ok", "ok", "ok", "wrong the configuration set"}},
		"wrong key": {`{"message":"The security token included in the request is invalid."}`, "", "", 403,
			[]string{"wrong Amazon SES refuses the key (403)"}},
		"may only send": {`{"message":"User: x is not authorized to perform: ses:GetAccount"}`, "", "", 403,
			[]string{"warning may not read the account"}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, map[string]string{"/v2/email/account": c.account, "/v2/email/identities": c.identities,
				"/v2/email/configuration-sets/events/event-destinations": c.set}[r.URL.Path])
		}))
		p := adapter(t, server.URL)
		account, err := p.Inspect(t.Context(), hook)
		kindtest.Found(t, account, err, name, c.want...)
		p.Close()
		server.Close()
	}
}

func FuzzParse(f *testing.F) { kindtest.FuzzParse(f, adapter(f, "")) }

// FuzzTemplate: braces and backslashes of a message or a value arrive as they are.
func FuzzTemplate(f *testing.F) {
	f.Add("{{v}}{", "}}")
	f.Add(`{{{v}}}{{}}\{{v}}{{ }`, `{{v0}}\`)
	p := adapter(f, "")
	f.Fuzz(func(t *testing.T, text, value string) {
		c := providertest.SampleCall(2)
		c.Content = &models.Content{From: c.Content.From, Subject: "s", Text: message.Body(text) + "."}
		for i := range c.Recipients {
			c.Recipients[i].Vars = map[string]string{"v": message.Body(value)}
		}
		in, refused := p.compose(c)
		if len(refused) > 0 {
			return // it has another placeholder
		}
		values := map[string]string{}
		to := in.many.BulkEmailEntries[0].ReplacementEmailContent.ReplacementTemplate.ReplacementTemplateData
		require.NoError(t, json.Unmarshal([]byte(*to), &values))
		got, err := render(*in.many.DefaultContent.Template.TemplateContent.Text, values)
		require.NoError(t, err)
		require.Equal(t, models.Rewrite(c.Content.Text, func(string) string { return c.Recipients[0].Vars["v"] }), got)
	})
}

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	now := time.Unix(1795262400, 0)
	f.Add(ownTopic, "Notification", wrapped("{}"))
	f.Add(
		ownTopic,
		"SubscriptionConfirmation",
		[]byte(`{"Type":"SubscriptionConfirmation","MessageId":"1","TopicArn":"`+ownTopic+
			`","SignatureVersion":"1","Signature":"AAAA","SigningCertURL":"`+certURL+`"}`),
	)
	f.Fuzz(func(t *testing.T, topic, kind string, body []byte) {
		h := http.Header{}
		h.Set("X-Amz-Sns-Topic-Arn", topic)
		h.Set("X-Amz-Sns-Message-Type", kind)
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, h, body, now); !errors.As(err, &refusal) {
			t.Errorf("got %v for what Amazon never signed", err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		body := a.Body
		if a.Each != nil {
			body = a.Each(3)
		}
		f.Add(a.Status, a.Header["X-Amzn-Errortype"], []byte(body))
	}
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, code string, body []byte) {
		h := http.Header{"X-Amzn-Errortype": {code}}
		providertest.Check(t, c, p.classify(c, transport.Answer{Status: status, Header: h, Body: body}, time.Now()))
	})
}

// BenchmarkSend1000 makes the twenty calls for a thousand recipients to a server in the same process.
func BenchmarkSend1000(b *testing.B) {
	answer := acceptance(50)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answer)
	}))
	defer server.Close()
	p := adapter(b, server.URL)
	defer p.Close()
	c := providertest.SampleCall(50)
	b.ReportAllocs()
	for b.Loop() {
		for range 20 {
			if got := p.Send(b.Context(), c); got[0].Class != models.Accepted {
				b.Fatal(got)
			}
		}
	}
}
