package sendgrid

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/mail"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

var ownKey, oldKey, otherKey = newKey(), newKey(), newKey()

func newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}

func publicText(k any) string {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(der)
}

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "sg",
		Kind:          "sendgrid",
		APIKey:        "SG.test-key",
		BaseURL:       base,
		WebhookKey:    publicText(&ownKey.PublicKey),
		WebhookKeyOld: publicText(&oldKey.PublicKey),
	}
}

func adapter(t testing.TB, base string) *Adapter {
	t.Helper()
	p, err := New(testSettings(base))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestContract(t *testing.T) {
	mixed, err := os.ReadFile("testdata/webhook/mixed.json")
	if err != nil {
		t.Fatal(err)
	}
	providertest.Run(t, providertest.Suite{
		New:     func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries: Spec.Carries,

		ManyBytes: 9_000, ManyContent: 24_000_000,

		Read: read,
		Accept: func(w http.ResponseWriter, _ int) {
			w.Header().Set("X-Message-Id", "kGpFbi5dSnGdFMPIuSVEsA")
			w.WriteHeader(202)
		},
		Answers: answers(),
		Sign:    func(body []byte, at time.Time) (http.Header, []byte) { return sign(ownKey, body, at) },
		SignOld: func(body []byte, at time.Time) (http.Header, []byte) { return sign(oldKey, body, at) },
		Forge:   func(body []byte, at time.Time) (http.Header, []byte) { return sign(otherKey, body, at) },
		Shift: func(h http.Header, body []byte) (http.Header, []byte) {
			h = h.Clone()
			ts := h.Get(timestampHeader)
			h.Set(timestampHeader, ts[:9])
			return h, append([]byte(ts[9:]), body...)
		},
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `[{"email":"a@b.test","timestamp":1795262400,"event":"delivered",`+
				`"sg_event_id":"ZGVsaXZlcmVk","response":"250 OK","sd_log":"%s","sd_attempt":"%d"}]`+"\r\n", log, attempt)
		},
		Mixed:     mixed,
		MixedGood: 4,
		Lists:     listPages(),
	})
}

// listPages returns a page of each list.
func listPages() []providertest.List {
	at := time.Unix(1795262400, 0)
	page := func(list, fields string, want models.Listed) providertest.List {
		want.Email, want.At = "Ann@rcpt.test", at
		return providertest.List{List: list, Want: []models.Listed{want},
			Body: `[{"email":"Ann@rcpt.test","created":1795262400` + fields + `},{"email":"bob@rcpt.test","created":{}}]`}
	}
	bounce := func(status, reason string, want models.SuppressionReason, text string) providertest.List {
		return page("bounces", `,"status":"`+status+`","reason":"`+reason+`"`, models.Listed{Reason: want, Text: text})
	}
	return []providertest.List{
		bounce("5.1.1", "550 5.1.1 <ann@rcpt.test> unknown", models.HardBounce, "550 5.1.1 <address> unknown"),
		bounce("", "", models.HardBounce, ""),
		bounce("5.2.2", "552 5.2.2 Mailbox full", "", "552 5.2.2 Mailbox full"),
		bounce("5.7.1", "550 5.7.1 blocked by policy", "", "550 5.7.1 blocked by policy"),
		page("invalid_emails", `,"reason":"no MX"`, models.Listed{Reason: models.HardBounce, Text: "no MX"}),
		page("spam_reports", `,"ip":"192.0.2.1"`, models.Listed{Reason: models.Complaint}),
		page("unsubscribes", "", models.Listed{Reason: models.Unsubscribe}),
		page("blocks", `,"status":"4.0.0","reason":"reputation"`, models.Listed{Text: "reputation"}),
	}
}

func sign(key *ecdsa.PrivateKey, body []byte, at time.Time) (http.Header, []byte) {
	ts := strconv.FormatInt(at.Unix(), 10)
	hash := sha256.Sum256(append([]byte(ts), body...))
	der, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
	if err != nil {
		panic(err)
	}
	h := http.Header{}
	h.Set(timestampHeader, ts)
	h.Set(signatureHeader, base64.StdEncoding.EncodeToString(der))
	return h, body
}

// read checks a call as SendGrid would and returns what each recipient gets.
func read(r *http.Request, body []byte) ([]providertest.Copy, error) {
	type person = providertest.Person
	var m struct {
		From             person
		ReplyTo          *person  `json:"reply_to"`
		ReplyToList      []person `json:"reply_to_list"`
		Headers          map[string]string
		Categories       []string
		TrackingSettings struct {
			Click struct {
				Enable     bool
				EnableText bool `json:"enable_text"`
			} `json:"click_tracking"`
			Open struct{ Enable bool } `json:"open_tracking"`
		} `json:"tracking_settings"`
		Subject     string
		Content     []struct{ Type, Value string }
		Attachments []struct {
			Content                     []byte
			Type, Filename, Disposition string
			ContentID                   string `json:"content_id"`
		}
		CustomArgs       map[string]string `json:"custom_args"`
		Personalizations []struct {
			To, CC, BCC   []person
			Headers       map[string]string
			Substitutions map[string]string
			CustomArgs    map[string]string `json:"custom_args"`
		}
	}
	switch {
	case r.Method != "POST" || r.URL.Path != "/v3/mail/send":
		return nil, fmt.Errorf("%s %s", r.Method, r.URL)
	case r.Header.Get("Authorization") != "Bearer SG.test-key" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Accept") == "":
		return nil, fmt.Errorf("headers %v", r.Header)
	case r.Header.Get("Idempotency-Key") != "":
		return nil, errors.New("there is an Idempotency-Key")
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	if len(m.Personalizations) > 1000 || m.Subject == "" || len(m.Content) == 0 {
		return nil, errors.New("more than 1,000 personalizations, no subject or no content")
	}
	var files []providertest.File
	for _, a := range m.Attachments {
		kind := strings.TrimSuffix(a.Type, "; method=REQUEST") // the only parameter that it takes
		if a.Filename == "" || strings.ContainsAny(kind+a.Filename+a.ContentID, ";\r\n") || len(a.Content) == 0 ||
			(a.ContentID != "") != (a.Disposition == "inline") {
			return nil, fmt.Errorf("attachment %q of type %q", a.Filename, a.Type)
		}
		files = append(files, providertest.File{Name: a.Filename, Type: a.Type, ContentID: a.ContentID, Data: a.Content})
	}
	var out []providertest.Copy
	for _, p := range m.Personalizations {
		size := 0
		for k, v := range p.Substitutions {
			size += len(k) + len(v)
		}
		if len(p.To) == 0 || size > 10_000 {
			return nil, fmt.Errorf("personalization with %d recipients, %d bytes of substitutions", len(p.To), size)
		}
		if strings.ContainsAny(p.To[0].Name+m.From.Name, ";,\r\n") {
			return nil, fmt.Errorf("name %q", p.To[0].Name)
		}
		fill := func(s string) string {
			for range 2 { // twice and in any order, because no value may contain a token
				for k, v := range p.Substitutions {
					s = strings.ReplaceAll(s, k, v)
				}
			}
			return s
		}
		c := providertest.Copy{
			To:      p.To[0].Email,
			Name:    p.To[0].Name,
			Log:     p.CustomArgs["sd_log"],
			Attempt: m.CustomArgs["sd_attempt"],
			Subject: fill(m.Subject),
			From:    (&mail.Address{Name: m.From.Name, Address: m.From.Email}).String(),
		}
		if strings.Contains(strings.Join([]string{m.From.Name, p.To[0].Name}, ""), "\n") {
			return nil, errors.New("a line break in a name")
		}
		if m.ReplyTo != nil {
			if len(m.ReplyToList) > 0 {
				return nil, errors.New("reply_to beside reply_to_list")
			}
			m.ReplyToList = []person{*m.ReplyTo}
			m.ReplyTo = nil
		}
		for i, r := range m.ReplyToList {
			if i > 0 {
				c.ReplyTo += ", "
			}
			c.ReplyTo += (&mail.Address{Name: r.Name, Address: r.Email}).String()
		}
		c.Headers, c.Tags, c.Files = m.Headers, m.Categories, files
		if p.Headers != nil {
			if m.Headers != nil {
				return nil, errors.New("header fields in both places")
			}
			c.Headers = p.Headers
		}
		c.Opens, c.Clicks = m.TrackingSettings.Open.Enable, m.TrackingSettings.Click.Enable
		if m.TrackingSettings.Click.EnableText {
			return nil, errors.New("links in text are tracked")
		}
		for _, part := range m.Content {
			switch {
			case part.Value == "":
				return nil, errors.New("empty content")
			case part.Type == "text/plain" && c.HTML == "":
				c.Text = fill(part.Value)
			case part.Type == "text/html":
				c.HTML = fill(part.Value)
			default:
				return nil, fmt.Errorf("content %s out of order", part.Type)
			}
		}
		out = append(out, providertest.Shared(c, p.To, p.CC, p.BCC)...)
	}
	return out, nil
}

const errorBody = `{"errors":[{"message":%q,"field":%s,"help":null}]}`

func errorOf(message, field string) string {
	if field != "null" {
		field = strconv.Quote(field)
	}
	return fmt.Sprintf(errorBody, message, field)
}

func same(c models.Class) (three, one models.Class) { return c, c }

// answers returns the documented answers of SendGrid, with times relative to now.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		three, one := same(class)
		list = append(list, providertest.Answer{
			Name:   name,
			Status: status,
			Body:   body,
			Three:  three,
			One:    one,
			Reason: reason,
		})
		return &list[len(list)-1]
	}
	add("accepted", 202, "", models.Accepted, "").Header = map[string]string{"X-Message-Id": "abc"}
	add("accepted without id", 202, "", models.Accepted, "")
	add("accepted with garbage", 202, "<html>", models.Accepted, "")
	add("200 with id", 200, "", models.Accepted, "").Header = map[string]string{"X-Message-Id": "abc"}
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	a := add("named recipient", 400, errorOf("Does not contain a valid address.", "personalizations.1.to.0.email"),
		models.RejectedRecipient, models.MailboxInvalid)
	a.Others = models.Split
	a = add("unnamed recipient", 400, errorOf("Does not contain a valid address.", "null"), models.Split, "")
	a.One = models.RejectedRecipient
	a = add("unnamed personalization", 400,
		errorOf("The personalizations field is wrong for a@b.test", "personalizations"), models.Split, "")
	a.One = models.RejectedRecipient
	add("bad request", 400, errorOf("Bad Request", "null"), models.RejectedRequest, models.InvalidRequest)
	add("from", 400, errorOf("Does not contain a valid address.", "from.email"), models.RejectedRequest,
		models.InvalidRequest)
	add("content", 400, errorOf("The content value must be a string", "content.0.value"), models.RejectedRequest,
		models.InvalidRequest)
	add("type of an attachment", 400, errorOf("The attachment type cannot contain ';', or CRLF characters.",
		"attachments.0.type"), models.RejectedHereClass, models.RejectedHere)
	add("400 of a proxy", 400, "<html>Bad Request</html>", models.RejectedHereClass, "")
	add("key", 401, errorOf("The provided authorization grant is invalid, expired, or revoked", "null"),
		models.AccountClass, "")
	add("credits", 401, errorOf("Maximum credits exceeded", "null"), models.AccountClass, "")
	add("not authorized", 401, errorOf("Authenticated user is not authorized to send mail", "null"), models.AccountClass,
		"")
	add("identity", 403, errorOf("The from address does not match a verified Sender Identity.", "from"),
		models.AccountClass, models.SenderNotVerified)
	add("forbidden", 403, errorOf("access forbidden", "null"), models.AccountClass, "")
	a = add("forbidden for a while", 403, errorOf("too many bad requests", "null"), models.AccountClass, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "300"}, 5*time.Minute
	a = add("an unknown refusal with a time", 420, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "300"}, 5*time.Minute
	add("an unknown refusal", 420, "", models.RejectedHereClass, "")
	add("not found", 404, "404 page not found", models.AccountClass, "")
	add("method", 405, errorOf("method not allowed", "null"), models.AccountClass, "")
	add("accept", 406, "", models.AccountClass, "")
	add("time-out of the server", 408, "", models.Unavailable, "")
	a = add("time-out of the server for a while", 408, "", models.Unavailable, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "120"}, 2*time.Minute
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	reset := time.Now().Add(20 * time.Hour).Truncate(time.Second)
	add("rate", 429, errorOf("too many requests", "null"), models.Throttled, "")
	a = add("rate with seconds", 429, errorOf("too many requests", "null"), models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "90"}, 90*time.Second
	a = add("rate with reset", 429, errorOf("too many requests", "null"), models.Throttled, "")
	a.Header, a.RetryAt = map[string]string{"X-RateLimit-Reset": strconv.FormatInt(reset.Unix(), 10)}, reset
	add("rate with reset in the past", 429, "", models.Throttled,
		"").Header = map[string]string{"X-RateLimit-Reset": "1500000000"}
	add("residency", 451, errorOf("unavailable", "null"), models.AccountClass, "")
	add("internal", 500, `{"errors":[{"message":"An internal server error occurred"}]}`, models.Unknown, "")
	add("bad gateway", 502, "<html>", models.Unknown, "")
	add("unavailable", 503, "no", models.Unavailable, "")
	a = add("unavailable for a while", 503, "no", models.Unavailable, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "600"}, 10*time.Minute
	a = add("unavailable until a reset", 503, "no", models.Unavailable, "")
	a.Header, a.RetryAt = map[string]string{"X-RateLimit-Reset": strconv.FormatInt(reset.Unix(), 10)}, reset
	add("unavailable for a year", 503, "no", models.Unavailable, "").Header = map[string]string{"Retry-After": "31536000"}
	add("internal, with a time", 500, "no", models.Unknown, "").Header = map[string]string{"Retry-After": "600"}
	add("gateway time-out", 504, "", models.Unknown, "")
	return list
}
