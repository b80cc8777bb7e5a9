package resend

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/mail"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const (
	ownKey   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oldKey   = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
	otherKey = "whsec_plJ3nmyCDGBKInavdOK15jsl1lRmFWPL"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "rs",
		Kind:          "resend",
		APIKey:        "re_test",
		BaseURL:       base,
		WebhookKey:    ownKey,
		WebhookKeyOld: oldKey,
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
	providertest.Run(t, providertest.Suite{
		New:         func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries:     Spec.Carries,
		ManyBytes:   1_000_000,
		ManyContent: 24_000_000,
		FilesSingly: true,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Answers:     answers(),
		Sign:        func(body []byte, at time.Time) (http.Header, []byte) { return sign(ownKey, body, at) },
		SignOld:     func(body []byte, at time.Time) (http.Header, []byte) { return sign(oldKey, body, at) },
		Forge:       func(body []byte, at time.Time) (http.Header, []byte) { return sign(otherKey, body, at) },
		Shift: func(h http.Header, body []byte) (http.Header, []byte) {
			h = h.Clone()
			h.Set("Svix-Timestamp", h.Get("Svix-Timestamp")+"."+string(body[:1]))
			return h, body[1:]
		},
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `{"type":"email.delivered","created_at":"2026-11-21T12:00:00.123Z","data":{"email_id":`+
				`"e1","to":["a@b.test"],"tags":{"sd_log":"%s","sd_attempt":"%d"}}}`, log, attempt)
		},
		Mixed: []byte(`{"type":"email.bounced","created_at":7,"data":{"email_id":{},"to":"a@b.test","tags":` +
			`{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":1},` +
			`"bounce":{"message":[],"type":"Permanent","subType":null,"diagnosticCode":"smtp; 550 5.1.1 a@b.test unknown"}}}`),
		MixedGood: 1,
		Lists:     listPages(),
	})
}

func listPages() (out []providertest.List) {
	for list, reason := range map[string]models.SuppressionReason{
		"bounce": models.HardBounce, "complaint": models.Complaint, "manual": "",
	} {
		out = append(out, providertest.List{
			List: list,
			Body: `{"object":"list","has_more":false,"data":[{"id":"1","email":"ann@rcpt.test","origin":"` + list +
				`","created_at":"2026-11-21 12:00:00.5+00"},{"id":"2","email":"bob@rcpt.test","created_at":{}}]}`,
			Want: []models.Listed{{Email: "ann@rcpt.test", Reason: reason,
				At: time.Date(2026, 11, 21, 12, 0, 0, 500_000_000, time.UTC)}},
		})
	}
	return out
}

func sign(key string, body []byte, at time.Time) (http.Header, []byte) {
	secret, _ := kind.SvixKey(key)
	h := http.Header{}
	h.Set("Svix-Id", "msg_1")
	h.Set("Svix-Timestamp", strconv.FormatInt(at.Unix(), 10))
	h.Set("Svix-Signature", svix(secret, "msg_1", h.Get("Svix-Timestamp"), body))
	return h, body
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	if n == 1 {
		return `{"id":"e0"}`
	}
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf(`{"id":"e%d"}`, i))
	}
	return `{"data":[` + strings.Join(ids, ",") + `]}`
}

type email struct {
	From        string
	To          []string
	ReplyTo     []string `json:"reply_to"`
	Subject     string
	Text, HTML  string
	Headers     map[string]string
	Tags        []struct{ Name, Value string }
	Attachments []struct {
		Filename    string
		Content     []byte
		ContentType string `json:"content_type"`
		ContentID   string `json:"content_id"`
	}
}

var tagText = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// read checks a call as Resend would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var list []email
	single := r.URL.Path == "/emails"
	if single {
		body = append(append([]byte("["), body...), ']')
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	switch err := d.Decode(&list); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || !single && r.URL.Path != "/emails/batch" || single != (len(list) == 1):
		return nil, fmt.Errorf("%s %s with %d mails", r.Method, r.URL, len(list))
	case r.Header.Get("Authorization") != "Bearer re_test" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("X-Batch-Validation") != "permissive":
		return nil, fmt.Errorf("headers %v", r.Header)
	case len(r.Header.Get("Idempotency-Key")) < 10 || len(r.Header.Get("Idempotency-Key")) > 256 || len(list) > 100:
		return nil, errors.New("no idempotency key, or too many mails")
	}
	for _, m := range list {
		c := providertest.Copy{Subject: m.Subject, Text: m.Text, HTML: m.HTML, Headers: m.Headers}
		if len(m.To) != 1 || m.Subject == "" || m.Text == "" && m.HTML == "" || !single && len(m.Attachments) > 0 {
			return nil, fmt.Errorf("%d recipients, no content, or attachments in a batch", len(m.To))
		}
		for _, tag := range m.Tags {
			if !tagText.MatchString(tag.Name) || !tagText.MatchString(tag.Value) {
				return nil, fmt.Errorf("tag %+v", tag)
			}
			*map[string]*string{kind.LogKey: &c.Log, kind.AttemptKey: &c.Attempt}[tag.Name] = tag.Value
		}
		var to, from *mail.Address
		if to, err = named(m.To[0]); err != nil {
			return nil, err
		}
		if from, err = named(m.From); err != nil {
			return nil, err
		}
		c.To, c.Name, c.From = to.Address, to.Name, from.String()
		for i, text := range m.ReplyTo {
			a, err := named(text)
			if err != nil {
				return nil, err
			}
			c.ReplyTo += map[bool]string{true: ", ", false: ""}[i > 0] + a.String()
		}
		for _, a := range m.Attachments {
			c.Files = append(
				c.Files,
				providertest.File{Name: a.Filename, Type: a.ContentType, ContentID: a.ContentID, Data: a.Content},
			)
		}
		out = append(out, c)
	}
	return out, nil
}

// named reads an address as Resend does, which refuses quotes, and encoded names.
func named(s string) (*mail.Address, error) {
	name, address, ok := strings.Cut(strings.TrimSuffix(s, ">"), " <")
	if !ok {
		name, address = "", s
	}
	if strings.ContainsAny(name, `,;:<>()[]@"\`+"\r\n") || strings.HasPrefix(name, "=?") ||
		ok != strings.HasSuffix(s, ">") {
		return nil, fmt.Errorf("address %q", s)
	}
	one, err := mail.ParseAddress(address)
	if err != nil || one.Name != "" {
		return nil, fmt.Errorf("address %q: %w", s, err)
	}
	return &mail.Address{Name: name, Address: address}, nil
}

func refusal(name, message string) string {
	b, _ := json.Marshal(map[string]any{"statusCode": 1, "name": name, "message": message})
	return string(b)
}

// answers returns the documented answers of Resend.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(
			list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason},
		)
		return &list[len(list)-1]
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("accepted fewer", 200, acceptance(2), models.Unknown, "")
	add("accepted more", 200, acceptance(4), models.Unknown, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	one := func(message string) func(n int) string {
		return func(n int) string {
			if n == 1 {
				return `{"data":[],"errors":[{"index":0,"message":"` + message + `"}]}`
			}
			return `{"data":[{"id":"a"},{"id":"c"}],"errors":[{"index":1,"message":"` + message + `"}]}`
		}
	}
	a := add("one address of a batch", 200, "", models.RejectedRecipient, models.MailboxInvalid)
	a.Each, a.Others = one(
		"Invalid `to` field. The email address needs to follow the `email@example.com` format.",
	), models.Accepted
	a = add("one mail of a batch", 200, "", models.RejectedRequest, models.InvalidRequest)
	a.Each, a.Others = one("The `html` is too odd"), models.Accepted
	add("an index that no mail has", 200, `{"data":[{"id":"a"},{"id":"b"}],"errors":[{"index":7,"message":"x"}]}`,
		models.Unknown, "")
	add(
		"the same index twice",
		200,
		`{"data":[{"id":"a"}],"errors":[{"index":0,"message":"x"},{"index":0,"message":"x"}]}`,
		models.Unknown,
		"",
	)
	add("key of idempotency", 400, refusal("invalid_idempotency_key", "1 to 256 characters"), models.RejectedHereClass, "")
	add("invalid", 400, refusal("validation_error", "Something is wrong"), models.RejectedRequest, models.InvalidRequest)
	add("invalid API key", 400, refusal("validation_error", "API key is invalid"), models.AccountClass, "")
	a = add(
		"some address",
		422,
		refusal("validation_error", "Invalid `to` field. The address is wrong: a@b.test"),
		models.Split,
		"",
	)
	a.One = models.RejectedRecipient
	add("no key", 401, refusal("missing_api_key", "Missing API key"), models.AccountClass, "")
	add("restricted key", 401, refusal("restricted_api_key", "This API key is restricted"), models.AccountClass, "")
	add("bad key", 403, refusal("invalid_api_key", "API key is invalid"), models.AccountClass, "")
	add("suspended", 403, refusal("suspended_api_key", "suspended"), models.AccountClass, "")
	add("domain", 403, refusal("validation_error", "The sender.test domain is not verified."), models.AccountClass,
		models.SenderNotVerified)
	add("not found", 404, refusal("not_found", "The requested endpoint does not exist"), models.AccountClass, "")
	add("method", 405, refusal("method_not_allowed", "no"), models.AccountClass, "")
	add(
		"the key with another body",
		409,
		refusal("invalid_idempotent_request", "Same key, other payload"),
		models.Unknown,
		"",
	)
	add("the key at once", 409, refusal("concurrent_idempotent_requests", "in progress"), models.Unknown, "")
	add("locked", 409, refusal("resource_locked", "locked"), models.Unknown, "")
	add("conflict of a proxy", 409, "<html>", models.Unknown, "")
	for _, name := range []string{"missing_required_field", "invalid_from_address", "invalid_access",
		"invalid_parameter"} {
		add(name, 422, refusal(name, "Something about from"), models.RejectedRequest, models.InvalidRequest)
	}
	add("attachment", 422, refusal("invalid_attachment", "No content"), models.RejectedHereClass, "")
	add("422 of a proxy", 422, "<html>", models.RejectedHereClass, "")
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	a = add("rate", 429, refusal("rate_limit_exceeded", "Too many requests"), models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "2"}, 2*time.Second
	add("daily quota", 429, refusal("daily_quota_exceeded", "You have reached your daily quota"), models.AccountClass, "")
	add("monthly quota", 429, refusal("monthly_quota_exceeded", "You have reached it"), models.AccountClass, "")
	add("characters", 451, refusal("security_error", "The payload has invalid characters"), models.RejectedHereClass, "")
	add("internal", 500, refusal("application_error", "An unexpected error"), models.Unknown, "")
	add("unavailable", 503, "no", models.Unavailable, "")
	return list
}

// svix returns the header of a signature.
func svix(key []byte, id, timestamp string, body []byte) string {
	return "v1," + base64.StdEncoding.EncodeToString(mac(key, id+"."+timestamp+"."+string(body)))
}
