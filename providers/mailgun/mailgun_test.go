package mailgun

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// TestRequests compares requests with testdata/request. Parts with a prefix (h:, v:) are
// sorted, because the SDK keeps them in maps.
func TestRequests(t *testing.T) {
	plain := providertest.SampleCall(1)
	plain.Content = &models.Content{From: models.Address{Email: "a@s.test"}, Subject: "Hi", Text: "plain"}
	plain.Recipients[0].Recipient = models.Recipient{Email: "one@rcpt.test"}
	html := providertest.SampleCall(2)
	html.Content = &models.Content{From: models.Address{Email: "a@s.test", Name: "Ü"}, Subject: "Hi",
		HTML: `<a href="{{u}}">{{U}}{{u}}</a>%recipient.x%`}
	for i := range html.Recipients {
		html.Recipients[i].Vars = map[string]string{"u": "https://x.test/?a=1&b=<2>%recipient%", "U": "日本\u2028語\x01"}
	}
	literal := providertest.SampleCall(1)
	literal.Content.Text, literal.Content.Subject = "100% %recipient.sd_log% {{order}} %unsubscribe_url%", "%recipient%"
	for name, c := range map[string]*models.Call{"text": plain, "html": html, "both": providertest.SampleCall(3),
		"literal": literal} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				list, err := parts(r.Header.Get("Content-Type"), body)
				if err != nil {
					t.Error(err)
				}
				sort.SliceStable(list, func(i, k int) bool {
					return list[i].name[1:2] == ":" && list[k].name[1:2] == ":" && list[i].name < list[k].name
				})
				fmt.Fprintf(&out, "POST %s\n", r.URL.Path)
				for _, f := range list {
					fmt.Fprintf(&out, "--boundary\n%s\n\n%s\n", f.name, f.value)
				}
				_, _ = io.WriteString(w, acceptance)
			}))
			defer server.Close()
			p := adapter(t, server.URL+"/v3/")
			defer p.Close()
			got := p.Send(t.Context(), c)
			if len(got) != 1 || got[0].Class != models.Accepted || got[0].MessageID != "20260101120000.1.ABC@mg.sender.test" {
				t.Errorf("answer %+v", got)
			}
			providertest.Golden(t, "request/"+name+".txt", out.Bytes())
		})
	}
}

// TestWebhooks parses every post of testdata/webhook.
func TestWebhooks(t *testing.T) { providertest.Posts(t, adapter(t, ""), 10) }

// TestRecipientNames checks how the name of a recipient stands before its address.
func TestRecipientNames(t *testing.T) {
	for name, want := range map[string]string{
		"":                     "a.b@rcpt.test",
		" \r\n":                "a.b@rcpt.test",
		"Ann":                  `"Ann" <a.b@rcpt.test>`,
		`Doe, "Jane" <x@y.z>`:  `"Doe, \"Jane\" <x@y.z>" <a.b@rcpt.test>`,
		"Zoë\r\nBcc: x@y.test": "=?utf-8?b?Wm/DqyBCY2M6IHhAeS50ZXN0?= <a.b@rcpt.test>",
		"%recipient.sd_log%":   "a.b@rcpt.test",
		"100% Ann":             `"100% Ann" <a.b@rcpt.test>`,
	} {
		if got := recipient(&models.Recipient{Email: "a.b@rcpt.test", Name: name}); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	c := providertest.SampleCall(2)
	m, refused := compose(c)
	if refused != nil || m.RecipientVariables()["user1@rcpt.test"] == nil || len(m.RecipientVariables()) != 2 {
		t.Errorf("variables of %v, refused %v", m.RecipientVariables(), refused)
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := map[string]string{kind.LogKey: "ours", percentKey: "ours", kind.AttemptKey: "ours"}
	for _, name := range []string{"a", "A", "_a", "a_", "a-", "a.", "a_2d", "a_2D", "_2d", "aB", "Ab", "_41", "x_61",
		"sd_log", "sd_pct"} {
		for _, form := range []message.Form{message.HTMLForm, message.TextForm, message.SubjectForm} {
			k := key(message.Var{Name: name, Form: form})
			if seen[k] != "" {
				t.Errorf("%s and %s are both %s", name, seen[k], k)
			}
			seen[k] = name
			if strings.Trim(k, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("key %q", k)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	c := providertest.SampleCall(3)
	c.Recipients[1].Vars["order"] = strings.Repeat("x", 9_000_000)
	_, got := compose(c)
	if len(got) != 2 || got[0].Class != models.RejectedHereClass || got[0].Recipients != models.SetOf(2) ||
		got[1].Class != models.Split {
		t.Errorf("one recipient's values too long: %+v", got)
	}
	c = providertest.SampleCall(1)
	c.Content.ReplyTo[0].Name = strings.Repeat("n", 17_000)
	if _, got = compose(c); len(got) != 1 || got[0].Class != models.RejectedHereClass {
		t.Errorf("options too long: %+v", got)
	}
	c = providertest.SampleCall(10)
	for i := range c.Recipients {
		c.Recipients[i].Vars["order"] = strings.Repeat("x", 2_000_000)
	}
	if _, got = compose(c); len(got) != 1 || got[0].Class != models.RejectedHereClass {
		t.Errorf("request too long: %d parts", len(got))
	}
}

func TestCheck(t *testing.T) {
	for _, base := range []string{"", "https://api.eu.mailgun.net", "https://api.eu.mailgun.net/",
		"https://api.eu.mailgun.net/v3", "http://127.0.0.1:1/mg/v3/"} {
		p := adapter(t, base)
		if got := p.Root + version; !strings.HasSuffix(got, "/v3") || strings.Contains(got, "/v3/v3") ||
			strings.Contains(got[8:], "//") {
			t.Errorf("base %q became %q", base, got)
		}
	}
	for _, domain := range []string{"", "a/b.test", "nodot", "a..b", "a b.test", "-a.test", "ü.test", "a.test\r\n"} {
		s := testSettings("")
		s.Domain = domain
		if len(Spec.Check(s)) != 1 {
			t.Errorf("domain %q: %v", domain, Spec.Check(s))
		}
	}
	s := testSettings("")
	s.WebhookKey, s.WebhookKeyOld = "", ""
	if p, err := New(s); err == nil || p != nil {
		t.Error("an empty webhook key was taken")
	}
	s.Events = models.EventsNone
	p, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	_, forged := sign("", []byte(`{"event-data":{}}`), time.Now())
	var refusal *models.WebhookError
	if _, err := providertest.Verify(p, http.Header{}, forged, time.Now()); !errors.As(err, &refusal) ||
		refusal.Status != 503 ||
		refusal.Code != "not_configured" {
		t.Errorf("without a key: %v", err)
	}
}

func TestVerifyStatuses(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	_, good := sign("signing-key", []byte(`{"event-data":{}}`), now)
	replay, err := providertest.Verify(p, http.Header{}, good, now)
	mac, ok := strings.CutPrefix(replay, "1795262400.")
	if err != nil || !ok || len(mac) != 64 {
		t.Fatalf("%q, %v", replay, err)
	}
	// Hex in another case is the same signature; the timestamp may be a number.
	_, sig, _ := bytes.Cut(good, []byte(`"signature":"`))
	upper := bytes.Replace(good, sig[:64], bytes.ToUpper(sig[:64]), 1)
	number := bytes.Replace(good, []byte(`"1795262400"`), []byte(`1795262400`), 1)
	for _, body := range [][]byte{upper, number} {
		if got, err := providertest.Verify(p, http.Header{}, body, now); err != nil || got != replay {
			t.Errorf("%s: %q, %v", body, got, err)
		}
	}
	for body, status := range map[string]int{
		"": 400, "{": 400, "[]": 400, `{"signature":null}`: 400, `{"signature":{"timestamp":"1795262400","token":"t"}}`: 400,
		`{"signature":{"timestamp":"1795262400","token":"t","signature":"zz"}}`:                        401,
		`{"signature":{"timestamp":"1795262400","token":"t","signature":"` + mac + `"}}`:               401,
		strings.Replace(string(good), `0","token":"0`, `","token":"00`, 1):                             400,
		strings.Replace(string(good), `1795262400","token":"0`, `17952624000","token":"`, 1):           400,
		strings.Replace(string(good), `"timestamp":"1795262400"`, `"timestamp":" 1795262400"`, 1):      401,
		strings.Replace(string(good), `"signature":{"timestamp"`, `"signature":{"x":1,"timestamp"`, 1): 0,
		strings.Replace(string(good), `"event-data":{}`, `"event-data":{"event":"failed"}`, 1):         0, // not covered
	} {
		got, err := providertest.Verify(p, http.Header{}, []byte(body), now)
		var refusal *models.WebhookError
		switch {
		case status == 0 && (err != nil || got != replay):
			t.Errorf("%s: %q, %v", body, got, err)
		case status != 0 && (!errors.As(err, &refusal) || refusal.Status != status):
			t.Errorf("%s: %v, want status %d", body, err, status)
		}
	}
	if _, err := providertest.Verify(p, http.Header{}, good, now.Add(100*time.Hour)); !errors.As(
		err,
		new(*models.WebhookError),
	) {
		t.Errorf("stale: %v", err)
	}
}

// TestWrongKeyIsRepeated checks that Mailgun repeats a post whose signature does not fit, also right after
// one that fits: the key at Mailgun may just have been reset.
func TestWrongKeyIsRepeated(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	verify := func(key string, at time.Time) int {
		_, body := sign(key, []byte(`{"event-data":{}}`), at)
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, http.Header{}, body, at); errors.As(err, &refusal) {
			return refusal.Status
		}
		return 0
	}
	for _, step := range []struct {
		key    string
		after  time.Duration
		status int
	}{
		{"other", 0, 401},
		{"signing-key", 0, 0},
		{"other", time.Minute, 401},
		{"other", time.Hour, 401},
		{"old-key", time.Hour, 0},
		{"other", time.Hour, 401},
		{"other", -time.Hour, 401},
	} {
		if got := verify(step.key, now.Add(step.after)); got != step.status {
			t.Errorf("%s after %v: status %d, want %d", step.key, step.after, got, step.status)
		}
	}
}

// TestLegacyPosts checks that form posts of old domains are verified and parsed like others.
func TestLegacyPosts(t *testing.T) {
	p := adapter(t, "")
	now := time.Unix(1795262400, 0)
	log := providertest.SampleBatch().Log(1)
	ours := [][2]string{{"sd_log", log.String()}, {"sd_attempt", "2"}}
	header := [][2]string{{"message-headers",
		`[["To","a@b.test"],["X-Mailgun-Variables","{\"sd_log\": \"` + log.String() + `\", \"sd_attempt\": \"2\"}"]]`}}
	for _, c := range []struct {
		name   string
		fields [][2]string
		ours   [][2]string
		kind   models.EventKind
		reason models.Reason
	}{
		{"delivered", [][2]string{{"event", "delivered"}, {"Message-Id", "<1@mg.sender.test>"}}, ours, models.Delivered, ""},
		{"delivered, by header", [][2]string{{"event", "delivered"}}, header, models.Delivered, ""},
		{"bounced", [][2]string{{"event", "bounced"}, {"code", "550"}, {"error", "5.1.1 no such user a@b.test"}}, ours,
			models.Bounced, models.MailboxInvalid},
		{"dropped", [][2]string{{"event", "dropped"}, {"reason", "hardfail"}, {"code", "605"},
			{"description", "Not delivering to previously bounced address"}}, ours, models.Dropped, models.SuppressedBounce},
		{"dropped, old", [][2]string{{"event", "dropped"}, {"reason", "old"}, {"code", "499"}}, ours, models.Bounced,
			models.DNSOrConnect},
		{"complained", [][2]string{{"event", "complained"}}, ours, models.Complained, ""},
		{"clicked, with a variable timestamp", [][2]string{{"event", "clicked"}, {"timestamp", "x"}}, ours, models.Clicked,
			""},
		{"inbound", [][2]string{{"sender", "a@b.test"}}, nil, "", ""},
	} {
		for kind, encode := range map[string]func([][2]string) []byte{"urlencoded": urlencoded, "multipart": multiparted} {
			list := slices.Concat(c.fields, c.ours, signedFields("signing-key", now))
			body := encode(list)
			replay, err := providertest.Verify(p, http.Header{}, body, now)
			if err != nil || replay == "" {
				t.Errorf("%s, %s: %q, %v", c.name, kind, replay, err)
			}
			var refusal *models.WebhookError
			forged := encode(slices.Concat(c.fields, c.ours, signedFields("other", now)))
			if _, err := providertest.Verify(p, http.Header{}, forged, now); !errors.As(err, &refusal) ||
				refusal.Code != "bad_signature" {
				t.Errorf("%s, %s, forged: %v", c.name, kind, err)
			}
			got := p.Parse(body)
			providertest.Sound(t, got)
			if c.kind == "" {
				if len(got.Events) != 0 || len(got.Skipped) != 1 {
					t.Errorf("%s, %s: %+v", c.name, kind, got)
				}
				continue
			}
			if len(got.Events) != 1 {
				t.Errorf("%s, %s: skipped %q", c.name, kind, got.Skipped)
				continue
			}
			e := got.Events[0]
			if e.Log != log || e.Event.Attempt != 2 || e.Event.Kind != c.kind || e.Event.Reason != c.reason ||
				!e.Event.At.Equal(now) {
				t.Errorf("%s, %s: %+v", c.name, kind, e)
			}
		}
	}
	for name, body := range map[string]string{
		"urlencoded":      "a=1" + strings.Repeat("&a", 1<<19),
		"multipart":       strings.Repeat("--x\r\n\r\n", 1<<17),
		"a long boundary": strings.Repeat("-", 1<<20),
	} {
		var refusal *models.WebhookError
		took := time.Hour
		for i := 0; i < 5 && took > time.Second; i++ { // the machine may pause during some of them
			began := time.Now()
			if _, err := providertest.Verify(p, http.Header{}, []byte(body), now); !errors.As(err, &refusal) ||
				refusal.Code != "malformed" {
				t.Errorf("%s, with very many fields: %v", name, err)
			}
			took = min(took, time.Since(began))
		}
		if took > time.Second {
			t.Errorf("%s, with very many fields: took %v", name, took)
		}
	}
}

func signedFields(key string, at time.Time) [][2]string {
	ts, token := strconv.FormatInt(at.Unix(), 10), strings.Repeat("0a1b2c3d4e", 5)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(ts + token))
	return [][2]string{{"timestamp", ts}, {"token", token}, {"signature", hex.EncodeToString(mac.Sum(nil))}}
}

func urlencoded(fields [][2]string) []byte {
	var list []string
	for _, f := range fields {
		list = append(list, url.QueryEscape(f[0])+"="+url.QueryEscape(f[1]))
	}
	return []byte(strings.Join(list, "&"))
}

func multiparted(fields [][2]string) []byte {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		_ = w.WriteField(f[0], f[1])
	}
	_ = w.Close()
	return b.Bytes()
}

// TestLargePost parses a post of 30 MB with one event.
func TestLargePost(t *testing.T) {
	p := adapter(t, "")
	body := []byte(`{"event-data":{"event":"delivered","id":"x","timestamp":1795262400,"user-variables":{"sd_log":"` +
		providertest.SampleBatch().Log(1).String() +
		`","sd_attempt":"1"},"delivery-status":{"message":"` + strings.Repeat("x ", 15_000_000) + `"}}}`)
	_, body = sign("signing-key", body, time.Now())
	if _, err := providertest.Verify(p, http.Header{}, body, time.Now()); err != nil {
		t.Error(err)
	}
	got := p.Parse(body)
	providertest.Sound(t, got)
	if len(got.Events) != 1 {
		t.Errorf("skipped %q", got.Skipped)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/webhook/*.json")
	for _, file := range files {
		body, _ := os.ReadFile(file)
		f.Add(body)
	}
	ours := [][2]string{{"event", "bounced"}, {"sd_log", providertest.SampleBatch().Log(1).String()}, {"sd_attempt", "1"}}
	f.Add(urlencoded(ours))
	f.Add(multiparted(ours))
	p := adapter(f, "")
	f.Fuzz(func(t *testing.T, body []byte) { providertest.Sound(t, p.Parse(body)) })
}

func FuzzVerify(f *testing.F) {
	p := adapter(f, "")
	now := time.Unix(1795262400, 0)
	_, body := sign("other", []byte(`{"event-data":{}}`), now)
	f.Add(body)
	_, body = sign("", []byte(`{"event-data":{}}`), now)
	f.Add(body)
	f.Add([]byte(`{"signature":{"timestamp":1,"token":[],"signature":""}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var refusal *models.WebhookError
		if _, err := providertest.Verify(p, http.Header{}, body, now); !errors.As(err, &refusal) {
			t.Errorf("got %v for what our key never signed", err)
		}
	})
}

func FuzzClassify(f *testing.F) {
	for _, a := range answers() {
		f.Add(a.Status, a.Header["Retry-After"], []byte(a.Body), false)
	}
	f.Add(200, "", []byte(`{"id":"<a@b`), true)
	p := adapter(f, "")
	c := providertest.SampleCall(3)
	f.Fuzz(func(t *testing.T, status int, header string, body []byte, cut bool) {
		h := http.Header{}
		h.Set("Retry-After", header)
		h.Set("Content-Type", header)
		providertest.Check(t, c, p.classify(c, transport.Answer{
			Status: status,
			Header: h,
			Body:   body,
			Cut:    cut,
		}, time.Now()))
	})
}
