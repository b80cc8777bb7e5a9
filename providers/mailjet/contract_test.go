package mailjet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	common "github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers/internal/kindtest"
	"github.com/safedelivr/safedelivr/providers/internal/settings"
)

const (
	hookKey = "hook:a long password"
	oldKey  = "hook:the old password"
)

func testSettings(base string) settings.Settings {
	return settings.Settings{
		Name:          "mj",
		Kind:          "mailjet",
		APIKey:        "public",
		Pair:          common.Pair{SecretKey: "private"},
		BaseURL:       base,
		WebhookKey:    hookKey,
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
		ManyBytes:   300_000,
		ManyContent: 8_400_000,
		Read:        read,
		Accept:      func(w http.ResponseWriter, n int) { _, _ = io.WriteString(w, acceptance(n)) },
		PerMail:     true,
		Unfit: func(c *models.Content) bool {
			listed := func(h models.Header) bool { return h.Name == "List-Id" }
			return utf8.RuneCountInString(c.Subject) > 255 || slices.ContainsFunc(c.Headers, listed)
		},
		Answers: answers(),
		Secret:  true,
		Sign:    kindtest.Authorized(kindtest.Basic(hookKey)),
		SignOld: kindtest.Authorized(kindtest.Basic(oldKey)),
		Forge:   kindtest.Authorized(kindtest.Basic("hook:another password")),
		Post: func(log models.ID, attempt int) []byte {
			return fmt.Appendf(nil, `[{"event":"sent","time":1795262400,"MessageID":70650219165027411,"email":"a@b.test",`+
				`"CustomID":"%s.%d","Payload":"","smtp_reply":"sent (250 2.0.0 OK)"}]`, log, attempt)
		},
		Mixed: []byte(`[{"event":"sent","time":1795262400,"MessageID":1,"email":"a@b.test","CustomID":"x"},7,null,"x",[],` +
			`{"event":{},"time":[]},{"event":"bounce","time":"never","MessageID":{},"email":7,"hard_bounce":"yes","error":[],` +
			`"comment":"550 5.1.1 a@b.test unknown","CustomID":"01930000-0000-7000-8abc-def000000001.1"},` +
			`{"event":"new","time":1795262400,"CustomID":"01930000-0000-7000-8abc-def000000001.1"},` +
			`{"event":"open","time":1795262400,"email":"a@b.test","CustomID":"01930000-0000-7000-8abc-def000000002.1"}]`),
		MixedGood: 2,
	})
}

// acceptance is the answer to a call with n mails.
func acceptance(n int) string {
	var list []string
	for i := range n {
		list = append(list, success(i))
	}
	return `{"Messages":[` + strings.Join(list, ",") + `]}`
}

func success(i int) string {
	return fmt.Sprintf(`{"Status":"success","CustomID":"x","To":[{"Email":"x","MessageUUID":"u","MessageID":%d}],"Cc":[],`+
		`"Bcc":[]}`, 70650219165027411+i)
}

type mailbox = providertest.Person

type file struct {
	ContentType, Filename, ContentID string
	Base64Content                    []byte
}

type email struct {
	From                            mailbox
	ReplyTo                         *mailbox
	To, Cc, Bcc                     []mailbox
	Subject, TextPart, HTMLPart     string
	TrackOpens, TrackClicks         string
	Headers                         map[string]string
	CustomID                        string
	Attachments, InlinedAttachments []file
}

// read checks a call as Mailjet would and returns what each recipient gets.
func read(r *http.Request, body []byte) (out []providertest.Copy, err error) {
	var in struct{ Messages []email }
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	switch err := d.Decode(&in); {
	case err != nil:
		return nil, err
	case r.Method != "POST" || r.URL.Path != "/v3.1/send" || len(in.Messages) > 50 || len(body) > 20_000_000:
		return nil, fmt.Errorf("%s %s with %d mails", r.Method, r.URL, len(in.Messages))
	case r.Header.Get("Authorization") != kindtest.Basic("public:private") ||
		r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Idempotency-Key") != "":
		return nil, fmt.Errorf("headers %v", r.Header)
	}
	for i := range in.Messages {
		m := &in.Messages[i]
		tracked := m.TrackOpens + m.TrackClicks
		if len(m.To) == 0 || m.TextPart+m.HTMLPart == "" || m.HTMLPart == "" && tracked != "" ||
			strings.Contains(m.TextPart+m.HTMLPart, "[[var:") {
			return nil, fmt.Errorf("%d recipients, no content, code, or tracking without HTML", len(m.To))
		}
		c := providertest.Copy{Subject: m.Subject, Text: m.TextPart, HTML: m.HTMLPart, From: m.From.String(),
			Headers: m.Headers, Opens: m.TrackOpens == "enabled", Clicks: m.TrackClicks == "enabled"}
		c.Log, c.Attempt, _ = strings.Cut(m.CustomID, ".")
		if m.ReplyTo != nil {
			c.ReplyTo = m.ReplyTo.String()
		}
		for _, f := range append(m.InlinedAttachments, m.Attachments...) {
			c.Files = append(c.Files, providertest.File{Name: f.Filename, Type: f.ContentType, ContentID: f.ContentID,
				Data: f.Base64Content})
		}
		out = append(out, providertest.Shared(c, m.To, m.Cc, m.Bcc)...)
	}
	return out, nil
}

// refusal is the answer to a call that was refused as a whole.
func refusal(status int, code, text string) string {
	return fmt.Sprintf(`{"ErrorIdentifier":"i","ErrorCode":%q,"StatusCode":%d,"ErrorMessage":%q}`, code, status, text)
}

// answers returns the documented answers of Mailjet.
func answers() []providertest.Answer {
	var list []providertest.Answer
	add := func(name string, status int, body string, class models.Class, reason models.Reason) *providertest.Answer {
		list = append(
			list,
			providertest.Answer{Name: name, Status: status, Body: body, Three: class, One: class, Reason: reason},
		)
		return &list[len(list)-1]
	}
	one := func(name string, status int, result string, class models.Class, reason models.Reason) {
		a := add(fmt.Sprintf("of one mail (%d): %s", status, name), status, "", class, reason)
		a.Others = models.Accepted
		a.Each = func(n int) string {
			if n == 1 {
				return `{"Messages":[` + result + `]}`
			}
			return `{"Messages":[` + success(1) + "," + result + "," + success(2) + "]}"
		}
	}
	add("accepted", 200, "", models.Accepted, "").Each = acceptance
	add("accepted with 400", 400, "", models.Accepted, "").Each = acceptance
	add("accepted fewer", 200, acceptance(2), models.Unknown, "")
	add("accepted more", 200, acceptance(4), models.Unknown, "")
	add("refused fewer", 400, acceptance(2), models.Unknown, "")
	add("200 of another server", 200, "<html>Welcome</html>", models.Unknown, "")
	add("a list that breaks off", 400, acceptance(3)[:60], models.Unknown, "")
	add("a list of a failure", 500, acceptance(3), models.Unknown, "")
	for _, e := range []struct {
		code, about string
		class       models.Class
		reason      models.Reason
	}{
		{"mj-0013", "To[0].Email", models.RejectedRecipient, models.MailboxInvalid},
		{"mj-0013", "From.Email", models.RejectedRequest, models.InvalidRequest},
		{"mj-0013", "", models.RejectedHereClass, ""},
		{"mj-0013", "Messages[1].To[0].Email", models.RejectedHereClass, ""},
		{"mj-0003", "From", models.RejectedHereClass, ""},
		{"mj-0005", "TrackClicks", models.RejectedHereClass, ""},
		{"mj-0006", "Subject", models.RejectedHereClass, ""},
		{"mj-0011", "", models.RejectedHereClass, models.TooLarge},
		{"mj-0012", "Base64Content", models.RejectedHereClass, ""},
		{"send-0003", "HTMLPart", models.RejectedRequest, models.InvalidRequest},
		{"send-0008", "From", models.AccountClass, models.SenderNotVerified},
		{"send-0011", `Headers["List-Id"]`, models.RejectedHereClass, ""},
		{"send-0015", "To", models.RejectedHereClass, ""},
		{"new-0001", "To", models.RejectedHereClass, ""},
	} {
		about, _ := json.Marshal([]string{e.about})
		result := fmt.Sprintf(`{"Status":"error","Errors":[{"ErrorCode":%q,"StatusCode":400,`+
			`"ErrorMessage":"about \"a@b.test\"","ErrorRelatedTo":%s}]}`, e.code, about)
		one(e.code+" "+e.about, 200, result, e.class, e.reason)
		one(e.code+" "+e.about, 400, result, e.class, e.reason)
	}
	one("no errors", 400, `{"Status":"error"}`, models.Unknown, "")
	one("no id", 200, `{"Status":"success","To":[]}`, models.Unknown, "")
	one("nothing", 200, `null`, models.Unknown, "")
	add("JSON", 400, refusal(400, "mj-0002", "Malformed JSON"), models.RejectedHereClass, "")
	add("too many", 400, refusal(400, "mj-0008", "Too many"), models.RejectedHereClass, "")
	add("too large", 400, refusal(400, "mj-0011", "Over the limit"), models.RejectedHereClass, models.TooLarge)
	a := add("some address", 400, `{"ErrorCode":"mj-0013","ErrorMessage":"x","ErrorRelatedTo":["To"]}`, models.Split, "")
	a.One = models.RejectedRecipient
	add("400 of a proxy", 400, "<html>", models.RejectedHereClass, "")
	add("suspended", 401, refusal(401, "mj-0001", "suspended"), models.AccountClass, "")
	add("keys", 401, refusal(401, "mj-0015", "API key authentication/authorization failure"), models.AccountClass, "")
	add("sender", 403, refusal(403, "send-0008", "not authorized"), models.AccountClass, models.SenderNotVerified)
	add("forbidden", 403, "", models.AccountClass, "")
	add("not found", 404, "", models.AccountClass, "")
	add("413", 413, "", models.RejectedHereClass, models.TooLarge)
	add("rate", 429, "Rate limit exceeded", models.Throttled, "")
	a = add("rate with seconds", 429, "", models.Throttled, "")
	a.Header, a.RetryIn = map[string]string{"Retry-After": "30"}, 30*time.Second
	add("internal", 500, refusal(500, "", "Something went wrong"), models.Unknown, "")
	add("outage", 503, "", models.Unavailable, "")
	return list
}
