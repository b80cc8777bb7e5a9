package sendgrid

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// TestRequests compares requests with testdata/request.
func TestRequests(t *testing.T) {
	plain := providertest.SampleCall(1)
	plain.Content = &models.Content{From: models.Address{Email: "a@s.test"}, Subject: "Hi", Text: "plain"}
	plain.Recipients[0].Recipient = models.Recipient{Email: "one@rcpt.test"}
	html := providertest.SampleCall(2)
	html.Content = &models.Content{From: models.Address{Email: "a@s.test", Name: "Ü"}, Subject: "Hi",
		HTML: `<a href="{{u}}">{{U}}{{u}}</a>`}
	for i := range html.Recipients {
		html.Recipients[i].Vars = map[string]string{"u": "https://x.test/?a=1&b=<2>", "U": "日本\u2028語\x01"}
	}
	for name, c := range map[string]*models.Call{"text": plain, "html": html, "both": providertest.SampleCall(3)} {
		t.Run(name, func(t *testing.T) {
			body, refused := compose(c)
			if refused != nil {
				t.Fatalf("refused: %+v", refused)
			}
			var out bytes.Buffer
			if err := json.Indent(&out, body, "", "  "); err != nil {
				t.Fatalf("%v in %s", err, body)
			}
			out.WriteByte('\n')
			providertest.Golden(t, "request/"+name+".json", out.Bytes())
		})
	}
}

// TestWebhooks parses every post of testdata/webhook.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 3) }

func TestBadRequest(t *testing.T) {
	p := adapter(t, "")
	for _, test := range []struct {
		n      int
		fields []string
		want   string
	}{
		{3, []string{"personalizations.1.to.0.email"}, "rejected_recipient:2 split:1,3"},
		{3, []string{"personalizations.0.to.0.email", "personalizations.2.to"}, "rejected_recipient:1,3 split:2"},
		{3, []string{"personalizations.0.to.0.email", "personalizations.1.to.0.email", "personalizations.2.to.0.email"},
			"rejected_recipient:1-3"},
		{1, []string{"personalizations.0.to.0.email"}, "rejected_recipient:1"},
		{3, []string{"personalizations.1.substitutions"}, "rejected_here:2 split:1,3"},
		{3, []string{"personalizations.0.to.0.email", "personalizations.1.substitutions", "personalizations.0.custom_args"},
			"rejected_recipient:1 rejected_here:2 split:3"},
		{3, []string{"personalizations.7.to.0.email"}, "split:1-3"},
		{3, []string{"subject", "personalizations.1.to.0.email"}, "rejected_recipient:2 split:1,3"},
		{3, []string{"subject"}, "rejected_request:1-3"},
	} {
		var errs []string
		for _, f := range test.fields {
			errs = append(errs, fmt.Sprintf(`{"message":"Does not contain a valid address: user2@rcpt.test.","field":%q}`, f))
		}
		parts := p.classify(providertest.SampleCall(test.n),
			transport.Answer{Status: 400, Body: []byte(`{"errors":[` + strings.Join(errs, ",") + `]}`)}, time.Now())
		var got []string
		for _, part := range parts {
			got = append(got, string(part.Class)+":"+part.Recipients.String())
			if strings.Contains(part.Text, "@") {
				t.Errorf("text %q", part.Text)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%d recipients, %v: got %v, want %s", test.n, test.fields, got, test.want)
		}
	}
}

func TestLimits(t *testing.T) {
	c := providertest.SampleCall(3)
	c.Recipients[1].Vars["order"] = strings.Repeat("x", 5000) // subject, text and HTML: three times
	_, parts := compose(c)
	if len(parts) != 2 || parts[0].Class != models.RejectedHereClass || parts[0].Recipients != models.SetOf(2) ||
		parts[1].Class != models.Split {
		t.Errorf("substitutions too long: %+v", parts)
	}
	c = providertest.SampleCall(1)
	c.Content.Subject = " \r\n"
	if _, parts = compose(c); parts != nil {
		t.Errorf("a blank subject: %+v", parts)
	}
	c.Content.Subject = ""
	if _, parts = compose(c); len(parts) != 1 || parts[0].Class != models.RejectedHereClass {
		t.Errorf("no subject: %+v", parts)
	}
	c = providertest.SampleCall(1)
	c.Content.From.Email = "ü@sender.test"
	if _, parts = compose(c); len(parts) != 1 || parts[0].Class != models.RejectedHereClass {
		t.Errorf("sender beyond ASCII: %+v", parts)
	}
}

// A value that contains the token of another placeholder must make the call use other tokens.
func TestTokensAreNotInValues(t *testing.T) {
	c := providertest.SampleCall(2)
	first := tokenPrefix(c)
	c.Recipients[1].Vars["order"] = first + "t0-"
	if tokenPrefix(c) == first {
		t.Error("the tokens stayed the same")
	}
	c.Content.HTML += tokenPrefix(c)
	if p := tokenPrefix(c); p == first || strings.Contains(c.Content.HTML, p) {
		t.Error("the tokens are in the content")
	}
}

func TestCheck(t *testing.T) {
	if errs := Spec.Check(testSettings("https://host.test/v3/")); len(errs) != 0 {
		t.Error(errs)
	}
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	ed, _, _ := ed25519.GenerateKey(rand.Reader)
	for name, key := range map[string]string{"not base64": "!!!", "no key": "aGVsbG8=",
		"wrong curve": publicText(&p384.PublicKey), "no ECDSA": publicText(ed), "missing": ""} {
		s := testSettings("")
		s.WebhookKey, s.WebhookKeyOld = key, ""
		if len(Spec.Check(s)) != 1 {
			t.Errorf("%s: %v", name, Spec.Check(s))
		}
		if p, err := New(s); err == nil || p != nil {
			t.Errorf("%s: New took it", name)
		}
	}
	s := testSettings("ftp://u:secret@x")
	s.Name, s.APIKey, s.Timeout, s.MaxConns, s.WebhookKey, s.WebhookKeyOld = "Batch", "", -1, -1, "secret", "secret"
	errs := Spec.Check(s)
	if len(errs) != 7 || strings.Contains(errors.Join(errs...).Error(), "secret") {
		t.Errorf("%d mistakes: %v", len(errs), errs)
	}
	s = testSettings("")
	s.WebhookKey, s.WebhookKeyOld, s.Events = "", "", models.EventsNone
	p, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	var refusal *models.WebhookError
	if _, err := providertest.Verify(p, http.Header{}, []byte("[]"), time.Now()); !errors.As(err, &refusal) ||
		refusal.Status != 503 ||
		refusal.Code != "not_configured" {
		t.Errorf("without a key: %v", err)
	}
}

// TestVerifyHeader checks that a post whose signature headers are missing or malformed is refused
// without its body.
func TestVerifyHeader(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	for name, c := range map[string]struct {
		signature, timestamp string
		status               int
	}{
		"no signature":        {"", "1795262400", 401},
		"no timestamp":        {"MAA=", "", 401},
		"not base64":          {"%%%%", "1795262400", 401},
		"too long":            {strings.Repeat("A", 4000), "1795262400", 401},
		"not ten digits":      {"MAA=", "17952624001", 400},
		"two days old":        {"MAA=", "1795089600", 403},
		"not refused by this": {"MAA=", "1795262400", 0},
	} {
		h := http.Header{}
		h.Set(signatureHeader, c.signature)
		h.Set(timestampHeader, c.timestamp)
		err := p.VerifyHeader(&models.Webhook{Header: h, At: now})
		var refusal *models.WebhookError
		if c.status == 0 && err != nil || c.status != 0 && (!errors.As(err, &refusal) || refusal.Status != c.status) {
			t.Errorf("%s: %v, want status %d", name, err, c.status)
		}
	}
}

// TestManyEvents parses very large posts: 10,000 events and 30 MB.
func TestManyEvents(t *testing.T) {
	p := adapter(t, "")
	for _, n := range []int{10_000, 120_000} {
		var b bytes.Buffer
		b.WriteByte('[')
		for i := range n {
			if i > 0 {
				b.WriteString(",\r\n")
			}
			fmt.Fprintf(&b, `{"email":"user%d@rcpt.test","timestamp":1795262400,"event":"delivered","sg_event_id":"e%d",`+
				`"sg_message_id":"x.y.%d.0","response":"250 2.0.0 OK","smtp-id":"<x@y>","ip":"203.0.113.25","tls":1,`+
				`"sd_log":"%s","sd_attempt":"1"}`,
				i, i, i, providertest.SampleBatch().Chunk(i/1000).Log(i%1000+1))
		}
		b.WriteString("]\r\n")
		began := time.Now()
		got := p.Parse(b.Bytes())
		if len(got.Events) != n || len(got.Skipped) != 0 {
			t.Errorf("%d events of %d, %d skipped", len(got.Events), n, len(got.Skipped))
		}
		t.Logf("%d events, %d MB: %v", n, b.Len()>>20, time.Since(began))
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/webhook/*.json")
	for _, file := range files {
		body, _ := os.ReadFile(file)
		f.Add(body)
	}
	f.Add([]byte(`[{"event":"bounce","sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":"1",` +
		`"reason":"550 5.1.1 <a@b.test>"},{]`))
	p := adapter(f, "")
	f.Fuzz(func(t *testing.T, body []byte) { providertest.Sound(t, p.Parse(body)) })
}

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	now := time.Unix(1795262400, 0)
	h, body := sign(otherKey, []byte("[]"), now)
	f.Add(h.Get(signatureHeader), h.Get(timestampHeader), body)
	f.Add("MAA=", "1795262400", []byte("[]"))
	f.Add("", "", []byte(nil))
	f.Fuzz(func(t *testing.T, signature, timestamp string, body []byte) {
		h := http.Header{}
		h.Set(signatureHeader, signature)
		h.Set(timestampHeader, timestamp)
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, h, body, now); !errors.As(err, &refusal) {
			t.Errorf("got %v for what our key never signed", err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, a.Header["X-RateLimit-Reset"], []byte(a.Body), false)
	}
	f.Add(400, "", []byte(`{"errors":[{"field":"personalizations.2.to.0.email","message":"a@b.test"}]}`), true)
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, header string, body []byte, cut bool) {
		h := http.Header{}
		h.Set("X-Message-Id", header)
		h.Set("X-Ratelimit-Reset", header)
		h.Set("Retry-After", header)
		providertest.Check(t, c, p.classify(c, transport.Answer{
			Status: status,
			Header: h,
			Body:   body,
			Cut:    cut,
		}, time.Now()))
	})
}

func BenchmarkCompose1000(b *testing.B) {
	c := providertest.SampleCall(1000)
	b.ReportAllocs()
	for b.Loop() {
		if _, refused := compose(c); refused != nil {
			b.Fatal(refused)
		}
	}
}

// BenchmarkSend1000 measures a whole call to a server in the same process.
func BenchmarkSend1000(b *testing.B) { benchmarkSend(b, providertest.SampleCall(1000)) }
