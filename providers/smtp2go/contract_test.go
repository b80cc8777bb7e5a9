package smtp2go

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "s2g",
		Kind:          "smtp2go",
		APIKey:        "api-key",
		BaseURL:       base,
		WebhookKey:    "hook:a long password",
		WebhookKeyOld: "old-bearer-token",
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
		ManyBytes:   200_000,
		ManyContent: 400_000,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Answers:     answers(),
		Secret:      true,
		Sign:        kindtest.Authorized(kindtest.Basic("hook:a long password")),
		SignOld:     kindtest.Authorized("Bearer old-bearer-token"),
		Forge:       kindtest.Authorized(kindtest.Basic("hook:another password")),
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `{"event":"delivered","time":"2026-11-21T12:00:00Z","rcpt":"a@b.test","email_id":"m1",`+
				`"message":"250 OK","X-Sd-Log":"%s","X-Sd-Attempt":"%d"}`, log, attempt)
		},
		Mixed: []byte(`{"event":"bounce","id":{},"bounce":7,"email_id":[],"rcpt":"a@b.test","message":{},"time":"never",` +
			`"X-Sd-Log":"01930000-0000-7000-8abc-def000000001","X-Sd-Attempt":1}`),
		MixedGood: 1,
		KeyHeader: "X-Smtp2go-Api-Key",
		Removed: func(r *http.Request, body []byte) string {
			var in struct {
				Address string `json:"email_address"`
				Reasons []string
			}
			if r.Method != "POST" || r.URL.Path != "/v3/suppression/remove" || json.Unmarshal(body, &in) != nil ||
				len(in.Reasons) != 1 {
				return r.Method + " " + r.URL.Path
			}
			return in.Address
		},
		Lists: listPages(),
	})
}

func listPages() (out []providertest.List) {
	for list, reason := range map[string]models.SuppressionReason{"bounce": models.HardBounce, "spam": models.Complaint,
		"unsubscribe": models.Unsubscribe} {
		for _, at := range []string{"2026-11-21 12:00:00", "2026-11-21 12:00:00.000000+00:00"} {
			out = append(out, providertest.List{
				List: list,
				Body: `{"request_id":"r","data":{"continue_token":null,"total_results":2,"results":[{"email_address":` +
					`"ann@rcpt.test","reason":"` + list + `","timestamp":"` + at + `","block_description":"said <bob@rcpt.test>"},` +
					`{"email_address":"example.test","timestamp":"` + at + `"}]}}`,
				Want: []models.Listed{{Email: "ann@rcpt.test", Reason: reason, Text: "said <address>",
					At: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}},
			})
		}
	}
	return out
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	if n == 1 {
		return `{"request_id":"r","data":{"succeeded":1,"failed":0,"failures":[],"email_id":"1u0SwL-B9zBpi9ffUq-JAB2"}}`
	}
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"email_id":"m%d"}`, i))
	}
	return `{"request_id":"r","data":[` + strings.Join(list, ",") + `]}`
}

type file struct {
	Filename, Mimetype string
	Fileblob           []byte
}

type email struct {
	Sender, Subject      string
	To, CC, BCC          []string
	Text                 string `json:"text_body"`
	HTML                 string `json:"html_body"`
	Attachments, Inlines []file
	Fast                 *bool                            `json:"fastaccept"`
	CustomHeaders        []struct{ Header, Value string } `json:"custom_headers"`
}

// read checks a call as SMTP2GO would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in struct{ Emails []email }
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	single := r.URL.Path == "/v3/email/send"
	if single {
		in.Emails = make([]email, 1)
		err = d.Decode(&in.Emails[0])
	} else {
		err = d.Decode(&in)
	}
	switch {
	case err != nil:
		return nil, err
	case r.Method != "POST" || !single && r.URL.Path != "/v3/email/batch" || len(body) > 50_000_000:
		return nil, fmt.Errorf("%s %s", r.Method, r.URL)
	case r.Header.Get("X-Smtp2go-Api-Key") != "api-key" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Authorization") != "" || r.Header.Get("Idempotency-Key") != "":
		return nil, fmt.Errorf("headers %v", r.Header)
	}
	for i := range in.Emails {
		m := &in.Emails[i]
		if (m.Fast != nil) != single || single && *m.Fast || m.Text == "" && m.HTML == "" ||
			max(len(m.To), len(m.CC), len(m.BCC)) > 100 {
			return nil, errors.New("fastaccept, no content, or too many addresses")
		}
		c, err := m.copied()
		if err != nil {
			return nil, err
		}
		var lists [3][]providertest.Person
		for i, list := range [3][]string{m.To, m.CC, m.BCC} {
			for _, text := range list { // each text is one address
				one, err := providertest.People(text)
				if err != nil || len(one) != 1 {
					return nil, fmt.Errorf("address %q: %w", text, err)
				}
				lists[i] = append(lists[i], one[0])
			}
		}
		out = append(out, providertest.Shared(c, lists[0], lists[1], lists[2])...)
	}
	return out, nil
}

// copied returns what the mail brings to each recipient.
func (m *email) copied() (c providertest.Copy, err error) {
	c = providertest.Copy{Subject: m.Subject, Text: m.Text, HTML: m.HTML, From: m.Sender, Headers: map[string]string{}}
	for _, h := range m.CustomHeaders {
		switch h.Header {
		case "Content-Type", "Content-Transfer-Encoding", "MIME-Version":
			return c, errors.New(h.Header + " is not allowed")
		case "Reply-To":
			c.ReplyTo = h.Value
		case "X-Sd-Log":
			c.Log = h.Value
		case "X-Sd-Attempt":
			c.Attempt = h.Value
		default:
			c.Headers[h.Header] = h.Value
		}
	}
	for i, list := range [2][]file{m.Inlines, m.Attachments} {
		for _, f := range list {
			if f.Filename == "" || len(f.Fileblob) == 0 {
				return c, errors.New("a file without a name or content")
			}
			out := providertest.File{Name: f.Filename, Type: f.Mimetype, Data: f.Fileblob}
			if i == 0 {
				out.ContentID = f.Filename
			}
			c.Files = append(c.Files, out)
		}
	}
	return c, nil
}

// fail is an error as the API has it.
func fail(code, text string) string {
	b, _ := json.Marshal(map[string]any{"request_id": "r", "data": map[string]any{
		"error_code": "E_ApiResponseCodes." + code, "error": text}})
	return string(b)
}

// invalidField is the error of a payload with a field that is not valid.
func invalidField(name, found string) string {
	b, _ := json.Marshal(map[string]any{"data": map[string]any{
		"error_code": "E_ApiResponseCodes.NON_VALIDATING_IN_PAYLOAD",
		"error":      "An error occurred processing the json data you sent with the request.",
		"field_validation_errors": map[string]string{"fieldname": name, "message": "The field '" + name +
			"' was expecting a valid RFC-822 formatted email field but found '" + found +
			"', Please correct your JSON payload and try again."}}})
	return string(b)
}

// answers returns the documented answers of SMTP2GO, those that others report, and those of proxies.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, three, one models.Class, reason models.Reason) *providertest.Answer {
		list = append(list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: three, One: one, Reason: reason})
		return &list[len(list)-1]
	}
	all := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		return add(name, status, body, class, class, reason)
	}
	result := func(name, data string, class models.Class, reason models.Reason) {
		all("result: "+name, 200, "", class, reason).Each = func(n int) string {
			if n == 1 {
				return `{"data":` + data + `}`
			}
			return `{"data":[{"email_id":"a"},` + data + `,{"email_id":"c"}]}`
		}
		list[len(list)-1].Others = models.Accepted
	}
	all("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("fewer results", 200, acceptance(2), models.Unknown, models.Unknown, "")
	add("the result of one mail", 200, acceptance(1), models.Unknown, models.Accepted, "")
	all("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	all("200 without data", 200, `{"request_id":"r"}`, models.Unknown, "")
	result("only an id", `{"email_id":"m"}`, models.Accepted, "")
	result("an empty id", `{"email_id":""}`, models.Unknown, "")
	result("nothing", `null`, models.Unknown, "")
	result("scheduled", `{"schedule_id":"s"}`, models.Unknown, "")
	result("failed with an id", `{"email_id":"m","succeeded":1,"failed":1,"failures":["x: unknown"]}`, models.Unknown, "")
	result("failed without words", `{"email_id":"","succeeded":0,"failed":1,"failures":[]}`, models.Unknown, "")
	failed := func(name, words string, class models.Class, reason models.Reason) {
		b, _ := json.Marshal([]string{"An error occurred during the SMTP request: " + words})
		result(name, `{"succeeded":0,"failed":1,"failures":`+string(b)+`,"email_id":""}`, class, reason)
	}
	failed("sender of an unknown domain", "Verification failed for <a@b.test>\nUnrouteable address\n"+
		"domain verify fail <a@b.test>", models.AccountClass, models.SenderNotVerified)
	failed("sender not verified", "550 From header sender domain not verified", models.AccountClass,
		models.SenderNotVerified)
	failed("refused", "550 Message rejected", models.RejectedHereClass, "")
	failed("quota", "451 Your quota is used up", models.AccountClass, "")
	failed("rate", "API key ratelimit exceeded", models.Throttled, "")
	failed("time-out", "timed out", models.Unknown, "")

	all("permission", 400, fail(denied, "You do not have permission to access this API endpoint"), models.AccountClass, "")
	all("permission beside data", 400, `{"error_code":"E_ApiResponseCodes.ENDPOINT_PERMISSION_DENIED","error":"no"}`,
		models.AccountClass, "")
	all("unknown key", 400, fail("API_EXCEPTION", "An API User matching the passed 'api_key' was not found"),
		models.AccountClass, "")
	all("unknown key with 401", 401, fail("API_EXCEPTION", "An API User matching the passed 'api_key' was not found"),
		models.AccountClass, "")
	all("unknown key with 200", 200, fail("API_EXCEPTION", "An API User matching the passed 'api_key' was not found"),
		models.AccountClass, "")
	all("sender not verified", 400, fail("API_EXCEPTION", "The sender a@sender.test is not verified"), models.AccountClass,
		models.SenderNotVerified)
	all("sender", 400, invalidField("sender", "shop"), models.RejectedHereClass, "")
	add("some address", 400, invalidField("to", "else@rcpt.test"), models.Split, models.RejectedRecipient, "")
	a := add("an address", 400, "", models.RejectedRecipient, models.RejectedRecipient,
		models.MailboxInvalid)
	a.Others, a.Each = models.Split, func(n int) string {
		who := min(n, 2)
		return invalidField("to", fmt.Sprintf(`"Name %d" <User.%[1]d@rcpt%[1]d.test>`, who))
	}
	all("too many mails", 400, "", models.RejectedHereClass, "").Fewer = 2
	list[len(list)-1].Each = func(n int) string {
		return fail(invalid, map[bool]string{true: "The field 'emails' was expecting 2 items at most", false: "?"}[n > 1])
	}
	all("another field", 400, fail(invalid, "The field 'subject' was expecting a value"), models.RejectedHereClass, "")
	add("an exception", 400, fail("API_EXCEPTION", "Something"), models.Unknown, models.RejectedHereClass, "")
	add("an exception with 200", 200, fail("API_EXCEPTION", "Something"), models.Unknown, models.Unknown, "")
	add("a new code", 400, fail("NEW", "Something"), models.Unknown, models.RejectedHereClass, "")
	all("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	all("no key", 401, "", models.AccountClass, "")
	all("request failed", 402, fail("API_EXCEPTION", "Something"), models.AccountClass, "")
	all("forbidden", 403, "", models.AccountClass, "")
	all("not found", 404, "", models.AccountClass, "")
	all("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	all("rate", 429, "", models.Throttled, "").RetryIn = time.Minute
	a = all("rate with seconds", 429, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "90"}, 90*time.Second
	all("internal", 500, fail("API_EXCEPTION", "Something"), models.Unknown, "")
	all("gateway", 502, "", models.Unknown, "")
	all("outage", 503, "", models.Unavailable, "")
	return list
}
