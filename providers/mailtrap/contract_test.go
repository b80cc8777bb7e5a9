package mailtrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const (
	ownKey   = "a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6"
	oldKey   = "00b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6"
	otherKey = "11b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "mt",
		Kind:          "mailtrap",
		APIKey:        "token",
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

// sign returns the header of a signature, as Mailtrap makes it.
func sign(key string, body []byte) http.Header {
	own := hmac.New(sha256.New, []byte(key))
	_, _ = own.Write(body)
	h := http.Header{}
	h.Set("Mailtrap-Signature", hex.EncodeToString(own.Sum(nil)))
	return h
}

func TestContract(t *testing.T) {
	with := func(key string) func(body []byte, _ time.Time) (http.Header, []byte) {
		return func(body []byte, _ time.Time) (http.Header, []byte) { return sign(key, body), body }
	}
	providertest.Run(t, providertest.Suite{
		New:         func(t testing.TB, base string) models.Adapter { return adapter(t, base) },
		Carries:     Spec.Carries,
		ManyBytes:   200_000,
		ManyContent: 4_800_000,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Answers:     answers(),
		Timeless:    true,
		Sign:        with(ownKey),
		SignOld:     with(oldKey),
		Forge:       with(otherKey),
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `{"events":[{"event":"delivery","timestamp":1795262400,"message_id":"m1","email":"a@b.test",`+
				`"event_id":"e1","custom_variables":{"sd_log":"%s","sd_attempt":"%d"}}]}`, log, attempt)
		},
		Mixed: []byte(`{"events":[{"event":7},{"event":"soft bounce","timestamp":"never","message_id":{},"email":"a@b.test",` +
			`"response":[],"custom_variables":{"sd_log":"01930000-0000-7000-8abc-def000000001","sd_attempt":1}},4,null,` +
			`{"event":"new","custom_variables":{}},{"event":"open","email":"c@d.test","custom_variables":true}]}`),
		MixedGood: 1,
		Removed: func(r *http.Request, _ []byte) string {
			if r.Method != http.MethodGet || r.URL.Path != "/api/suppressions" {
				return ""
			}
			return r.URL.Query().Get("email")
		},
		Lists: listPages(),
	})
}

func listPages() (out []providertest.List) {
	for kind, want := range map[string]models.Listed{
		"hard bounce":    {Reason: models.HardBounce},
		"spam complaint": {Reason: models.Complaint, Category: "bulk example.com"},
		"unsubscription": {Reason: models.Unsubscribe, Category: "bulk example.com"},
		"manual import":  {Category: "bulk example.com"},
	} {
		want.Email, want.Text = "ann@rcpt.test", "550 no <address>"
		want.At = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		out = append(out, providertest.List{
			List: "suppressions",
			Body: `[{"id":"1","type":"` + kind + `","created_at":"2026-11-21T12:00:00Z","email":"ann@rcpt.test",` +
				`"sending_stream":` +
				`"bulk","domain_name":"example.com","message_esp_response":"550 no ` +
				`ann@rcpt.test"},{"id":"2","email":"bob@rcpt.test"}]`,
			Want: []models.Listed{want},
		})
	}
	return append(out, providertest.List{
		List: "suppressions",
		Body: `[{"id":"1","type":"unsubscription","created_at":"2026-11-21T12:00:00Z","email":"ann@rcpt.test",` +
			`"sending_stream":"any","domain_name":null},{}]`,
		Want: []models.Listed{{Email: "ann@rcpt.test", Reason: models.Unsubscribe,
			At: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}},
	})
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(`{"success":true,"message_ids":["m%d"]}`, i))
	}
	return `{"success":true,"responses":[` + strings.Join(list, ",") + `]}`
}

type mailbox = providertest.Person

// An email is the base of a batch, or one of its requests, which replaces what the base has.
type email struct {
	From                *mailbox
	To, CC, BCC         []mailbox
	Subject, Text, HTML *string
	Category            *string
	Headers             map[string]string
	Variables           map[string]string `json:"custom_variables"`
	Attachments         []attachment
	ReplyTo             *mailbox `json:"reply_to"`
}

type attachment struct {
	Content     []byte
	Filename    string
	Type        string
	Disposition string
	ContentID   string `json:"content_id"`
}

// read checks a call as Mailtrap would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in struct {
		Base     email
		Requests []json.RawMessage
	}
	strict := func(raw []byte, v any) error {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		return d.Decode(v)
	}
	switch err := strict(body, &in); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || r.URL.Path != "/api/batch" || len(in.Requests) > 500 || len(body) > 50_000_000:
		return nil, fmt.Errorf("%s %s with %d mails", r.Method, r.URL, len(in.Requests))
	case r.Header.Get("Authorization") != "Bearer token" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("User-Agent") == "" || r.Header.Get("Idempotency-Key") != "":
		return nil, fmt.Errorf("headers %v", r.Header)
	}
	for _, raw := range in.Requests {
		m := in.Base
		if err := strict(raw, &m); err != nil {
			return nil, err
		}
		copies, err := m.copies()
		if err != nil {
			return nil, err
		}
		out = append(out, copies...)
	}
	return out, nil
}

// copies returns the mail as each of its recipients gets it.
func (m *email) copies() (out []providertest.Copy, err error) {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	log, err := models.ParseLogID(m.Variables["sd_log"])
	if err != nil || m.From == nil || text(m.Subject) == "" || text(m.Text)+text(m.HTML) == "" || len(m.To) == 0 ||
		text(m.Category) != log.ChunkID().String() || len(m.Variables) != 2 || m.ReplyTo != nil ||
		m.Text != nil && *m.Text == "" || m.HTML != nil && *m.HTML == "" {
		return nil, errors.Join(err, fmt.Errorf("a mail that is refused: %+v", m))
	}
	c := providertest.Copy{From: m.From.String(), Subject: text(m.Subject), Text: text(m.Text), HTML: text(m.HTML),
		Log: m.Variables["sd_log"], Attempt: m.Variables["sd_attempt"], Headers: map[string]string{}}
	for name, value := range m.Headers {
		if name == "Reply-To" {
			c.ReplyTo = value
		} else {
			c.Headers[name] = value
		}
	}
	for _, a := range m.Attachments {
		if a.Filename == "" || (a.Disposition == "inline") != (a.ContentID != "") {
			return nil, fmt.Errorf("attachment %+v", a)
		}
		c.Files = append(c.Files, providertest.File{Name: a.Filename, Type: a.Type, ContentID: a.ContentID, Data: a.Content})
	}
	return providertest.Shared(c, m.To, m.CC, m.BCC), nil
}

func refusal(words ...string) string {
	b, _ := json.Marshal(map[string]any{"success": false, "errors": words})
	return string(b)
}

// answers returns the documented answers of Mailtrap.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason})
		return &list[len(list)-1]
	}
	one := func(name, result string, class models.Class, reason models.Reason) {
		a := add("of one mail: "+name, 200, "", class, reason)
		a.Others = models.Accepted
		a.Each = func(n int) string {
			if n == 1 {
				return `{"success":true,"responses":[` + result + `]}`
			}
			ok := `{"success":true,"message_ids":["m"]}`
			return `{"success":true,"responses":[` + ok + "," + result + "," + ok + `],"errors":[]}`
		}
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("accepted fewer", 200, acceptance(2), models.Unknown, "")
	add("accepted more", 200, acceptance(4), models.Unknown, "")
	add("no results", 200, `{"success":false,"errors":["Something"]}`, models.Unknown, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	one("no id", `{"success":true}`, models.Accepted, "")
	one("nothing", `{}`, models.Unknown, "")
	one("null", `null`, models.Unknown, "")
	one("both", `{"success":true,"message_ids":["m"],"errors":["Something"]}`, models.Unknown, "")
	one("an id and no success", `{"success":false,"message_ids":["m"],"errors":["Something"]}`, models.Unknown, "")
	for _, e := range []struct {
		words  string
		class  models.Class
		reason models.Reason
	}{
		{"'to' address is invalid", models.RejectedRecipient, models.MailboxInvalid},
		{"recipient a@b.test is not valid", models.RejectedRecipient, models.MailboxInvalid},
		{"invalid recipient a@b.test", models.RejectedRecipient, models.MailboxInvalid},
		{"'from' address is invalid", models.AccountClass, models.SenderNotVerified},
		{"The domain sender.test is not allowed", models.AccountClass, models.SenderNotVerified},
		{"You have reached the limit of your plan", models.AccountClass, ""},
		{"'subject' is required", models.RejectedRequest, models.InvalidRequest},
		{"must specify either text or html body", models.RejectedRequest, models.InvalidRequest},
		{"attachment is too large", models.RejectedHereClass, ""},
		{"something new", models.RejectedHereClass, ""},
		{"'template' is invalid; another recipient is fine", models.RejectedHereClass, ""},
		{"verification of the account is required", models.RejectedHereClass, ""},
	} {
		one(e.words, refusal(e.words), e.class, e.reason)
		a := add("whole: "+e.words, 400, refusal(e.words), e.class, e.reason)
		switch {
		case e.class == models.RejectedRecipient:
			a.Three, a.Reason = models.Split, ""
		case e.class == models.RejectedHereClass && e.words != "attachment is too large":
			a.Three, a.One, a.Reason = models.RejectedRequest, models.RejectedRequest, models.InvalidRequest
		}
	}
	add("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	add("400 without words", 400, `{"success":false,"errors":[]}`, models.RejectedHereClass, "")
	add("no token", 401, refusal("Unauthorized"), models.AccountClass, "")
	add("forbidden", 403, refusal("Forbidden"), models.AccountClass, "")
	add("domain", 403, refusal("The domain of the sender is not verified"), models.AccountClass, models.SenderNotVerified)
	add("not found", 404, "", models.AccountClass, "")
	add("too large", 413, "", models.RejectedHereClass, models.TooLarge)
	add("rate", 429, `{"errors":"Rate limit exceeded"}`, models.Throttled, "")
	a := add("rate with seconds", 429, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "30"}, 30*time.Second
	add("internal", 500, refusal("Internal server error"), models.Unknown, "")
	add("outage", 503, "", models.Unavailable, "")
	return list
}
